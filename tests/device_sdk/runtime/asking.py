"""A federation that asks questions about models: some at the first check-in, and whatever a test pushes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from device_sdk.trainers import Evaluation
from device_sdk.wire.messages import ModelReference, Question, QuestionKind, SummaryHeader
from device_sdk.wire.question_terms import read_answer
from device_sdk.wire.tensors import blob_of, model_bytes, model_specs
from privacy import PrivacyBudget
from privacy.ledger.entries import Released, Reserved
from tests.device_sdk.runtime.federation import Federation, Weights, entries_of

WIDE_BUDGET = PrivacyBudget(epsilon=1000, delta=1e-6, pure_epsilon=900)
"""For answers that are as good as certain."""


def voting_for(label: int) -> Weights:
    """A model for two features and three labels that sees one label everywhere."""
    return {"dense1.weight": np.zeros((3, 2), np.float32), "dense1.bias": np.eye(3, dtype=np.float32)[label] * 3}


MODELS = [voting_for(label) for label in range(3)]
CHOICE: dict[str, Any] = {"models": MODELS}


@dataclass
class Asking:
    """Asks each of `asked` once, when the device first checks in; has no tasks unless the federation has."""

    federation: Federation
    asked: list[dict[str, Any]]
    questions: dict[str, Question] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._tasks = self.federation.answer
        self.federation.server.desk.answer = self._answer

    def ask(self, device: str, models: list[Weights], **fields: Any) -> Question:
        """Push a question; its models can be downloaded."""
        references = []
        for weights in models:
            body = model_bytes(weights)
            self.federation.server.desk.blobs[blob_of(body).sha256] = body
            references.append(ModelReference(1, blob_of(body), model_specs(weights)))
        given: dict[str, Any] = {
            "question": f"q-{len(self.questions) + 1}",
            "device": device,
            "kind": QuestionKind.BEST_MODEL if len(models) > 1 else QuestionKind.ACCURACY,
            "epsilon": "1/2",
            "deadline_seconds": 600.0,
        }
        question = Question(models=tuple(references), **(given | fields))
        self.questions[question.question] = question
        self.federation.server.gateway.push(device, question)
        return question

    @property
    def answers(self) -> list[tuple[str, int | float]]:
        """The answers that were counted, by question, in the order of arrival."""
        summaries = [
            (header, payload)
            for _, header, payload in self.federation.server.desk.accepted
            if isinstance(header, SummaryHeader) and header.subject in self.questions
        ]
        return [
            (header.subject, read_answer(self.questions[header.subject], header, payload))
            for header, payload in summaries
        ]

    @property
    def declines(self) -> list[tuple[str, Any]]:
        return [(decline.task, decline.reason) for _, decline in self.federation.server.desk.declines]

    def check_reconciled(self, state: Path) -> None:
        """What was booked, released and counted is the same, in the same order; two choices may be equal bytes."""
        events = entries_of(state)
        released = [event.payload_hash for event in events if isinstance(event, Released)]
        counted = [hashlib.sha256(payload).hexdigest() for _, _, payload in self.federation.server.desk.accepted]
        assert released == counted
        assert len(released) == sum(isinstance(event, Reserved) for event in events)

    def _answer(self, device: str, check_in: Any) -> Any:
        while self.asked:
            self.ask(device, **self.asked.pop(0))
        return self._tasks(device, check_in) if self.federation.rounds else None


def answered(number: int) -> Callable[[Any], bool]:
    """Whether the server has counted so many releases."""
    return lambda desk: len(desk.accepted) >= number


class Evaluates:
    """A trainer that never trains, and evaluates as a test tells it to."""

    def __init__(self, evaluate):
        self._evaluate = evaluate

    def train(self, weights, settings, between_batches):
        raise AssertionError("nothing was to be trained")

    def evaluate(self, weights, between_batches):
        return self._evaluate(weights, between_batches)


def like_the_second(weights, between_batches=None):
    return Evaluation(float(np.argmax(weights["dense1.bias"]) != 1), 0.5)
