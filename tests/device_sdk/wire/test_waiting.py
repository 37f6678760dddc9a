"""How a device waits: it can always be woken, never in step with others, and never for ever without being told so."""

from __future__ import annotations

import hashlib
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.wire.backoff import Backoff
from device_sdk.wire.cancelling import Deadline, Stop
from device_sdk.wire.errors import Cancelled, ConnectionLost, DeadlinePassed
from device_sdk.wire.hashing import BackgroundHash
from device_sdk.wire.mailbox import Mailbox
from device_sdk.wire.silence import Silence


@given(first=st.floats(0.01, 10), most=st.floats(10, 1000), failures=st.integers(1, 60))
def test_a_wait_doubles_up_to_its_limit_and_is_at_least_half_of_it(first, most, failures):
    backoff = Backoff(first, most)
    for failure in range(failures):
        limit = min(most, first * 2**failure)
        assert limit / 2 <= backoff.failed() <= limit


def test_success_begins_again_with_short_waits():
    backoff = Backoff(1.0, 100.0)
    for _ in range(10):
        backoff.failed()
    backoff.succeeded()
    assert backoff.failed() <= 1.0


def test_two_devices_do_not_wait_alike():
    assert len({Backoff(1.0, 1.0).failed() for _ in range(20)}) > 10


def test_stop_wakes_waiters_and_calls_back_once():
    stop, called = Stop(), []
    with stop.calling(lambda: called.append("kept")):
        with stop.calling(lambda: called.append("left")):
            pass
        threading.Timer(0.05, stop.set).start()
        assert stop.wait(20)
        stop.set()
    deadline = time.monotonic() + 10
    while not called and time.monotonic() < deadline:
        time.sleep(0.01)
    assert called == ["kept"]


def test_a_stop_that_is_set_calls_back_at_once():
    stop, called = Stop(), []
    stop.set()
    with stop.calling(lambda: called.append("now")):
        assert called == ["now"]


def test_a_deadline_counts_down_to_nothing_and_none_never_does():
    assert Deadline(0.0).left_seconds() == 0.0
    assert Deadline(None).left_seconds() is None
    Deadline(None).check(Stop())
    with pytest.raises(DeadlinePassed):
        Deadline(0.0).check(Stop())
    stop = Stop()
    stop.set()
    with pytest.raises(Cancelled):
        Deadline(0.0).check(stop)


def test_a_mailbox_hands_out_in_order_and_then_says_why_it_ended():
    mailbox: Mailbox[int] = Mailbox(3)
    mailbox.put(1)
    mailbox.put(2)
    mailbox.end(ConnectionLost("gone"))
    mailbox.end(DeadlinePassed("a later reason"))
    assert [mailbox.get(0), mailbox.get(0)] == [1, 2]
    for _ in range(2):
        with pytest.raises(ConnectionLost, match="gone"):
            mailbox.get()


def test_a_full_mailbox_makes_the_sender_wait_until_there_is_room():
    mailbox: Mailbox[int] = Mailbox(1)

    def send() -> None:
        for number in range(5):
            mailbox.put(number)

    sender = threading.Thread(target=send)
    sender.start()
    assert [mailbox.get(20) for _ in range(5)] == list(range(5))
    sender.join()


def test_an_abandoned_mailbox_lets_its_sender_go():
    mailbox: Mailbox[int] = Mailbox(1)
    mailbox.put(0)
    sender = threading.Thread(target=mailbox.put, args=(1,))
    sender.start()
    mailbox.abandon()
    sender.join(20)
    assert not sender.is_alive()


def test_an_empty_mailbox_is_waited_for_only_so_long():
    with pytest.raises(DeadlinePassed):
        Mailbox[int](1).get(0.01)


def test_silence_gives_up_after_a_while_and_not_before():
    gave_up = threading.Event()
    # A busy machine may let this thread sleep several times as long as it asked for.
    with Silence(1.0, gave_up.set) as silence:
        for _ in range(8):
            time.sleep(0.15)
            silence.heard()
        assert not silence.broken
        assert gave_up.wait(20)
    assert silence.broken


def test_silence_that_is_over_gives_up_nothing():
    gave_up = threading.Event()
    with Silence(0.05, gave_up.set):
        pass
    assert not gave_up.wait(0.2)


@given(pieces=st.lists(st.binary(max_size=50), max_size=5))
def test_a_hash_in_the_background_is_the_hash(pieces):
    background = BackgroundHash()
    for piece in pieces:
        background.update(memoryview(piece))
    assert background.digest() == hashlib.sha256(b"".join(pieces)).digest()
