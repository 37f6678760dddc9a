"""A device that goes on checks in with the update that it hands in, and on its stream wherever that was not heard."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from device_sdk.conditions import Conditions
from device_sdk.trainers import LocalUpdate
from tests.device_sdk.runtime.federation import check_reconciled, no_weights

pytestmark = pytest.mark.integration


class Idler:
    has_trained = False

    def train(self, weights, settings, between_batches):
        self.has_trained = True
        return LocalUpdate({name: np.zeros_like(part) for name, part in weights.items()})


@pytest.fixture
def federation(begin):
    return begin(no_weights(4, 3), with_feedback=False)


@pytest.fixture
def heard(federation, monkeypatch):
    """The check-ins that came with updates, as a server that hears them notes them, and pushes the next task."""
    heard, gateway = [], federation.server.gateway

    class Hearing:
        def waits(self, device, check_in):
            heard.append(check_in)
            gateway.push(device, federation.answer(device, check_in))
            return True

    _listen(monkeypatch, gateway, Hearing())
    return heard


def _listen(monkeypatch, gateway, hearing):
    """Let a gateway without a `Prompt` have one for check-ins alone, as if every update were a large one."""
    monkeypatch.setattr("server_kit.daemon.transfers._SMALL_BYTES", -1)
    object.__setattr__(gateway._transfers, "prompt", hearing)


def test_one_check_in_on_the_stream_is_enough_for_all_rounds(federation, heard, tmp_path):
    with federation.enrolled(tmp_path) as device:
        assert device.run(Idler(), rounds=3, timeout_seconds=60) == 3
    assert len(federation.server.desk.check_ins) == 1
    assert len(heard) == 2  # nothing is wanted after the last
    check_reconciled(federation, tmp_path / "state")


def test_an_app_with_a_loop_of_its_own_checks_in_when_it_asks_for_more(federation, heard, tmp_path):
    with federation.enrolled(tmp_path) as device:
        for task in device.tasks(rounds=2, timeout_seconds=60):
            task.submit({name: np.zeros_like(part) for name, part in task.weights.items()})
    assert heard == []
    assert len(federation.server.desk.check_ins) == 2


def test_a_device_whose_conditions_do_not_hold_does_not_check_in(federation, heard, tmp_path):
    trainer = Idler()
    conditions = Conditions(charging=lambda: not trainer.has_trained)
    with federation.enrolled(tmp_path, conditions=conditions) as device:
        run = device.start(trainer, rounds=3)
        federation.server.desk.wait_for(lambda desk: "gone" in desk.story)
        assert run.stop(20)
    assert heard == []
    assert len(federation.updates) == 1


def test_a_server_that_claims_to_have_heard_what_was_not_said_is_told_again(federation, tmp_path):
    honest = federation.server.desk.accept
    federation.server.desk.accept = lambda *sent: replace(honest(*sent), checked_in=True)
    with federation.enrolled(tmp_path) as device:
        for task in device.tasks(rounds=2, timeout_seconds=60):
            task.submit({name: np.zeros_like(part) for name, part in task.weights.items()})
    assert len(federation.server.desk.check_ins) == 2


def test_an_older_server_is_told_on_the_stream(federation, tmp_path):
    with federation.enrolled(tmp_path) as device:
        assert device.run(Idler(), rounds=3, timeout_seconds=60) == 3
    assert len(federation.server.desk.check_ins) == 3
    check_reconciled(federation, tmp_path / "state")
