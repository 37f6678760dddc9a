"""Guessing invitations meets a limit, and locks out nobody who has a right one."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from device_sdk.wire.channel import enrol
from device_sdk.wire.codec import encode
from device_sdk.wire.errors import DeadlinePassed, Refused, ServerBusy
from device_sdk.wire.messages import ErrorCode
from device_sdk.wire.services import ENROLMENT
from device_sdk.wire.signing import enrolment_request
from server_kit.daemon import enrolment as enrolment_module
from server_kit.daemon.enrolment import EnrolmentSettings
from server_kit.daemon.wrong_invitations import WrongInvitations
from tests.device_sdk.wire.devices import TestDevice
from tests.hostile.server.strangers import attempted, connection
from tests.server_kit.daemon.hostile_device import refusal_of
from tests.server_kit.daemon.memory_server import MemoryServer

STRANGERS = EnrolmentSettings(wrong_invitations_a_minute=12)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MemoryServer]:
    server = MemoryServer(tmp_path / "spool", strangers=STRANGERS)
    yield server
    server.close()


def guesser(server: MemoryServer, heard: Counter):
    device = TestDevice()
    channel = connection(server.enrolment_address, server.authority.certificate)
    request = enrolment_request(os.urandom(32), device.tls.request(), device.signing, device.ledger)

    def guess() -> None:
        body = encode(replace(request, invitation_secret=os.urandom(32)))
        heard[refusal_of(lambda: channel.unary_unary(f"/{ENROLMENT}/Enrol")(body, timeout=20))] += 1

    return guess


@pytest.mark.integration
def test_guesses_are_answered_up_to_a_limit_and_a_right_invitation_always(server, caplog):
    heard: Counter = Counter()
    begun = time.monotonic()
    with caplog.at_level(logging.WARNING, "covey.server"):
        attempted(guesser(server, heard), times=60, threads=8)
        TestDevice().enrol_at(server)
    minutes = (time.monotonic() - begun) / 60
    told = heard[ErrorCode.INVITATION_UNKNOWN]
    assert told <= STRANGERS.wrong_invitations_a_minute * (1 + minutes) + 1
    assert sum(heard.values()) == 60
    assert server.refused["invitation unknown"] == told
    assert server.refused["too many calls"] == 60 - told
    lines = [record for record in caplog.records if "wrong invitations" in record.message]
    assert len(lines) == 1, "one line a minute, however many guess"


@pytest.mark.integration
def test_beyond_the_limit_whoever_guesses_waits_for_each_answer(server):
    attempted(guesser(server, Counter()), times=12, threads=4)
    begun = time.monotonic()
    attempted(guesser(server, Counter()), times=4, threads=1)
    assert time.monotonic() - begun >= 4 * enrolment_module._HELD_SECONDS * 0.9


@pytest.mark.integration
def test_a_guess_costs_no_signature(server, monkeypatch):
    def checked(_):
        raise AssertionError("a signature was checked for a guess")

    monkeypatch.setattr(enrolment_module, "check_enrolment", checked)
    heard: Counter = Counter()
    guesser(server, heard)()
    assert heard == {ErrorCode.INVITATION_UNKNOWN: 1}


@pytest.mark.integration
def test_an_honest_mistake_is_told_and_what_follows_is_asked_to_wait(server):
    device, invitation = TestDevice(), server.invitation()
    wrong = replace(invitation, secret=os.urandom(32))
    with pytest.raises(Refused, match="never given out"):
        enrol(wrong, device.tls.request(), device.signing, device.ledger)
    attempted(guesser(server, Counter()), times=12, threads=4)
    with pytest.raises((ServerBusy, DeadlinePassed)):
        enrol(wrong, device.tls.request(), device.signing, device.ledger, timeout_seconds=3.0)
    assert enrol(invitation, device.tls.request(), device.signing, device.ledger).device == device.id


class TestWrongInvitations:
    """The counting alone, with a clock of its own."""

    def limits(self) -> tuple[WrongInvitations, list[float]]:
        now = [0.0]
        return WrongInvitations(6, clock=lambda: now[0]), now

    def test_a_network_is_told_so_often_and_again_after_a_while(self):
        wrong, now = self.limits()
        assert [wrong.may_be_told("192.0.2.1") for _ in range(8)] == [True] * 6 + [False] * 2
        now[0] = 10.0
        assert [wrong.may_be_told("192.0.2.1") for _ in range(2)] == [True, False]

    def test_one_network_does_not_use_up_what_others_may(self):
        wrong, _ = self.limits()
        for _ in range(100):
            wrong.may_be_told("192.0.2.1")
        assert wrong.may_be_told("192.0.2.2")

    def test_all_networks_together_have_a_limit_too(self):
        wrong, _ = self.limits()
        told = sum(wrong.may_be_told(f"192.0.2.{host}") for host in range(200))
        assert told == 60
        assert wrong.unheard == 140
