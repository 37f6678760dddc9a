"""Rounds of the daemon's coordinator and workers on a store: what is accepted is folded once, whoever dies when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from device_sdk.wire.errors import Refused
from device_sdk.wire.messages import CohortsChanged, Feedback
from server_kit.daemon.gathering import Patience
from server_kit.store.protocol import FoldState, TaskState
from tests.server_kit.daemon.paper_server import PaperDevice, PaperServer, step_of

Made = Callable[..., PaperServer]
STEP = 1 / 256
"""What one grid step adds to a weight under the harness's terms."""


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    servers: list[PaperServer] = []

    def make(**settings: Any) -> PaperServer:
        servers.append(PaperServer(tmp_path / str(len(servers)), **settings))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


def mean_of(*steps: int) -> torch.Tensor:
    return torch.full((8,), STEP * sum(steps) / len(steps))


def test_a_round_asks_folds_and_goes_on(made: Made) -> None:
    server = made()
    devices = server.devices(4)
    server.turn()
    assert devices[0].task is not None
    assert step_of(devices[0].task) == STEP
    for number, device in enumerate(devices):
        device.answer(number)
    server.turn()
    assert torch.equal(server.model(), mean_of(0, 1, 2, 3))
    assert server.store.cohorts()[0].round == 1
    assert not server.store.tasks()
    for device in devices:
        device.check_in()
    server.turn()
    assert all(device.task is not None and device.task.round == 1 for device in devices)


def test_a_coordinator_that_dies_in_a_round_goes_on_with_it(made: Made) -> None:
    server = made()
    devices = server.devices(4)
    server.turn()
    tasks = {device.id: device.task for device in devices}
    for device in devices[:2]:
        device.answer(1)
    server.restart_coordinator()
    for device in devices:
        device.messages.clear()
        device.connect().check_in()
    server.turn()
    # Those who had not answered get the same task again, those who had wait for the next round.
    assert [device.task for device in devices] == [None, None, tasks[devices[2].id], tasks[devices[3].id]]
    for device in devices[2:]:
        device.answer(3)
    server.turn()
    assert torch.equal(server.model(), mean_of(1, 1, 3, 3))
    assert server.store.cohorts()[0].round == 1


def test_workers_go_on_without_a_coordinator_as_far_as_they_can(made: Made) -> None:
    server = made()
    devices = server.devices(4)
    server.turn()
    for device in devices:
        device.answer(2)
    assert server.worker("0").step()
    # The next step needs the coordinator's word.
    assert not server.worker("0").step()
    assert server.store.folds(FoldState.DONE)
    server.restart_coordinator()
    server.coordinator.step()
    assert torch.equal(server.model(), mean_of(2))
    assert not server.store.folds(FoldState.DONE)


def test_a_worker_that_dies_after_deciding_folds_the_same_updates(made: Made) -> None:
    server = made(participants=2, overrides={"over_commit": 2.0})
    devices = server.devices(4)
    server.turn()
    devices[0].answer(1)
    devices[1].answer(3)
    worker = server.worker("0")
    record = worker.record()
    assert record is not None
    decided = worker._decide(record, server.store.tasks("0"))
    assert len(decided.tasks) == 2
    server.restart_workers()
    devices[2].answer(100)
    server.turn()
    assert torch.equal(server.model(), mean_of(1, 3))
    late = server.store.tasks(None, TaskState.ARRIVED, TaskState.LATE)
    assert [task.device for task in late] == [devices[2].id]


def test_a_late_update_is_acknowledged_and_not_used(made: Made) -> None:
    server = made(participants=2, overrides={"over_commit": 2.0})
    devices = server.devices(4)
    server.turn()
    devices[0].answer(1)
    devices[1].answer(1)
    server.turn()
    assert not devices[2].answer(50).repeated
    for device in devices:
        device.check_in()
    server.turn()
    for device in devices:
        if device.task is not None:
            device.answer(5)
    server.turn()
    assert torch.equal(server.model(), mean_of(1) + mean_of(5))
    assert server.store.task(str(devices[2].last_upload and devices[2].last_upload[0].task)) is not None


def test_a_preset_that_wants_late_updates_gets_them_with_their_staleness(made: Made) -> None:
    server = made(preset="fedbuff", participants=2, overrides={"buffer": 1})
    devices = server.devices(2)
    server.turn()
    devices[0].answer(1)
    server.turn()
    moved = server.model().clone()
    devices[1].answer(1)
    server.turn()
    assert server.store.cohorts()[0].version == 2
    second = server.model() - moved
    assert (second > 0).all()
    assert (second < moved).all(), "an update that is a version late counts for less"


def test_the_same_update_twice_is_counted_once(made: Made) -> None:
    server = made()
    devices = server.devices(4)
    server.turn()
    first = devices[0].answer(1)
    again = devices[0].send_again()
    assert (first.repeated, again.repeated) == (False, True)
    assert first.countersignature == again.countersignature
    for device in devices[1:]:
        device.answer(1)
    server.turn()
    assert devices[0].send_again().repeated
    assert torch.equal(server.model(), mean_of(1))


def test_who_declines_or_vanishes_is_replaced(made: Made) -> None:
    server = made(participants=2, patience=Patience(absence_seconds=30))
    devices = server.devices(5)
    server.turn()
    asked = [device for device in devices if device.task is not None]
    others = [device for device in devices if device.task is None]
    assert len(asked) == 2
    asked[0].decline()
    server.turn()
    assert sum(device.task is not None for device in others) == 1
    asked[1].disconnect()
    server.turn()
    assert sum(device.task is not None for device in others) == 1, "it may come back"
    server.turn(31)
    assert sum(device.task is not None for device in others) == 2
    for device in others:
        if device.task is not None:
            device.answer(4)
    server.turn()
    assert torch.equal(server.model(), mean_of(4))


def test_at_the_deadline_a_round_goes_on_with_those_that_came(made: Made) -> None:
    server = made()
    devices = server.devices(4)
    server.turn()
    devices[3].answer(7)
    server.turn(99)
    assert server.store.cohorts()[0].round == 0
    server.turn(2)
    assert server.store.cohorts()[0].round == 1
    assert torch.equal(server.model(), mean_of(7))


def test_a_round_is_not_opened_before_enough_wait_or_they_have_waited_long(made: Made) -> None:
    server = made(patience=Patience(waiting_needed=4, gather_seconds=5))
    few = server.devices(2)
    server.turn()
    assert not any(device.task for device in few)
    server.turn(6)
    assert all(device.task for device in few)


@pytest.mark.parametrize(
    "wrong",
    [
        {"task": "f" * 32},
        {"cohort": "0.1"},
        {"round": 9},
        {"model_sha256": bytes(32)},
    ],
)
def test_an_update_for_something_else_is_refused(made: Made, wrong: dict[str, Any]) -> None:
    server = made()
    devices = server.devices(4)
    server.turn()
    with pytest.raises(Refused):
        devices[0].answer(1, **wrong)
    assert not [task for task in server.store.tasks() if task.state is TaskState.ARRIVED]


def test_an_update_of_another_size_or_longer_than_noise_explains_is_refused(made: Made) -> None:
    server = made()
    devices = server.devices(4)
    server.turn()
    task = devices[0].task
    assert task is not None
    header, payload = devices[0].upload_of(task, 1)
    with pytest.raises(Refused, match="size"):
        devices[0].send(replace(header, encoding=replace(header.encoding, count=7)), payload)
    with pytest.raises(Refused, match="longer"):
        devices[0].answer(2**15 - 1)


def test_another_devices_task_is_refused(made: Made) -> None:
    server = made()
    devices = server.devices(4)
    server.turn()
    stolen = devices[1].task
    assert stolen is not None
    with pytest.raises(Refused):
        devices[0].send(*devices[0].upload_of(stolen, 1))


def two_kinds(made: Made, **settings: Any) -> tuple[PaperServer, list[PaperDevice]]:
    """A federation that splits after two rounds, and devices that pull in opposite directions."""
    formation = {
        "start_round": 1,
        "rule": {"kind": "fixed_rounds", "rounds": [2]},
        "clusterer": {"min_participants": 4},
    }
    server = made(
        preset="auxo",
        participants=8,
        overrides={"formation": formation, "aggregator": "fedavg", "over_commit": 1.0, **settings},
    )
    devices = server.devices(8 if not settings else 10)
    for _ in range(2):
        server.turn()
        answer_by_kind(devices)
        server.turn()
        for device in devices:
            device.check_in()
    return server, devices


def answer_by_kind(devices: list[PaperDevice]) -> None:
    for number, device in enumerate(devices):
        if device.task is not None and number < 8:
            pull = [1, 2, 3, 4, 5, 6, 7, 8]
            device.answer([(40 if number % 2 else -40) + each for each in pull])


def test_a_cohort_splits_while_devices_are_connected_and_training_goes_on(made: Made) -> None:
    server, devices = two_kinds(made)
    leaves = [record.cohort for record in server.store.cohorts()]
    assert len(leaves) == 2
    for device in devices:
        assert any(isinstance(message, CohortsChanged) for message in device.messages) or device.task
    for _ in range(3):
        server.turn(6)
        answer_by_kind(devices)
        server.turn()
        for device in devices:
            if device.task is None:
                device.check_in()
    assert [record.round for record in server.store.cohorts()] == [5, 5]
    server.restart_coordinator()
    assert [record.cohort for record in server.store.cohorts()] == leaves
    assert server.coordinator.federation.leaves == leaves


def test_feedback_reaches_those_who_took_part_and_proves_their_claim(made: Made) -> None:
    server, devices = two_kinds(made)
    told = [message for device in devices for message in device.messages if isinstance(message, Feedback)]
    assert told or server.store.feedback([device.id for device in devices]) is not None
    device = next(each for each in devices if any(isinstance(m, Feedback) for m in each.messages))
    feedback = next(message for message in device.messages if isinstance(message, Feedback))
    device.check_in(feedback.cohort, 1.0, feedback)
    assert server.desk.presence.waiting()[device.id].reward == 1.0
    device.check_in(feedback.cohort, 1.0, replace(feedback, reward_change=99.0))
    assert server.desk.presence.waiting()[device.id].reward == 0.0
    assert server.store.refusals()["forged affinity"] == 1


def test_feedback_names_the_round_that_the_task_named(made: Made) -> None:
    server = made(preset="auxo", participants=2, overrides={"over_commit": 1.0})
    devices = server.devices(2)
    for _ in range(3):
        server.turn(60)
        asked = [(device.task.cohort, device.task.round) for device in devices if device.task is not None]
        for device in devices:
            device.answer()
        server.turn()
        told = [message for device in devices for message in device.messages if isinstance(message, Feedback)]
        assert [(feedback.cohort, feedback.round) for feedback in told] == asked
        assert len(asked) == 2
        for device in devices:
            device.messages.clear()
            device.check_in()


def test_tasks_of_a_cohort_that_split_belong_to_its_children(made: Made) -> None:
    server, devices = two_kinds(made, over_commit=1.25)
    leaves = {record.cohort for record in server.store.cohorts()}
    assert len(leaves) == 2
    left = [device for device in devices if device.task is not None]
    out = {task.device: task.cohort for task in server.store.tasks() if task.state is TaskState.OUT}
    assert {device.id for device in left} <= out.keys()
    assert set(out.values()) <= leaves
    for device in left:
        assert not device.answer(1).repeated


def test_losses_that_devices_tell_weigh_their_updates(made: Made) -> None:
    """q-FedAvg: whoever does badly counts for more; what is told is noised, so the losses lie far apart."""
    server = made(preset="qfedavg", participants=2)
    devices = server.devices(2)
    server.turn()
    for device, loss in zip(devices, (0.0, 8.0), strict=True):
        device.tell_loss(loss)
    devices[0].answer(-10)
    devices[1].answer(10)
    server.turn()
    assert (server.model() > 0).all()


def test_without_told_losses_updates_weigh_the_same(made: Made) -> None:
    server = made(preset="qfedavg", participants=2)
    devices = server.devices(2)
    server.turn()
    devices[0].answer(-10)
    devices[1].answer(10)
    server.turn()
    assert torch.allclose(server.model(), torch.zeros(8))
