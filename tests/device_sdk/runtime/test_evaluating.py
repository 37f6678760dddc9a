"""Models are looked at one after the other; what an app's evaluation makes of them is not seen from outside."""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.evaluating import Evaluating, Polling
from device_sdk.policy import Reason, TaskRefused
from device_sdk.questions import private_answer
from device_sdk.trainers import Evaluation, EvaluationFailed, InvalidSettings, ModelMismatch
from device_sdk.trainers.protocol import go_on
from device_sdk.wire.errors import ConnectionLost, PayloadMismatch, Refused
from device_sdk.wire.messages import ErrorCode, ModelReference, QuestionKind
from device_sdk.wire.tensors import blob_of, model_bytes, model_specs
from tests.device_sdk.wire import examples

GOOD = Evaluation(0.5, 0.75)


def model(number: float) -> tuple[ModelReference, bytes]:
    weights = {"w": np.full(4, number, np.float32)}
    body = model_bytes(weights)
    return ModelReference(1, blob_of(body), model_specs(weights)), body


MODELS = [model(number) for number in range(3)]
REFERENCES = [reference for reference, _ in MODELS]


def download(blob):
    return memoryview(next(body for reference, body in MODELS if reference.blob == blob))


def test_only_one_model_is_in_memory():
    alive: list[Any] = []

    def watched(blob):
        assert not [one for one in alive if one() is not None]
        return download(blob)

    def evaluate(weights, between_batches):
        alive.append(weakref.ref(weights["w"]))
        return GOOD

    assert Evaluating(watched, evaluate, go_on).of(REFERENCES) == [GOOD] * 3
    assert len(alive) == 3


def test_equal_models_are_downloaded_and_evaluated_once():
    seen = []

    def evaluate(weights, between_batches):
        seen.append(float(weights["w"][0]))
        return Evaluation(weights["w"][0], 0.5)

    order = [REFERENCES[place] for place in (0, 2, 0, 2)]
    assert [found.loss for found in Evaluating(download, evaluate, go_on).of(order)] == [0.0, 2.0, 0.0, 2.0]
    assert seen == [0.0, 2.0]


@pytest.mark.parametrize("answer", [None, 0.5, Evaluation("good", 0.5)], ids=["nothing", "a number", "a word"])  # type: ignore[arg-type]
def test_an_evaluation_that_is_none_counts_as_one_that_failed(answer):
    evaluating = Evaluating(download, lambda weights, between_batches: answer, go_on)
    assert evaluating.of(REFERENCES) == [Evaluation(math.inf, 0.0)] * 3
    assert isinstance(evaluating.failure, EvaluationFailed)


def test_all_models_are_downloaded_whichever_failed():
    asked = []

    def evaluate(weights, between_batches):
        raise MemoryError

    def counted(blob):
        asked.append(blob)
        return download(blob)

    Evaluating(counted, evaluate, go_on).of(REFERENCES)
    assert asked == [reference.blob for reference in REFERENCES]


@pytest.mark.parametrize("error", [ModelMismatch("not mine"), InvalidSettings("not so")])
def test_what_follows_from_the_question_alone_refuses_it(error):
    def evaluate(weights, between_batches):
        raise error

    with pytest.raises(TaskRefused) as refusal:
        Evaluating(download, evaluate, go_on).of(REFERENCES)
    assert refusal.value.reason is Reason.MODEL


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PayloadMismatch("other bytes"), Reason.MODEL),
        (Refused(ErrorCode.NOT_FOUND, "gone"), Reason.LATE),
        (Refused(ErrorCode.NOT_ASKED, "over"), Reason.LATE),
    ],
)
def test_a_model_that_cannot_be_had_refuses_its_question(error, reason):
    def fails(blob):
        raise error

    with pytest.raises(TaskRefused) as refusal:
        Evaluating(fails, lambda weights, between_batches: GOOD, go_on).of(REFERENCES)
    assert refusal.value.reason is reason


@pytest.mark.parametrize("error", [ConnectionLost("cut"), Refused(ErrorCode.CLOSING, "later", 5.0)])
def test_what_may_pass_is_left_to_another_try(error):
    def fails(blob):
        raise error

    with pytest.raises(type(error)):
        Evaluating(fails, lambda weights, between_batches: GOOD, go_on).of(REFERENCES)


def votes_of(losses, order=(0, 1, 2)):
    """The votes of records that lose so much with the model of each number."""
    rows = [np.array(row, dtype=np.float32) for row in losses]
    polling = Polling(download, lambda weights, between_batches: rows[int(weights["w"][0])], go_on)
    return polling.of([REFERENCES[place] for place in order]), polling.failure


def test_each_record_votes_for_the_model_that_loses_least_on_it():
    nan, inf = math.nan, math.inf
    rows = [
        [3.0, 1.0, 1.0, nan, nan, inf, inf],
        [2.0, 1.0, 2.0, 5.0, nan, nan, inf],
        [1.0, 1.0, 0.0, 5.0, nan, 7.0, inf],
    ]
    assert votes_of(rows) == ([2, 0, 2, 1, 0, 2, 0], None)


@given(
    rows=st.integers(0, 6).flatmap(
        lambda n: st.lists(st.lists(st.floats(width=32), min_size=n, max_size=n), min_size=3, max_size=3)
    )
)
def test_votes_are_counted_as_the_least_of_each_column_would_be(rows):
    table = np.array(rows, dtype=np.float32)
    assert votes_of(rows) == (np.where(np.isnan(table), np.inf, table).argmin(axis=0).tolist(), None)


def test_a_model_that_stands_twice_has_its_votes_once():
    assert votes_of([[1.0, 3.0], [2.0, 2.0], [0.0, 0.0]], (0, 1, 0, 1)) == ([0, 1], None)


def test_a_device_without_records_has_no_votes():
    assert votes_of([[], [], []]) == ([], None)


@pytest.mark.parametrize("wrong", [[1.0], [[1.0, 2.0]], 1.0, None], ids=["fewer", "a table", "a number", "nothing"])
def test_losses_that_are_not_one_a_record_leave_the_answer_to_chance(wrong):
    rows = iter([[1.0, 2.0], wrong, [1.0, 2.0]])
    polling = Polling(download, lambda weights, between_batches: next(rows), go_on)
    assert polling.of(REFERENCES) == []
    assert isinstance(polling.failure, EvaluationFailed)
    assert next(rows, None) is None, "all models are looked at, whichever failed"


@pytest.mark.parametrize("error", [ModelMismatch("not mine"), InvalidSettings("not so")])
def test_votes_about_a_model_of_another_app_are_refused(error):
    def losses(weights, between_batches):
        raise error

    with pytest.raises(TaskRefused) as refusal:
        Polling(download, losses, go_on).of(REFERENCES)
    assert refusal.value.reason is Reason.MODEL


@given(losses=st.lists(st.floats(), min_size=2, max_size=8))
def test_the_best_model_has_the_least_loss_and_nothing_raises(losses):
    found = [Evaluation(math.inf if math.isnan(loss) else loss, 0.0) for loss in losses]
    best = private_answer(examples.QUESTION, found)
    assert found[int(best)].loss == min(each.loss for each in found)
    assert best == min(place for place, each in enumerate(found) if each.loss == found[int(best)].loss)


def test_a_loss_that_is_no_number_is_the_worst():
    losses = iter([math.nan, 3.0, math.nan])
    found = Evaluating(download, lambda weights, between_batches: Evaluation(next(losses), 0.5), go_on).of(REFERENCES)
    assert private_answer(examples.QUESTION, found) == 1
    assert private_answer(examples.LOSS_QUESTION, found) == math.inf


def test_each_kind_tells_what_it_is_about():
    assert examples.LOSS_QUESTION.kind is QuestionKind.LOSS
    assert private_answer(examples.LOSS_QUESTION, [GOOD]) == 0.5
    assert private_answer(examples.ACCURACY_QUESTION, [GOOD]) == 0.75
