"""The whole way over real certificates and real gRPC: enrol, share, train, learn, leave; and the ledger agrees."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from sklearn.datasets import load_digits
from torch import nn

from device_sdk.errors import NotEnrolled
from device_sdk.identity import Standing
from device_sdk.trainers import LocalUpdate, NumpyTrainer, TorchTrainer, TrainingSettings
from device_sdk.wire.messages import LocalObjective, SummaryHeader
from privacy import LabelHistogram, PrivacyBudget, PrivacyUnit
from privacy.ledger.entries import Reserved
from tests.device_sdk.runtime.federation import OBJECTIVE, RECORD_LEVEL, check_reconciled, entries_of, no_weights

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def digits():
    inputs, labels = load_digits(return_X_y=True)
    return (inputs[:400] / 16).astype(np.float32), labels[:400]


def softmax_module():
    model = nn.Sequential()
    model.add_module("dense1", nn.Linear(64, 10))
    return model


def test_a_device_without_torch_takes_part_from_enrolment_to_leaving(begin, tmp_path, digits):
    federation = begin(no_weights(64, 10))
    with federation.enrolled(tmp_path) as device:
        assert device.share_label_histogram(digits[1], num_labels=10, epsilon=0.5, timeout_seconds=30)
        assert device.run(NumpyTrainer(*digits), rounds=3, timeout_seconds=60) == 3
        status = device.status()
        assert (status.standing, status.rounds) == (Standing.ENROLLED, {})
        check_reconciled(federation, tmp_path / "state")
        device.leave()
        assert device.status().standing is Standing.NEW
        with pytest.raises(NotEnrolled):
            device.run(NumpyTrainer(*digits))
    federation.server.desk.wait_for(lambda desk: (status.device, True) in desk.departures)
    assert [header.round for header, _ in federation.updates] == [1, 2, 3]
    assert len(entries_of(tmp_path / "state")) == 9  # the opening, and four times a spend and a release


def test_a_device_with_torch_trains_with_record_level_privacy(begin, tmp_path, digits):
    objective = LocalObjective(learning_rate=0.5, batch_size=20, steps=5)
    federation = begin(no_weights(64, 10), terms=RECORD_LEVEL, objective=objective)
    budget = PrivacyBudget(epsilon=8, delta=1e-6, training=PrivacyUnit.RECORD)
    trainer = TorchTrainer(softmax_module(), nn.CrossEntropyLoss(), digits)
    with federation.enrolled(tmp_path, budget=budget) as device:
        assert device.run(trainer, rounds=3, timeout_seconds=120) == 3
    check_reconciled(federation, tmp_path / "state")
    spends = [event for event in entries_of(tmp_path / "state") if isinstance(event, Reserved)]
    assert [spend.cost.sampled.steps for spend in spends if spend.cost.sampled] == [5, 5, 5]


def test_the_server_reads_what_the_device_meant(begin, tmp_path, digits):
    federation = begin(no_weights(64, 10), rounds=1)
    exact = NumpyTrainer(*digits).train(federation.weights, TrainingSettings(0.5, batch_size=1000)).update
    trainer = Fixed(exact)
    with federation.enrolled(tmp_path) as device:
        device.run(trainer, rounds=1, timeout_seconds=60)
    noised = np.concatenate([federation.weights[name].ravel() for name in sorted(exact)])
    clipped = np.concatenate([exact[name].ravel() for name in sorted(exact)])
    clipped /= max(1.0, float(np.linalg.norm(clipped)))
    # Noise of standard deviation 8 on each of 650 coordinates.
    assert 6 < np.std(noised - clipped) < 10


def test_a_histogram_is_sent_and_paid_for_once(begin, tmp_path, digits):
    federation = begin(no_weights(64, 10))
    with federation.enrolled(tmp_path) as device:
        shared = [device.share_label_histogram(digits[1], num_labels=10, epsilon=0.5) for _ in range(3)]
        assert shared == [True, False, False]
        assert device.share_feature_histogram(
            digits[0], digits[1], num_labels=10, num_bins=4, epsilon=0.5, features_per_record=64
        )
    check_reconciled(federation, tmp_path / "state")
    _, header, payload = federation.server.desk.accepted[0]
    assert isinstance(header, SummaryHeader)
    terms = {term.name: term.value for term in header.terms}
    assert terms == LabelHistogram(10, 0.5).terms
    counts = np.array(LabelHistogram(10, 0.5).decode(payload))
    assert np.abs(counts - np.bincount(digits[1], minlength=10)).max() < 100


def test_a_histogram_that_only_the_ledger_remembers_is_not_paid_for_again(begin, tmp_path, digits, monkeypatch):
    monkeypatch.setattr("device_sdk.state.MOST_REMEMBERED", 1)
    federation = begin(no_weights(64, 10))
    with federation.enrolled(tmp_path) as device:
        share = partial(device.share_label_histogram, digits[1], num_labels=10, epsilon=0.5)
        assert [share(subject="first"), share(subject="second"), share(subject="first")] == [True, True, False]
        assert device.status().ledger.spent.pure_micro_epsilon == 1_000_000
    check_reconciled(federation, tmp_path / "state")
    assert len(federation.server.desk.accepted) == 2


def test_an_app_may_have_a_training_loop_of_its_own(begin, tmp_path, digits):
    federation = begin(no_weights(64, 10))
    with federation.enrolled(tmp_path) as device:
        rounds = []
        for task in device.tasks(rounds=2, timeout_seconds=60):
            assert set(task.weights) == {"dense1.weight", "dense1.bias"}
            assert task.settings.batch_size == OBJECTIVE.batch_size
            rounds.append(task.round)
            task.submit({name: np.ones_like(part) for name, part in task.weights.items()})
        assert rounds == [1, 2]
    check_reconciled(federation, tmp_path / "state")


def test_halves_are_sent_side_by_side_and_add_up(begin, tmp_path, digits):
    federation = begin(no_weights(64, 10), rounds=1, objective=replace(OBJECTIVE, halves=True))
    with federation.enrolled(tmp_path) as device:
        assert device.run(NumpyTrainer(*digits), rounds=1, timeout_seconds=60) == 1
    header, payload = federation.updates[0]
    assert header.encoding.count == 2 * 650
    assert len(payload) == header.encoding.size_bytes


def test_feedback_lands_in_the_record_and_leads_the_next_request(begin, tmp_path, digits):
    federation = begin(no_weights(64, 10))
    with federation.enrolled(tmp_path, exploration={"first": 0.0, "least": 0.0}) as device:
        for _ in range(2):
            device.run(NumpyTrainer(*digits), rounds=1, timeout_seconds=60)  # ends when its feedback is there
    (_, first), (_, second) = federation.server.desk.check_ins
    assert second.affinity.cohort == first.affinity.cohort
    assert second.affinity.reward == pytest.approx(0.2 * 0.5)
    assert second.affinity.evidence.round == 1


class Fixed:
    """A trainer that always learns the same."""

    def __init__(self, update):
        self._update = update

    def train(self, weights, settings, between_batches):
        return LocalUpdate(self._update)
