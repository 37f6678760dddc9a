"""Any message that the schema allows, made from the schema itself."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from device_sdk.wire import fields as f
from device_sdk.wire import messages as m
from device_sdk.wire.coherence import tensor_bytes
from device_sdk.wire.schema import FIELDS

NESTED = {
    (m.Task, "model"): m.ModelReference,
    (m.Task, "objective"): m.LocalObjective,
    (m.Question, "models"): m.ModelReference,
    (m.ModelReference, "blob"): m.Blob,
    (m.ModelReference, "tensors"): m.TensorSpec,
    (m.LocalObjective, "mask"): m.Blob,
    (m.Welcome, "cohorts"): m.Cohorts,
    (m.CohortsChanged, "cohorts"): m.Cohorts,
    (m.Cohorts, "splits"): m.Split,
    (m.AffinityClaim, "evidence"): m.Feedback,
    (m.CheckIn, "affinity"): m.AffinityClaim,
    (m.UpdateHeader, "payload"): m.Blob,
    (m.UpdateHeader, "encoding"): m.GridEncoding,
    (m.SummaryHeader, "payload"): m.Blob,
    (m.SummaryHeader, "terms"): m.Term,
    (m.Delivery, "chunk"): m.Chunk,
    (m.Delivery, "check_in"): m.CheckIn,
}
# Drawing text from the patterns themselves takes most of a test's time.
SPELLINGS = ["0", "0.1", "0.1.7", "label_histogram", "t-1", "!~", "[::1]:8443", "00112233445566778899aabbccddeeff"]


def of(cls: type) -> st.SearchStrategy[Any]:
    """Any message of class `cls`, coherent in itself."""
    if cls is m.Task:
        return st.builds(_coherent_task, _built(m.Task), st.sampled_from(["epochs", "steps"]))
    if cls is m.Question:
        return _built(m.Question).map(_coherent_question)
    if cls is m.EnrolmentReply:
        return _built(m.EnrolmentReply).map(lambda reply: replace(reply, gateway="[::1]:8443"))
    if cls is m.UpdateHeader:
        return _built(m.UpdateHeader).map(_coherent_update)
    return _built(cls)


def _built(cls: type) -> st.SearchStrategy[Any]:
    return st.builds(cls, **{name: _field(cls, name, kind) for name, kind in FIELDS[cls].items()})


def _field(cls: type, name: str, kind: f.Kind) -> st.SearchStrategy[Any]:
    if name == "version" and cls is not m.ModelReference:
        return st.just(m.THIS_VERSION)
    match kind:
        case f.Optional(inner):
            return st.none() | _field(cls, name, inner)
        case f.Nested():
            return _built(NESTED[cls, name])
        case f.Many(inner, most, least):
            element = _built(NESTED[cls, name]) if isinstance(inner, f.Nested) else _scalar(inner)
            return st.lists(element, min_size=least, max_size=min(most, least + 3)).map(tuple)
        case f.OneOf(options):
            if cls is m.Task:
                return st.one_of(_built(m.DeviceLevelTerms), _built(m.RecordLevelTerms))
            if cls is m.Delivery:
                return st.one_of(of(m.UpdateHeader), of(m.SummaryHeader))
            return st.one_of(*(_scalar(option) for _, option in options.values()))
        case _:
            return _scalar(kind)


def _scalar(kind: Any) -> st.SearchStrategy[Any]:
    match kind:
        case f.Text(pattern):
            return st.sampled_from([text for text in SPELLINGS if pattern.fullmatch(text)])
        case f.Prose(most, least):
            characters = st.characters(categories=["L", "N", "P"]).filter(str.isprintable)
            return st.text(characters, min_size=least, max_size=min(most, 12))
        case f.ExactNumber():
            return st.fractions(Fraction(1, 10**9), 10**9, max_denominator=10**9).map(str)
        case f.Bytes(least, most):
            return st.binary(min_size=least, max_size=min(most, least + 40))
        case f.Whole(most, least):
            return st.integers(least, most)
        case f.Real(least, most, above):
            return st.floats(least, most, exclude_min=above)
        case f.Flag():
            return st.booleans()
        case f.Choice(options):
            return st.sampled_from(list(options))
    raise TypeError(kind)


def _coherent_task(task: m.Task, duration: str) -> m.Task:
    if isinstance(task.privacy, m.RecordLevelTerms):
        duration = "steps"
    durations: dict[str, Any] = {"epochs": None, "steps": None} | {duration: 3}
    objective = replace(task.objective, **durations, momentum=min(task.objective.momentum, 0.9))
    return replace(task, model=_coherent_model(task.model, task.model.tensors), objective=objective)


def _coherent_question(question: m.Question) -> m.Question:
    models = tuple(_coherent_model(model, question.models[0].tensors) for model in question.models)
    choice, loss = question.kind is m.QuestionKind.BEST_MODEL, question.kind is m.QuestionKind.LOSS
    bound = (question.loss_bound or 1.0) if loss else None
    choice_by = question.choice_by if choice else m.ChoiceBy.RESPONSE
    return replace(question, models=(models * 2)[:64] if choice else models[:1], loss_bound=bound, choice_by=choice_by)


def _coherent_model(model: m.ModelReference, tensors: tuple[m.TensorSpec, ...]) -> m.ModelReference:
    named = tuple(replace(spec, name=f"{index}", shape=spec.shape[:1]) for index, spec in enumerate(tensors))
    small = tuple(replace(spec, shape=tuple(side % 1000 for side in spec.shape)) for spec in named)
    return replace(model, tensors=small, blob=replace(model.blob, size_bytes=tensor_bytes(small) + 100))


def _coherent_update(header: m.UpdateHeader) -> m.UpdateHeader:
    encoding = replace(header.encoding, count=header.encoding.count % 10**6 + 1)
    return replace(header, encoding=encoding, payload=replace(header.payload, size_bytes=encoding.size_bytes))
