"""What goes wrong on the way costs time: a lost line, a late task, a failing app, a certificate that ends."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from torch import nn

from device_sdk.errors import VaultUnavailable
from device_sdk.trainers import LocalUpdate, TorchTrainer, TrainingFailed
from device_sdk.wire.errors import Refused
from device_sdk.wire.messages import DeclineReason, ErrorCode, LocalObjective
from device_sdk.wire.task_terms import mechanism_of
from privacy import PrivacyBudget, PrivacyUnit
from privacy.errors import UnsupportedModel
from privacy.ledger.entries import Released
from server_kit.daemon.gateway import GatewaySettings
from tests.device_sdk.runtime.federation import (
    RECORD_LEVEL,
    check_reconciled,
    entries_of,
)
from tests.device_sdk.runtime.trainers import INPUTS, LABELS, Raises, Slow, run_until, trainer

pytestmark = pytest.mark.integration


def test_training_that_raises_is_answered_with_a_noised_zero_and_told_to_the_app_alone(begin, tmp_path):
    federation = begin(rounds=2)
    device = federation.enrolled(tmp_path)
    assert device.run(Raises(), rounds=2, timeout_seconds=30) == 2
    assert device.failures == {"TrainingFailed": 2}
    with pytest.raises(TrainingFailed, match="ValueError") as failure:
        device.close()
    assert "424242" not in str(failure.value)
    assert isinstance(failure.value.__cause__, ValueError)
    assert failure.value.__notes__ == ["there were more failures of the app's code or data: 2 TrainingFailed in all"]
    device.close()  # what was told is not told again
    (header, payload) = federation.updates[0]
    update = mechanism_of(federation.tasks[header.task]).decode(payload)
    assert any((part != 0).any() for part in update.values())
    assert federation.server.desk.declines == []
    check_reconciled(federation, tmp_path / "state")


def test_a_connection_that_is_lost_while_training_costs_time_alone(begin, tmp_path, monkeypatch):
    monkeypatch.setattr("device_sdk.runtime.FEEDBACK_PATIENCE_SECONDS", 0.5)  # that of the first round is lost
    federation = begin(rounds=2)

    class CutsTheLine:
        def __init__(self):
            self.cuts = 0

        def train(self, weights, settings, between_batches):
            if not self.cuts:
                self.cuts += 1
                federation.server.restart_gateway()
            return LocalUpdate({name: np.ones_like(part) for name, part in weights.items()})

    with federation.enrolled(tmp_path) as device:
        assert device.run(CutsTheLine(), rounds=2, timeout_seconds=60) == 2
    assert [header.task for header, _ in federation.updates] == ["task-1", "task-2"]
    check_reconciled(federation, tmp_path / "state")


@pytest.mark.parametrize(("says_when_final", "patience_seconds"), [(True, 600.0), (False, 0.5)])
def test_a_device_that_has_done_its_rounds_waits_only_for_what_may_come(
    begin, tmp_path, monkeypatch, says_when_final, patience_seconds
):
    monkeypatch.setattr("device_sdk.runtime.FEEDBACK_PATIENCE_SECONDS", patience_seconds)
    federation = begin(rounds=1, with_feedback=False, says_when_final=says_when_final)
    with federation.enrolled(tmp_path) as device:
        assert device.run(trainer(), rounds=1, timeout_seconds=60) == 1


def test_a_device_that_is_not_told_waits_for_feedback_in_vain(begin, tmp_path, monkeypatch):
    monkeypatch.setattr("device_sdk.runtime.FEEDBACK_PATIENCE_SECONDS", 600.0)
    federation = begin(rounds=1, with_feedback=False, says_when_final=False)
    with federation.enrolled(tmp_path) as device:
        began = time.monotonic()
        assert device.run(trainer(), rounds=1, timeout_seconds=5) == 1
        assert time.monotonic() - began >= 5


def test_a_certificate_is_renewed_while_training(begin, tmp_path):
    # Certificates begin ten minutes before they are issued, so two thirds of this one's life are over at once.
    gateway = GatewaySettings(certificate_lifetime=timedelta(days=1))
    federation = begin(rounds=1, gateway=gateway)
    with federation.open(tmp_path) as device:
        honest, short = federation.server.authority.issue_device, timedelta(minutes=4)
        federation.server.authority.issue_device = lambda request, name, _=None: honest(request, name, short)
        device.enrol(federation.server.invitation().to_text())
        federation.server.authority.issue_device = honest
        before = device._identity().enrolled.certificate
        assert device.run(trainer(), rounds=1, timeout_seconds=30) == 1
        assert device._identity().enrolled.certificate != before
    check_reconciled(federation, tmp_path / "state")


def test_a_late_task_is_given_up_after_a_restart(begin, tmp_path):
    federation = begin(rounds=1)
    federation.altered = lambda task: replace(task, deadline_seconds=1.0)
    slow = Slow()
    with federation.enrolled(tmp_path) as device:
        run = device.start(slow)
        assert slow.begun.wait(20)
        run.stop(20)
        time.sleep(1.1)
        run_until(device, federation, lambda desk: desk.declines, trainer())
        assert device.status().rounds == {}
    assert [decline.reason for _, decline in federation.server.desk.declines] == [DeclineReason.NOT_NOW]
    assert not [event for event in entries_of(tmp_path / "state") if isinstance(event, Released)]


def test_a_model_that_is_gone_gives_its_task_up(begin, tmp_path):
    federation = begin(rounds=1)

    def without_its_model(task):
        federation.server.desk.blobs.clear()
        return task

    federation.altered = without_its_model
    with federation.enrolled(tmp_path) as device:
        assert run_until(device, federation, lambda desk: desk.declines, trainer()) == 0
        assert device.status().rounds == {}


def test_a_summary_that_the_server_does_not_want_is_given_up_and_told(begin, tmp_path):
    federation = begin()

    def refuse(device, header):
        raise Refused(ErrorCode.NOT_ASKED, "not today")

    federation.server.desk.announce = refuse
    with federation.enrolled(tmp_path) as device:
        with pytest.raises(Refused, match="not today"):
            device.share_label_histogram(LABELS, num_labels=3, epsilon=0.5, timeout_seconds=30)
        assert device.status().rounds == {}


def test_an_update_that_is_no_longer_wanted_is_given_up_and_the_next_task_done(begin, tmp_path):
    federation = begin(rounds=2)
    honest = federation.server.desk.announce

    def refuse_the_first(device, header):
        if getattr(header, "task", "") == "task-1":
            federation.waiting.clear()
            raise Refused(ErrorCode.NOT_ASKED, "it is over")
        return honest(device, header)

    federation.server.desk.announce = refuse_the_first
    with federation.enrolled(tmp_path) as device:
        assert device.run(trainer(), rounds=1, timeout_seconds=30) == 1
        assert device.status().rounds == {}
    assert [header.task for header, _ in federation.updates] == ["task-2"]


def test_what_fails_between_batches_is_not_taken_for_a_failure_of_the_trainer(begin, tmp_path, monkeypatch):
    federation = begin(rounds=1)
    with federation.enrolled(tmp_path) as device:

        def broken(self):
            raise VaultUnavailable("the disk is full")

        monkeypatch.setattr("device_sdk.renewal.Renewal.renew_if_due", broken)
        monkeypatch.setattr("device_sdk.runtime.Runtime._received", lambda self, session, _: session.receive(20))
        with pytest.raises(VaultUnavailable):
            device.run(trainer(), timeout_seconds=30)
        monkeypatch.undo()
        assert device.status().rounds == {"accepted": 1}
        assert device.run(trainer(), rounds=1, timeout_seconds=30) == 1
    check_reconciled(federation, tmp_path / "state")


def test_a_model_that_cannot_be_clipped_by_records_is_declined_and_told_to_the_app(begin, tmp_path):
    model = nn.Sequential()
    model.add_module("dense1", nn.Linear(2, 3))
    model.add_module("norm", nn.BatchNorm1d(3, affine=False))
    objective = LocalObjective(0.5, 10, steps=2)
    federation = begin(rounds=1, terms=RECORD_LEVEL, objective=objective)
    budget = PrivacyBudget(epsilon=8, delta=1e-6, training=PrivacyUnit.RECORD)
    device = federation.enrolled(tmp_path, budget=budget)
    run_until(
        device,
        federation,
        lambda desk: desk.declines,
        TorchTrainer(model, nn.CrossEntropyLoss(), (INPUTS, LABELS)),
    )
    assert device.status().rounds == {}
    with pytest.raises(UnsupportedModel, match="BatchNorm1d"):
        device.close()
    assert len(entries_of(tmp_path / "state")) == 1


def test_a_summary_that_was_acknowledged_and_not_ended_is_ended_by_the_next_call(begin, tmp_path, monkeypatch):
    federation = begin()
    with federation.enrolled(tmp_path) as device:

        def killed(self, task):
            raise KeyboardInterrupt

        monkeypatch.setattr("device_sdk.state.RoundJournal.finish", killed)
        with pytest.raises(KeyboardInterrupt):
            device.share_label_histogram(LABELS, num_labels=3, epsilon=0.5)
        monkeypatch.undo()
        assert device.status().rounds == {"uploaded": 1}
        assert device.share_label_histogram(LABELS, num_labels=3, epsilon=0.5, timeout_seconds=20)
        assert device.status().rounds == {}
    check_reconciled(federation, tmp_path / "state")


def submit_whatever_happens(device):
    for task in device.tasks(timeout_seconds=20):
        with contextlib.suppress(Refused):
            task.submit(task.weights)


def test_what_was_noised_is_kept_though_the_app_swallows_an_error_in_sending_it(begin, tmp_path):
    federation = begin(rounds=1)
    honest = federation.server.desk.announce

    def refuse(device, header):
        raise Refused(ErrorCode.TOO_MANY_CALLS, "not now")

    federation.server.desk.announce = refuse
    with federation.enrolled(tmp_path) as device:
        with pytest.raises(Refused):
            submit_whatever_happens(device)
        assert device.status().rounds == {"released": 1}
        federation.server.desk.announce = honest
        assert device.run(trainer(), rounds=1, timeout_seconds=30) == 1
    assert federation.server.desk.declines == []
    check_reconciled(federation, tmp_path / "state")
