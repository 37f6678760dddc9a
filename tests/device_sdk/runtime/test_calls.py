"""Calls can be stopped, timed and left to the background; one at a time works for a device."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

from device_sdk.conditions import Conditions
from device_sdk.config import ConditionSettings
from device_sdk.device import Device
from device_sdk.errors import AlreadyEnrolled, DeviceBusy, NotEnrolled
from device_sdk.identity import Standing
from device_sdk.wire.errors import DeadlinePassed, InvalidInvitation
from device_sdk.wire.invitation import Address, Invitation
from device_sdk.wire.messages import DeclineReason
from privacy.errors import InvalidTerms
from privacy.ledger.entries import Reserved
from tests.device_sdk.runtime.federation import (
    check_reconciled,
    entries_of,
)
from tests.device_sdk.runtime.trainers import LABELS, Slow, trainer

pytestmark = pytest.mark.integration


def test_a_run_in_the_background_is_stopped_from_outside_and_its_task_is_done_by_the_next(begin, tmp_path):
    federation = begin(rounds=1)
    slow = Slow()
    with federation.enrolled(tmp_path) as device:
        run = device.start(slow)
        assert slow.begun.wait(20)
        assert run.stop(20)
        assert (run.error, run.updates_sent) == (None, 0)
        assert device.status().rounds == {"accepted": 1}
        assert device.run(trainer(), rounds=1, timeout_seconds=30) == 1
    assert federation.server.desk.declines == []
    check_reconciled(federation, tmp_path / "state")


def test_a_run_ends_when_its_time_is_over(begin, tmp_path):
    federation = begin(rounds=0)
    with federation.enrolled(tmp_path) as device:
        assert device.run(trainer(), timeout_seconds=0.5) == 0


def test_a_call_that_owes_an_answer_says_that_its_time_is_over(begin, tmp_path):
    federation = begin()
    with federation.enrolled(tmp_path) as device:
        federation.server.stop_gateway()
        with pytest.raises(DeadlinePassed):
            device.share_label_histogram(LABELS, num_labels=3, epsilon=0.5, timeout_seconds=1.0)
        assert device.status().rounds == {"released": 1}
        federation.server.restart_gateway()
        assert device.share_label_histogram(LABELS, num_labels=3, epsilon=0.5, timeout_seconds=30)
    check_reconciled(federation, tmp_path / "state")


def test_closing_ends_what_runs_in_the_background(begin, tmp_path):
    federation = begin(rounds=1)
    slow = Slow()
    with federation.enrolled(tmp_path) as device:
        run = device.start(slow)
        assert slow.begun.wait(20)
    assert run.wait(0)
    assert run.error is None


def test_a_run_that_has_hardly_begun_is_stopped_all_the_same(begin, tmp_path):
    federation = begin(rounds=0)
    with federation.enrolled(tmp_path) as device:
        for _ in range(5):
            assert device.start(trainer()).stop(20)


def test_one_call_at_a_time_works_for_a_device(begin, tmp_path):
    federation = begin(rounds=1)
    slow = Slow()
    with federation.enrolled(tmp_path) as device:
        run = device.start(slow)
        assert slow.begun.wait(20)
        with pytest.raises(DeviceBusy):
            device.run(trainer())
        assert device.status().rounds == {"accepted": 1}
        run.stop(20)


def test_training_waits_until_its_conditions_hold(begin, tmp_path):
    federation = begin(rounds=1)
    plugged_in, asked = threading.Event(), threading.Event()

    def charging():
        asked.set()
        return plugged_in.is_set()

    federation.enrolled(tmp_path).close()
    config = replace(federation.config(tmp_path), conditions=ConditionSettings(ask_every_seconds=0.05))
    with Device.of(config, conditions=Conditions(charging=charging)) as device:
        run = device.start(trainer(), rounds=1)
        assert asked.wait(20)
        assert not run.wait(0.2)
        assert federation.server.desk.check_ins == []
        plugged_in.set()
        assert run.wait(30)
        assert (run.error, run.updates_sent) == (None, 1)


def test_enrolling_twice_and_with_another_servers_invitation_is_refused(begin, tmp_path):
    federation = begin()
    with federation.enrolled(tmp_path) as device, pytest.raises(AlreadyEnrolled):
        device.enrol(federation.server.invitation().to_text())
    elsewhere = Invitation(Address("elsewhere.example.com", 8443), bytes(32), bytes(32)).to_text()
    with federation.open(tmp_path / "other") as device, pytest.raises(InvalidInvitation, match=r"elsewhere\.example"):
        device.enrol(elsewhere)


@pytest.mark.parametrize("subject", ["", "x" * 201, "two\nlines"])
def test_a_subject_that_could_not_be_sent_is_refused_before_it_is_paid_for(begin, tmp_path, subject):
    federation = begin()
    with federation.enrolled(tmp_path) as device:
        with pytest.raises(InvalidTerms, match="subject"):
            device.share_label_histogram(LABELS, num_labels=3, epsilon=0.5, subject=subject)
        assert device.status().ledger.sequence == 0


def test_keys_are_rotated_in_between_and_the_device_goes_on(begin, tmp_path):
    federation = begin(rounds=2)
    with federation.enrolled(tmp_path) as device:
        device.run(trainer(), rounds=1, timeout_seconds=30)
        before = (tmp_path / "device.key").read_bytes()
        device.rotate_keys()
        assert (tmp_path / "device.key").read_bytes() != before
        assert device.run(trainer(), rounds=1, timeout_seconds=30) == 1
    with federation.open(tmp_path) as device:
        assert device.status().standing is Standing.ENROLLED


def test_a_device_that_is_not_enrolled_says_so(begin, tmp_path):
    federation = begin()
    with federation.open(tmp_path) as device:
        for call in (lambda: device.run(trainer()), lambda: next(device.tasks()), device.leave):
            with pytest.raises(NotEnrolled):
                call()


def test_leaving_and_coming_back_does_not_refund_anything(begin, tmp_path):
    federation = begin(rounds=2)
    with federation.enrolled(tmp_path) as device:
        device.run(trainer(), rounds=1, timeout_seconds=30)
        spent = device.status().ledger.spent
        device.leave()
        assert device.status().ledger.spent == spent
        device.enrol(federation.server.invitation().to_text())
        device.run(trainer(), rounds=1, timeout_seconds=30)
        assert device.status().ledger.spent == spent + spent


def test_a_task_that_the_app_leaves_aside_is_declined(begin, tmp_path):
    federation = begin(rounds=2)
    seen = []
    with federation.enrolled(tmp_path) as device:
        for task in device.tasks(timeout_seconds=30):
            seen.append(task.round)
            if len(seen) == 2:
                device.stop()
    assert seen == [1, 2]
    assert {decline.reason for _, decline in federation.server.desk.declines} == {DeclineReason.NOT_NOW}
    assert federation.updates == []


def test_an_update_of_another_shape_is_refused_before_anything_is_booked(begin, tmp_path):
    federation = begin(rounds=1)
    with federation.enrolled(tmp_path) as device:
        for task in device.tasks(rounds=1, timeout_seconds=30):
            with pytest.raises(InvalidTerms):
                task.submit({"dense1.weight": np.zeros((2, 3), np.float32)})
            assert not [event for event in entries_of(tmp_path / "state") if isinstance(event, Reserved)]
            task.submit(task.weights)
    assert len(federation.updates) == 1
