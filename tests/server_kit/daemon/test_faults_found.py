"""Faults that were found by reading or by fire, each as the smallest story in which it showed."""

from __future__ import annotations

import errno
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from server_kit.daemon.group_commit import GroupCommit
from server_kit.daemon.model_shelf import ModelShelf
from server_kit.daemon.questions import Questions
from server_kit.errors import StoreConflict, StoreUnavailable
from server_kit.store.memory import MemoryStore
from server_kit.store.protocol import FoldState, TaskState
from tests.server_kit.daemon.paper_server import PaperServer
from tests.server_kit.store.contract import asked
from tests.server_kit.store.deliveries import update

STEP = 1 / 256


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PaperServer]:
    server = PaperServer(tmp_path, participants=2, overrides={"over_commit": 1.5})
    yield server
    server.close()


def test_a_late_update_does_not_take_the_devices_new_task_away(server):
    devices = server.devices(3)
    server.turn()
    slow = devices[0]
    late = slow.upload_of(slow.task, 1)
    for device in devices[1:]:
        device.answer(1)
    server.turn()
    slow.messages.clear()
    for device in devices:
        device.check_in()
    server.turn()
    given = slow.task
    assert given is not None
    slow.send(*late)
    slow.messages.clear()
    slow.check_in()
    assert slow.task == given, "it would be out for ever, and never asked again"


def test_an_update_that_comes_after_the_last_round_does_not_wait_for_another(server):
    devices = server.devices(3)
    server.turn()
    for device in devices[1:]:
        device.answer(1)
    server.turn()
    assert server.store.cohorts()[0].round == 1
    devices[0].answer(1)
    late = devices[0].last_upload[0].task
    for device in devices:
        device.disconnect(leaving=True)
    server.turn()
    assert server.store.task(late).state is TaskState.LATE, "nobody is left to begin a round that would end it"
    with pytest.raises(StoreConflict):
        server.store.payload(late)
    assert torch.equal(server.model(), torch.full((8,), STEP))


def test_an_update_that_is_late_for_its_round_and_not_alone_ends_with_the_next_step(server):
    """Nothing is written for its sake while a step is coming that ends it anyway."""
    devices = server.devices(3)
    server.turn()
    for device in devices[1:]:
        device.answer(1)
    server.turn()
    for device in devices[1:]:
        device.check_in()
    server.turn(10)
    devices[0].answer(1)
    late = devices[0].last_upload[0].task
    server.turn()
    assert server.store.task(late).state is TaskState.ARRIVED
    for device in devices[1:]:
        device.answer(1)
    server.turn()
    assert server.store.task(late).state is TaskState.LATE


def test_nobody_is_asked_for_a_round_that_has_enough(tmp_path):
    """While its worker makes the model, whoever is asked for this round pays for an update that comes too late."""
    server = PaperServer(tmp_path, participants=4)
    devices = server.devices(2)
    server.turn()
    for device in devices:
        device.answer(1)
    (third,) = server.devices(1)
    server.coordinator.step()
    assert not third.messages
    server.turn()
    assert third.task is not None
    assert third.task.round == server.store.cohorts()[0].round == 1
    server.close()


def test_a_device_that_answers_twice_between_two_models_is_counted_twice(tmp_path):
    server = PaperServer(tmp_path, preset="fedbuff", participants=1, overrides={"buffer": 2})
    (device,) = server.devices(1)
    for value in (1, 5):
        server.turn(1.0)
        device.answer(value)
        device.check_in()
    server.turn(1.0)
    assert torch.equal(server.model(), torch.full((8,), STEP * 3)), "the mean of 1 and 5, not of 5 and 5"
    server.close()


def test_a_model_that_is_made_while_devices_are_asked_is_not_undone(server, monkeypatch):
    devices = server.devices(3)
    server.turn()
    devices[0].answer(1)
    devices[2].decline()
    fourth = server.devices(1)[0]
    ask = server.store.ask

    def ask_too_late(asking):
        monkeypatch.setattr(server.store, "ask", ask)
        devices[1].answer(1)
        assert server.worker("0").step()
        ask(asking)

    monkeypatch.setattr(server.store, "ask", ask_too_late)
    server.coordinator.step()
    assert server.store.cohorts()[0].version == 1
    assert not server.store.folds(FoldState.DONE)
    assert torch.equal(server.model(), torch.full((8,), STEP))
    assert fourth.task is not None
    assert fourth.task.round == 1


def test_a_worker_past_its_deadline_waits_for_an_arrival_and_does_not_spin(server):
    server.devices(3)
    server.turn()
    worker = server.worker("0")
    assert worker.next_look_seconds() == server.clock() + 100
    server.clock.now += 101
    assert worker.next_look_seconds() == math.inf


def test_a_worker_that_could_not_put_a_model_away_begins_with_the_last_one(server, monkeypatch):
    devices = server.devices(3)
    server.turn()
    for device in devices[:2]:
        device.answer(1)
    worker, write = server.worker("0"), type(server.checkpoints).write

    def full(*_: object) -> str:
        raise OSError("the disk is full")

    monkeypatch.setattr(type(server.checkpoints), "write", full)
    with pytest.raises(OSError, match="full"):
        worker.step()
    monkeypatch.setattr(type(server.checkpoints), "write", write)
    server.turn()
    assert torch.equal(server.model(), torch.full((8,), STEP)), "not folded a second time"


def test_a_shelf_on_a_full_disk_says_so_and_leaves_nothing(tmp_path, monkeypatch):
    def full(path: Path, content: bytes) -> int:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    shelf = ModelShelf(tmp_path)
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StoreUnavailable, match="nothing was changed"):
        shelf.put(b"a model")
    assert not list(tmp_path.iterdir())


def test_what_is_stored_is_acknowledged_even_if_nobody_could_be_woken():
    def fail(_: object) -> None:
        raise OSError("no bell")

    store = MemoryStore()
    asked(store, "a", "b")
    commit = GroupCommit(store, lambda: 1.0, fail)
    assert commit.begin(update("a", "a")).result()
    assert commit.begin(update("b", "b")).result()
    commit.close()
    assert {task.state for task in store.tasks()} == {TaskState.ARRIVED}


def test_answers_that_nobody_waits_for_are_not_remembered():
    questions = Questions(MemoryStore(), lambda _, __: True)
    for number in range(1000):
        questions.settled("device", str(number))
    assert not questions._awaited
