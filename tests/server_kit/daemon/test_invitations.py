"""An invitation lets one device in, once, for a while; who reads the store learns no secret."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest

from device_sdk.wire.errors import Refused
from device_sdk.wire.invitation import Address
from device_sdk.wire.messages import ErrorCode
from server_kit.daemon.invitations import Invitations
from tests.server_kit.daemon.memory_server import MemoryInvitations

ADDRESS = Address("localhost", 1)
ADA, BOB = "a" * 32, "b" * 32


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2030, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store():
    return MemoryInvitations()


@pytest.fixture
def invitations(store, clock):
    return Invitations(store, clock)


def refusal_of(call) -> ErrorCode:
    with pytest.raises(Refused) as refusal:
        call()
    return refusal.value.code


def test_a_device_comes_in_and_may_ask_again_and_another_may_not(invitations):
    secret = invitations.mint(ADDRESS, b"\0" * 32).secret
    invitations.redeem(secret, ADA)
    invitations.redeem(secret, ADA)
    assert refusal_of(lambda: invitations.redeem(secret, BOB)) is ErrorCode.INVITATION_USED


def test_an_unused_invitation_expires_and_a_used_one_is_told_as_used(invitations, clock):
    unused, used = (invitations.mint(ADDRESS, b"\0" * 32, timedelta(hours=1)).secret for _ in range(2))
    invitations.redeem(used, ADA)
    clock.now += timedelta(hours=1)
    assert refusal_of(lambda: invitations.redeem(unused, ADA)) is ErrorCode.INVITATION_EXPIRED
    assert refusal_of(lambda: invitations.redeem(used, BOB)) is ErrorCode.INVITATION_USED


def test_what_was_never_given_out_lets_nobody_in(invitations):
    assert refusal_of(lambda: invitations.redeem(b"\7" * 32, ADA)) is ErrorCode.INVITATION_UNKNOWN


def test_the_store_holds_no_secret(invitations, store):
    secret = invitations.mint(ADDRESS, b"\0" * 32).secret
    assert secret not in repr(store.stored).encode("latin1")
    assert secret not in store.stored


def test_of_many_devices_at_once_one_comes_in(invitations):
    secret = invitations.mint(ADDRESS, b"\0" * 32).secret
    let_in, barrier = [], threading.Barrier(8)

    def rush(device: str) -> None:
        barrier.wait()
        try:
            invitations.redeem(secret, device)
        except Refused:
            return
        let_in.append(device)

    threads = [threading.Thread(target=rush, args=(f"{number:032x}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(let_in) == 1
