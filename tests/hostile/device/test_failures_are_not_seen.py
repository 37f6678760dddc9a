"""A device whose data make the app's code fail looks, to the server, like any other.

Attack: give one of two devices a record that makes its app raise, in any way, and compare what reaches the server: the
kinds of messages, their sizes, their order, and whether the device is still there.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import nn

from device_sdk.failures import Failures
from device_sdk.trainers import Evaluation, NumpyTrainer, TorchTrainer, TrainerError, TrainingStopped
from device_sdk.trainers.protocol import go_on
from device_sdk.trainers.task_in_hand import TaskInHand
from device_sdk.wire.messages import ChoiceBy, LocalObjective, QuestionKind
from privacy import PrivacyBudget, PrivacyUnit
from tests.device_sdk.runtime.asking import MODELS
from tests.device_sdk.runtime.federation import RECORD_LEVEL, check_reconciled
from tests.device_sdk.runtime.trainers import INPUTS, LABELS
from tests.hostile.device.witness import witnessed

pytestmark = pytest.mark.integration

ROUNDS = 3
RECORD_BUDGET = PrivacyBudget(epsilon=8, delta=1e-6, training=PrivacyUnit.RECORD)
RECORD = {"terms": RECORD_LEVEL, "objective": LocalObjective(0.5, 10, steps=2)}


class PastException(BaseException):
    """What a library raises that thinks itself important."""


def raising(error):
    def fails(*_):
        raise error

    return fails


ODD = {
    "raises": raising(ValueError("record 17 holds 424242")),
    "runs out of memory": raising(MemoryError()),
    "raises past every except": raising(PastException()),
    "stops by itself": raising(TrainingStopped("one record was enough")),
    "nothing": lambda *_: None,
    "a word": lambda *_: "trained",
    "another shape": lambda weights, *_: {name: np.zeros(7, np.float32) for name in weights},
    "no numbers": lambda weights, *_: {name: np.full(part.shape, np.nan) for name, part in weights.items()},
    "texts": lambda weights, *_: {name: np.full(part.shape, "x") for name, part in weights.items()},
}
"""What an app may do instead of what is expected, whatever it was asked for."""


class Odd(NumpyTrainer):
    """An app that fails, in training, in handing out its records, and in evaluating."""

    def __init__(self, way, *, late=False):
        super().__init__(INPUTS, LABELS)
        self._way, self._late = way, late

    def train(self, weights, settings, between_batches=go_on):
        between_batches()
        return self._way(weights)

    def training_data(self, weights, between_batches=go_on):
        if self._late:  # inside the mechanism, after the spend was made
            data = super().training_data(weights, between_batches)
            object.__setattr__(data, "factors", self._way)
            return data
        return self._way(weights)

    def evaluate(self, weights, between_batches=go_on):
        return self._way(weights)

    def record_losses(self, weights, between_batches=go_on):
        return self._way(weights)


def ordinary():
    return NumpyTrainer(INPUTS, LABELS)


class Items:
    """Records of one size, but for one that was scanned in another."""

    def __init__(self, *, odd):
        self._odd = odd

    def __len__(self):
        return len(LABELS)

    def __getitem__(self, number):
        if self._odd and number == 7:
            return torch.zeros(1), 1
        return torch.from_numpy(INPUTS[number]), int(LABELS[number])


def torch_trainer(dataset):
    model = nn.Sequential()
    model.add_module("dense1", nn.Linear(2, 3))
    return TorchTrainer(model, nn.CrossEntropyLoss(), dataset)


def with_an_unknown_label():
    labels = LABELS.copy()
    labels[7] = 3
    return INPUTS, labels


def sights(home, trainer, *, is_odd=None, budget=None, asked=None, answers=ROUNDS, **settings):
    """What a server sees of a device that trains for some rounds, or answers questions."""
    rounds = 0 if asked else ROUNDS
    with witnessed(home, rounds=rounds, **settings) as witness:
        witness.asking.asked = [dict(question) for question in asked or ()]
        policy = {"questions": {"loss": True}} | ({} if budget is None else {"budget": budget})
        device = witness.federation.enrolled(home, **policy)
        try:
            seen = witness.sees(device, trainer, answers)
            failures = device.failures
        finally:
            with suppress(TrainerError):
                device.close()
        if is_odd is not None:
            assert bool(failures) is is_odd
            assert witness.ended_by is None
        if asked is None:
            check_reconciled(witness.federation, home / "state")
        return seen


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """What is seen of ordinary devices, by name; each is looked at once."""
    known = {}

    def of(name, trainer, **settings):
        if name not in known:
            known[name] = sights(tmp_path_factory.mktemp(name) / "home", trainer, is_odd=False, **settings)
            assert known[name][-1] == ("still there",)
            assert ("decline",) not in [sight[:1] for sight in known[name]]
        return known[name]

    return of


@pytest.mark.parametrize("way", ODD.values(), ids=ODD)
def test_training_at_device_level(usual, tmp_path, way):
    is_odd = way is not ODD["no numbers"]  # such an update is released as zero, without a failure
    assert sights(tmp_path / "odd", Odd(way), is_odd=is_odd) == usual("device", ordinary())


@pytest.mark.parametrize("way", ODD.values(), ids=ODD)
def test_training_at_record_level(usual, tmp_path, way):
    level = {"budget": RECORD_BUDGET, **RECORD}
    assert sights(tmp_path / "odd", Odd(way), is_odd=True, **level) == usual("record", ordinary(), **level)


@pytest.mark.parametrize("way", ["raises", "runs out of memory", "stops by itself"])
def test_training_at_record_level_inside_the_mechanism(usual, tmp_path, way):
    level = {"budget": RECORD_BUDGET, **RECORD}
    assert sights(tmp_path / "odd", Odd(ODD[way], late=True), **level) == usual("record", ordinary(), **level)


def test_a_record_that_torch_cannot_read_or_does_not_know(usual, tmp_path):
    level = {"budget": RECORD_BUDGET, **RECORD}
    at_record_level = usual("torch record", torch_trainer(Items(odd=False)), **level)
    assert sights(tmp_path / "odd record", torch_trainer(Items(odd=True)), **level) == at_record_level
    at_device_level = usual("torch device", torch_trainer((INPUTS, LABELS)))
    odd = torch_trainer(with_an_unknown_label())
    assert sights(tmp_path / "odd device", odd, is_odd=True) == at_device_level


class FoundUnreadable(NumpyTrainer):
    """One that has met a record which it could not read."""

    unreadable_records = True


def test_records_that_count_as_nothing_are_told_to_the_app_alone(usual, tmp_path):
    level = {"budget": RECORD_BUDGET, **RECORD}
    odd = FoundUnreadable(INPUTS, LABELS)
    assert sights(tmp_path / "odd", odd, is_odd=True, **level) == usual("record", ordinary(), **level)


QUESTIONS = {
    "choice": {"models": MODELS},
    "accuracy": {"models": MODELS[:1]},
    "loss": {"models": MODELS[:1], "kind": QuestionKind.LOSS, "loss_bound": 4.0},
    "votes": {"models": MODELS, "choice_by": ChoiceBy.VOTES},
}


@pytest.mark.parametrize("way", list(ODD)[:5])
@pytest.mark.parametrize("question", QUESTIONS)
def test_questions(usual, tmp_path, question, way):
    asked = {"asked": [QUESTIONS[question]] * 2, "answers": 2, "budget": RECORD_BUDGET}
    odd = sights(tmp_path / "odd", Odd(ODD[way]), is_odd=True, **asked)
    assert odd == usual(f"question {question}", ordinary(), **asked)


def test_an_evaluation_that_answers_nonsense_is_answered_for(usual, tmp_path):
    asked = {"asked": [QUESTIONS["accuracy"]] * 2, "answers": 2, "budget": RECORD_BUDGET}
    odd = Odd(lambda *_: Evaluation(float("nan"), float("inf")))
    assert sights(tmp_path / "odd", odd, **asked) == usual("question accuracy", ordinary(), **asked)


def end_the_run(self, failure):
    """A broken twin: the app is told at once, by an error that ends its run."""
    raise failure


def keep_silent(self, error):
    """A broken twin: what cannot be trained is not answered."""
    self.decline()


@pytest.mark.parametrize(
    ("broken", "settings"),
    [
        ((Failures, "note", end_the_run), {}),
        ((TaskInHand, "give_nothing", keep_silent), {}),
        ((TaskInHand, "give_nothing", keep_silent), {"budget": RECORD_BUDGET, **RECORD}),
        ((Failures, "note", end_the_run), {"asked": [QUESTIONS["choice"]], "answers": 1}),
    ],
    ids=["ends the run", "is silent", "is silent at record level", "ends the run at a question"],
)
def test_a_device_that_shows_its_failures_is_caught(tmp_path, monkeypatch, broken, settings):
    honest = sights(tmp_path / "honest", ordinary(), **settings)
    monkeypatch.setattr(*broken)
    assert sights(tmp_path / "odd", Odd(ODD["raises"]), **settings) != honest
