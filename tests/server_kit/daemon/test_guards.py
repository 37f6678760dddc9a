"""What a device with valid credentials may not do: it is refused over the real gateway, and counted by reason."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from device_sdk.wire import codec
from device_sdk.wire import messages as m
from device_sdk.wire.channel import Channel
from device_sdk.wire.messages import ErrorCode
from device_sdk.wire.session import Session
from device_sdk.wire.task_terms import mechanism_of
from privacy.receipts import Receipt
from server_kit.daemon.blacklist import BANNED, FORGED, TOO_LONG, Blacklist, Leniency
from server_kit.daemon.refusal_counts import RefusalCounts
from server_kit.errors import StoreUnavailable
from server_kit.store.memory import MemoryStore
from server_kit.store.protocol import TaskState
from tests.device_sdk.wire.devices import COST, TestDevice
from tests.server_kit.daemon.guarded_server import GuardedServer, delivery, update
from tests.server_kit.daemon.hostile_device import HostileDevice, refusal_of

pytestmark = pytest.mark.integration

HELLO, CHECK_IN = codec.encode_from_device(m.Hello()), codec.encode_from_device(m.CheckIn())


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GuardedServer]:
    with GuardedServer(tmp_path, participants=1) as server:
        yield server


@pytest.fixture
def device(server: GuardedServer) -> TestDevice:
    return server.newcomer()


@pytest.fixture
def task(server: GuardedServer, device: TestDevice) -> m.Task:
    """One that the device was given, and has not answered."""
    with device.channel() as channel, channel.attend() as session:
        return asked(server, session)


@pytest.fixture
def hostile(server: GuardedServer, device: TestDevice) -> Iterator[HostileDevice]:
    with server.hostile(device) as hostile:
        yield hostile


def asked(server: GuardedServer, session: Session) -> m.Task:
    session.check_in(m.CheckIn())
    wait_for(server, lambda: bool(server.desk.presence.waiting()))
    server.turn()
    task = session.receive(10)
    assert isinstance(task, m.Task)
    return task


def wait_for(server: GuardedServer, condition: Callable[[], bool]) -> None:
    """Until what a device has said has reached the desk."""
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.005)


def refused(hostile: HostileDevice, header: m.UpdateHeader, payload: bytes) -> object:
    return refusal_of(lambda: hostile.deliver(codec.encode_delivery(delivery(header, payload))))


def test_an_honest_update_is_taken(server, device, task, hostile):
    header, payload = update(device, task)
    answer = codec.decode(m.UploadAccepted, hostile.deliver(codec.encode_delivery(delivery(header, payload))))
    assert not answer.repeated
    assert server.refusals() == {}
    assert [found.state for found in server.store.tasks()] == [TaskState.ARRIVED]


def _foreign(device: TestDevice, task: m.Task) -> tuple[m.UpdateHeader, bytes]:
    device.server = "covey:another"
    return update(device, task)


def _with(receipt_of: Callable[[TestDevice, bytes, m.Task], Receipt]) -> Callable[..., tuple[m.UpdateHeader, bytes]]:
    def make(device: TestDevice, task: m.Task) -> tuple[m.UpdateHeader, bytes]:
        payload = update(device, task)[1]
        shown = receipt_of(device, payload, task)
        told: dict[str, Any] = {"sequence": shown.sequence, "ledger_head": shown.head, "receipt": shown.to_json()}
        return update(device, task, **told)[0], payload

    return make


MISDEEDS: dict[str, tuple[Callable[..., Any], ErrorCode, str]] = {
    "of a task that nobody has": (lambda d, t: update(d, replace(t, task="f" * 32)), ErrorCode.NOT_ASKED, "not asked"),
    "for another round": (lambda d, t: update(d, t, round=9), ErrorCode.NOT_ASKED, "not asked"),
    "for another model": (lambda d, t: update(d, t, model_sha256=bytes(32)), ErrorCode.NOT_ASKED, "not asked"),
    "of fewer and wider numbers": (
        lambda d, t: update(d, t, encoding=m.GridEncoding(4, 4)),
        ErrorCode.MALFORMED,
        "another size",
    ),
    "longer than noise explains": (lambda d, t: update(d, t, 2**15 - 1), ErrorCode.MALFORMED, "out of norm"),
    "with a receipt for another server": (_foreign, ErrorCode.RECEIPT_REFUSED, "foreign"),
    "with another device's receipt": (
        _with(lambda d, payload, _: TestDevice(server=d.server).receipt(payload)),
        ErrorCode.RECEIPT_REFUSED,
        "other payload",
    ),
    "with a receipt that its ledger has not signed": (
        _with(lambda d, payload, task: replace(d.receipt_of(payload, mechanism_of(task)), signature=bytes(64))),
        ErrorCode.RECEIPT_REFUSED,
        "forged",
    ),
    "with a receipt that books less than it cost": (
        _with(lambda d, payload, task: d.receipt(payload, replace(COST, mu_squared_nano=1))),
        ErrorCode.RECEIPT_REFUSED,
        "another cost",
    ),
    "with a receipt of another mechanism": (
        _with(lambda d, payload, task: d.receipt(payload, mechanism_of(task).cost, "label_histogram")),
        ErrorCode.RECEIPT_REFUSED,
        "another cost",
    ),
    "signed and changed": (
        lambda d, t: (replace(update(d, t)[0], round=9), update(d, t)[1]),
        ErrorCode.WRONG_SIGNATURE,
        "wrong signature",
    ),
}


@pytest.mark.parametrize("misdeed", MISDEEDS)
def test_a_wrong_update_is_refused_counted_and_leaves_no_trace(server, device, task, hostile, misdeed):
    make, code, reason = MISDEEDS[misdeed]
    assert refused(hostile, *make(device, task)) is code
    assert server.refusals() == {reason: 1}
    assert server.store.devices()[0].refusals == {reason: 1}
    # A round does not wait for whoever sends what no honest device could.
    assert [found.state for found in server.store.tasks()] == ([] if reason == TOO_LONG else [TaskState.OUT])
    assert list(server.store.receipts()) == []


def test_an_update_that_no_honest_device_could_make_is_a_strike(server, device, task, hostile):
    server.desk.blacklist.leniency = Leniency(strikes=1)
    refused(hostile, *update(device, task, 2**15 - 1))
    assert server.desk.blacklist.is_banned(device.id, 0)


def test_such_strikes_outlive_a_restart():
    store = MemoryStore()
    counted = Blacklist(store, Leniency(strikes=2))
    counted.strike("a", 0, 0.0, counted=True)
    assert not counted.is_banned("a", 0)
    counted.strike("a", 0, 0.0, counted=True)
    assert Blacklist(store).is_banned("a", 0)


def test_another_devices_task_is_refused(server, task):
    thief = server.newcomer()
    with server.hostile(thief) as hostile:
        assert refused(hostile, *update(thief, task)) is ErrorCode.NOT_ASKED
    assert server.refusals() == {"not asked": 1}


def test_a_replay_is_acknowledged_and_counted_once(server, device, task, hostile):
    body = codec.encode_delivery(delivery(*update(device, task)))
    answers = [codec.decode(m.UploadAccepted, hostile.deliver(body)) for _ in range(3)]
    assert [answer.repeated for answer in answers] == [False, True, True]
    assert len(list(server.store.receipts())) == 1
    server.turn()
    assert server.store.cohorts()[0].version == 1


def test_a_check_in_counts_once_the_update_that_it_came_with_is_stored(server, device):
    with device.channel() as channel, channel.attend() as session:
        task = asked(server, session)
        accepted = channel.upload(*update(device, task), check_in=m.CheckIn())
        assert accepted.checked_in
        assert list(server.desk.presence.waiting()) == [device.id]
        assert not server.desk.out()
        server.turn()
        following = session.receive(10)
        assert isinstance(following, m.Task)
        assert following.task != task.task


def test_an_update_that_is_sent_again_checks_nobody_in(server, device):
    with device.channel() as channel, channel.attend() as session:
        sent = update(device, asked(server, session))
        heard = [channel.upload(*sent, check_in=m.CheckIn()) for _ in range(3)]
    assert [(each.repeated, each.checked_in) for each in heard] == [(False, True), (True, False), (True, False)]


def test_a_check_in_with_a_refused_update_is_not_heard(server, device):
    with device.channel() as channel, channel.attend() as session, server.hostile(device) as hostile:
        header, payload = update(device, asked(server, session), round=9)
        body = codec.encode_delivery(replace(delivery(header, payload), check_in=m.CheckIn()))
        assert refusal_of(lambda: hostile.deliver(body)) is ErrorCode.NOT_ASKED
        assert not server.desk.presence.waiting()


def test_a_forged_claim_with_an_update_is_for_the_desk_to_judge_when_it_is_said_again(server, device):
    forged = m.AffinityClaim("0", 9.0, m.Feedback("0", 1, mac=bytes(32), reward_change=9.0))
    with device.channel() as channel, channel.attend() as session:
        accepted = channel.upload(*update(device, asked(server, session)), check_in=m.CheckIn(forged))
        assert not accepted.checked_in
        assert not accepted.repeated
        assert not server.desk.presence.waiting()
        session.check_in(m.CheckIn(forged))
        wait_for(server, lambda: server.refusals().get(FORGED) == 1)


def test_a_check_in_of_a_device_without_a_stream_makes_nobody_wait(server, device, task, hostile):
    wait_for(server, lambda: not server.desk.presence.here())
    body = codec.encode_delivery(replace(delivery(*update(device, task)), check_in=m.CheckIn()))
    codec.decode(m.UploadAccepted, hostile.deliver(body))
    assert not server.desk.presence.waiting()


def test_a_stale_receipt_is_refused(server, device, task, hostile):
    stale = update(device, task)
    hostile.deliver(codec.encode_delivery(delivery(*update(device, task))))
    assert refused(hostile, *stale) is ErrorCode.RECEIPT_REFUSED
    assert sum(server.refusals().values()) == 1
    assert len(list(server.store.receipts())) == 1


def test_more_bytes_than_allowed_are_refused_before_they_are_sent(server, device, task, hostile):
    size = (1 << 20) + 1
    header, _ = update(device, task, payload=m.Blob(bytes(32), size), encoding=m.GridEncoding(size, 1))
    assert refusal_of(hostile.upload([codec.encode_upload(header)])) is ErrorCode.TOO_LARGE
    assert server.refusals() == {"too large": 1}


def test_a_device_that_says_too_much_is_cut_off_and_a_flood_is_one_write(server, device, monkeypatch):
    writes, count_refusals = [], server.store.count_refusals

    def counted(counts, now_seconds):
        writes.append(len(counts))
        count_refusals(counts, now_seconds)

    monkeypatch.setattr(server.store, "count_refusals", counted)
    with server.hostile(device) as hostile:
        for _ in range(5):
            assert refusal_of(hostile.attend([HELLO, *[CHECK_IN] * 50])) is ErrorCode.TOO_MANY_CALLS
    assert server.refusals() == {"too many calls": 5}
    assert writes == [1]


def test_refusals_that_cannot_be_stored_are_stored_later():
    class Full(MemoryStore):
        def count_refusals(self, counts, now_seconds):
            raise StoreUnavailable("the disk is full")

    store = MemoryStore()
    counts = RefusalCounts(Full(), lambda: 1.0)
    counts.count("too large", None)
    counts.flush()
    counts.count("too large", None)
    counts._store = store
    counts.flush()
    assert store.refusals() == {"too large": 2}


# Affinity that a device has invented


def lie(server: GuardedServer, device: TestDevice) -> m.ServerMessage | None:
    """Check in with feedback that this server never gave; what it answers, if it does at once."""
    evidence = m.Feedback("0", 1, b"\1" * 32, reward_change=99.0, sub_cluster=1)
    before = server.store.refusals().get(FORGED, 0)
    with device.channel() as channel, attending(channel) as session:
        session.check_in(m.CheckIn(m.AffinityClaim("0", 99.0, evidence)))
        if before < 3:
            wait_for(server, lambda: server.store.refusals().get(FORGED, 0) > before)
            if before < 2:
                return None
        return session.receive(10)


def attending(channel: Channel) -> Session:
    return channel.attend()


def test_false_affinity_costs_strikes_then_some_rounds_and_a_restart_does_not_forgive(server, device):
    assert [type(lie(server, device)) for _ in range(3)] == [type(None), type(None), m.ComeBack]
    assert server.refusals() == {FORGED: 3}
    server.restart_coordinator()
    assert isinstance(lie(server, device), m.ComeBack), "it is banned, whatever it says"
    assert server.refusals() == {FORGED: 3}, "a ban is not counted again"
    assert [each.facts["device"] for each in server.store.happenings(kind=BANNED)] == [device.id]


def test_a_ban_expires_after_its_rounds(server, device):
    server.desk.blacklist.leniency = Leniency(strikes=1, ban_rounds=2)
    server.desk.blacklist.strike(device.id, 0, 0.0)
    honest = server.newcomer()
    for expected in (m.ComeBack, m.ComeBack, type(None)):
        assert isinstance(server.desk.check_in(device.id, m.CheckIn()), expected)
        with honest.channel() as channel, channel.attend() as session:
            task = asked(server, session)
            channel.upload(*update(honest, task))
        server.turn()


def test_a_blacklist_that_forgets_is_caught():
    class Forgetful(MemoryStore):
        def note(self, happening):
            del happening

    for store, banned in ((MemoryStore(), True), (Forgetful(), False)):
        Blacklist(store, Leniency(1, 5)).strike("a", 3, 0.0)
        assert Blacklist(store).is_banned("a", 7) is banned
        assert not Blacklist(store).is_banned("a", 8)


def test_a_revoked_device_loses_its_stream_and_is_refused_at_its_next_call(server, device):
    with server.hostile(device) as hostile:
        stream = hostile.attend(iter([HELLO]))
        next(stream)
        assert server.register.revoke(device.id)
        again = hostile.attend([HELLO])
        assert refusal_of(again) is ErrorCode.REVOKED
    assert server.refusals()["revoked"] >= 1
