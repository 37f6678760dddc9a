"""What the desk does at once is what it would do in a thread, and nothing is acknowledged before it is durable."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from device_sdk.wire.messages import AffinityClaim, CheckIn, Feedback, SummaryHeader
from privacy.errors import ReceiptRefused
from server_kit.daemon.blacklist import FORGED, Leniency
from server_kit.daemon.gathering import Patience
from server_kit.daemon.spool import Parcel
from tests.server_kit.daemon.paper_server import PaperDevice, PaperServer

PAYLOAD = bytes(80)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PaperServer]:
    server = PaperServer(tmp_path, patience=Patience(waiting_needed=4))
    yield server
    server.close()


def release(device: PaperDevice) -> tuple[str, SummaryHeader, Parcel]:
    header = device.keys.summary(PAYLOAD)
    return device.id, header, Parcel(header.payload, memoryview(PAYLOAD))


def forged(device: PaperDevice) -> CheckIn:
    del device
    return CheckIn(AffinityClaim("0", 9.0, Feedback("0", 1, bytes(32), reward_change=9.0)))


def true(server: PaperServer, device: PaperDevice) -> CheckIn:
    evidence = server.seal.sealed(device.id, Feedback("0", 1, b"", reward_change=0.5))
    return CheckIn(AffinityClaim("0", 0.5, evidence))


def test_a_release_is_acknowledged_only_once_it_is_durable(server, monkeypatch):
    device, may_store = server.device(), threading.Event()
    accept = server.store.accept

    def slowly(*arguments: Any) -> list[bool]:
        assert may_store.wait(10)
        return accept(*arguments)

    monkeypatch.setattr(server.store, "accept", slowly)
    _, storing = server.desk.begin_accept(*release(device))
    assert not storing.done()
    assert not storing.cancel()
    assert server.store.last_receipt(device.keys.ledger.public_key) is None
    may_store.set()
    assert storing.result(10)
    assert server.store.last_receipt(device.keys.ledger.public_key) is not None


def test_a_release_that_was_stored_is_answered_alike_and_stored_once(server):
    sent = release(server.device())
    answer, storing = server.desk.begin_accept(*sent)
    assert storing.result(10)
    again, nothing = server.desk.begin_accept(*sent)
    assert nothing is None
    assert (again.countersignature, again.repeated) == (answer.countersignature, True)
    assert len(list(server.store.receipts())) == 1


def overtaken(server):
    """A desk that believes the first receipt to be the newest, as another gateway would; the two releases after it."""
    device, first = server.device(), server.desk
    assert not first.accept(*release(device)).repeated
    second, third = release(device), release(device)
    server.restart_coordinator()
    assert not server.desk.accept(*second).repeated
    first._commit = server.desk._commit
    return first, second, third


def test_what_another_gateway_has_taken_meanwhile_is_noticed_by_the_store(server):
    first, second, third = overtaken(server)
    _, storing = first.begin_accept(*third)
    assert not storing.result(10)
    assert not first.accept(*third).repeated
    with pytest.raises(ReceiptRefused):
        first.accept(*second)
    assert [receipt.sequence for receipt in server.store.receipts()] == [1, 2, 3]


def test_a_desk_that_trusts_its_memory_is_caught(server, monkeypatch):
    first, _, third = overtaken(server)
    newest = first._newest

    class Stubborn(dict):
        def pop(self, *_: object) -> None: ...

    first._newest = Stubborn(newest)
    calls = 0

    def counted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise RecursionError("it asks again and again")
        return type(first).begin_accept(first, *arguments)

    monkeypatch.setattr(first, "begin_accept", counted)
    with pytest.raises(RecursionError):
        first.accept(*third)


def test_who_checks_in_at_once_waits_as_if_a_thread_had_heard_it(server):
    plain, claiming = server.device(), server.device()
    said = {plain.id: CheckIn(), claiming.id: true(server, claiming)}
    assert all(server.desk.waits(device, check_in) for device, check_in in said.items())
    at_once = server.desk.presence.waiting()
    for device, check_in in said.items():
        assert server.desk.check_in(device, check_in) is None
    assert server.desk.presence.waiting() == at_once
    assert at_once[claiming.id].reward == 0.5


def test_whoever_lies_is_left_to_the_thread_and_struck_once(server):
    device = server.device()
    assert not server.desk.waits(device.id, forged(device))
    assert not server.store.refusals()
    assert server.desk.presence.num_waiting() == 0
    server.desk.blacklist.leniency = Leniency(strikes=1, ban_rounds=5)
    server.desk.check_in(device.id, forged(device))
    assert server.store.refusals()[FORGED] == 1
    assert not server.desk.waits(device.id, CheckIn())


def test_whoever_has_a_task_or_has_declined_one_is_left_to_the_thread(server):
    devices = server.devices(4)
    server.turn()
    assert not server.desk.waits(devices[0].id, CheckIn())
    devices[0].decline()
    assert not server.desk.waits(devices[0].id, CheckIn())
    assert server.desk.presence.num_waiting() == 0


def test_the_coordinator_is_woken_when_enough_wait_and_not_before(server):
    woken: list[int] = []
    server.desk._wake = lambda: woken.append(server.desk.presence.num_waiting())
    devices = [server.device() for _ in range(9)]
    server.coordinator.step()
    for device in devices[:4]:
        assert server.desk.waits(device.id, CheckIn())
        if woken and woken[-1] == server.desk.presence.num_waiting():
            server.coordinator.step()
    # The first begins to wait, the fourth makes a round.
    assert woken == [1, 4]
    assert all(device.task is not None for device in devices[:4])
    for device in devices[4:8]:
        # The round that is open wants nobody.
        assert server.desk.waits(device.id, CheckIn())
    assert woken == [1, 4]
    devices[0].decline()
    assert len(woken) == 3
    server.coordinator.step()
    assert sum(device.task is not None for device in devices[4:8]) == 1
    late = server.device()
    server.desk.waits(late.id, CheckIn())
    # Feedback may lie here for whoever has just come.
    assert len(woken) == 4


def test_whoever_checks_in_during_a_step_wakes_the_coordinator_again(server, monkeypatch):
    woken: list[str] = []
    server.desk._wake = lambda: woken.append("woken")
    device = server.device()
    server.devices(4)
    server.coordinator.step()
    tidying = server.coordinator._tidying
    tidy = tidying.tidy
    woken.clear()

    def meanwhile() -> None:
        tidy()
        assert server.desk.waits(device.id, CheckIn())

    monkeypatch.setattr(tidying, "tidy", meanwhile)
    server.coordinator.step()
    assert woken == ["woken"]
