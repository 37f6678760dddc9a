"""Questions to the devices that are here, and their answers as they come in: choices, accuracies, losses.

An answer is a release like any other: noised on the device, paid from its budget, stored with its receipt. A device
may stay silent, so whoever asks waits for a while and goes on with what there is. The same question to the same device
is asked once: its name follows from what is asked, and an answer in the store stands.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_sdk.wire.errors import PayloadMismatch
from device_sdk.wire.messages import ChoiceBy, Question, QuestionKind, SummaryHeader, Term
from device_sdk.wire.question_terms import mechanism_of, read_answer
from device_sdk.wire.summary_terms import described
from privacy.budget import NeighbouringRelation
from server_kit.daemon.plausible import check_content
from server_kit.daemon.refusals import Misconduct

if TYPE_CHECKING:
    from device_sdk.wire.messages import DeviceId, ModelReference, ServerMessage
    from server_kit.store.protocol import Store, SummaryRecord

log = logging.getLogger("covey.server")

LOSS_BOUND = 8.0
"""A greater loss counts as this much; a guess among a thousand classes costs 7."""
_NAME_DIGITS = 32
_NAME = re.compile(rf"[0-9a-f]{{{_NAME_DIGITS}}}")


def is_name(text: str) -> bool:
    """Whether a question may be called so."""
    return _NAME.fullmatch(text) is not None


@dataclass(frozen=True)
class Asked:
    """What is asked of everyone."""

    kind: QuestionKind
    models: tuple[ModelReference, ...]
    epsilon: str
    loss_bound: float | None = None
    occasion: str = ""
    """Tells apart what would be the same question otherwise, such as the same models in another round."""
    choice_by: ChoiceBy = ChoiceBy.RESPONSE

    @property
    def name(self) -> str:
        """Of the question, the same for every device; it follows from what is asked."""
        bound = "" if self.loss_bound is None else repr(self.loss_bound)
        named = [
            self.kind.name if self.choice_by is ChoiceBy.RESPONSE else f"{self.kind.name} by {self.choice_by.name}",
            self.epsilon,
            bound,
            self.occasion,
            *(model.blob.sha256.hex() for model in self.models),
        ]
        return hashlib.sha256("\n".join(named).encode()).hexdigest()[:_NAME_DIGITS]

    @property
    def mechanism(self) -> str:
        """The name of the mechanism that answers."""
        return mechanism_of(self.to("", 1.0), NeighbouringRelation.REPLACE).name

    def to(self, device: DeviceId, deadline_seconds: float) -> Question:
        return Question(
            self.name,
            device,
            self.kind,
            self.models,
            self.epsilon,
            deadline_seconds,
            self.loss_bound,
            self.choice_by,
        )


def loss_of(model: ModelReference, epsilon: str) -> Asked:
    """How badly a model does, for strategies that want to know before a device trains it."""
    return Asked(QuestionKind.LOSS, (model,), epsilon, LOSS_BOUND)


class Questions:
    """Asks, and waits. `push` says whether a device is here to be asked."""

    def __init__(self, store: Store, push: Callable[[DeviceId, ServerMessage], bool]) -> None:
        self._store, self._push = store, push
        self._changed = threading.Condition()
        self._awaited: set[tuple[DeviceId, str]] = set()

    def settled(self, device: DeviceId, question: str) -> None:
        """A device has answered or declined; nobody need wait for it."""
        with self._changed:
            self._awaited.discard((device, question))
            self._changed.notify_all()

    def ask(self, devices: Sequence[DeviceId], asked: Asked, patience_seconds: float) -> Mapping[DeviceId, int | float]:
        """What these devices answer within the time; whoever does not is missing."""
        known = answers_to(self._store, asked, devices)
        open_questions = [(device, asked.to(device, patience_seconds)) for device in devices if device not in known]
        if not open_questions:
            return known
        with self._changed:
            # Before anyone is asked, for the first answer may come before the last question is out.
            self._awaited = {(device, asked.name) for device, _ in open_questions}
        for device, question in open_questions:
            if not self._push(device, question):
                self.settled(device, asked.name)
        self._wait(patience_seconds)
        return answers_to(self._store, asked, devices)

    def _wait(self, patience_seconds: float) -> None:
        until = time.monotonic() + patience_seconds
        with self._changed:
            while self._awaited and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            self._awaited.clear()


def answers_to(store: Store, asked: Asked, devices: Collection[DeviceId]) -> dict[DeviceId, int | float]:
    """What these devices have answered to a question so far."""
    wanted, answers = set(devices), {}
    for record in store.summaries(asked.mechanism, asked.name, on_unreadable=_tell):
        if record.device not in wanted:
            continue
        try:
            answer = read_answer(asked.to(record.device, 1.0), _header(record), record.payload)
            if (mechanism := described(record.mechanism, record.terms)) is not None:
                check_content(mechanism, record.payload)
            answers[record.device] = answer
        except (PayloadMismatch, Misconduct) as fault:
            log.warning("a stored answer was left out: %s", fault, extra={"device": record.device})
            store.count_refusal("answer to nothing", record.device, record.at_seconds)
    return answers


def _tell(device: DeviceId) -> None:
    log.warning("a stored answer was left out: it does not open", extra={"device": device})


def _header(record: SummaryRecord) -> SummaryHeader:
    """As much of an answer's header as its meaning depends on."""
    from device_sdk.wire.tensors import blob_of

    terms = tuple(Term(name, value) for name, value in record.terms.items())
    return SummaryHeader(record.mechanism, terms, record.subject, blob_of(record.payload), b"", 0, b"")
