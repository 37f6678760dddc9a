"""A certificate is renewed between two batches once two thirds of its life are over, and a failure stops nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from device_sdk.conditions import Conditions, TrainingGate
from device_sdk.identity import Identity
from device_sdk.pauses import Pause
from device_sdk.renewal import Renewal
from device_sdk.tls_keys import validity
from device_sdk.wire.errors import ConnectionLost, Refused
from device_sdk.wire.messages import EnrolmentReply, ErrorCode, RenewalReply
from device_sdk.wire.signing import device_id
from server_kit.daemon.authority import Authority

SERVER = "fl.example.com:8443"
LIFETIME = timedelta(days=3)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Line:
    """A channel that renews, or fails as it is told."""

    def __init__(self, authority, device, clock):
        self.authority, self._device, self._clock = authority, device, clock
        self.failure, self.asked, self.used = None, 0, []

    def renew(self, certificate_request):
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        now = _moment(self._clock.now)
        return RenewalReply(self.authority.issue_device(certificate_request, self._device, LIFETIME, now))

    def use(self, credentials):
        self.used.append(credentials)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def authority():
    return Authority.create()


@pytest.fixture
def identity(vault, authority, clock):
    clock.now = validity(authority.certificate)[0].timestamp() + 3600
    identity = Identity.of(vault, SERVER, clock)
    device = device_id(identity.signing_key.public_key)
    certificate = authority.issue_device(identity.certificate_request, device, LIFETIME, _moment(clock.now))
    identity.enrol(EnrolmentReply(device, authority.server, bytes(32), SERVER, certificate, authority.certificate))
    return identity


@pytest.fixture
def line(identity, authority, clock):
    return Line(authority, identity.enrolled.device, clock)


def between_batches(identity, line, clock):
    return Pause(TrainingGate(Conditions()), Renewal(identity, line, clock))


def test_a_fresh_certificate_is_left_alone(identity, line, clock):
    between_batches(identity, line, clock)()
    assert line.asked == 0


def test_a_certificate_is_renewed_between_batches(identity, line, clock):
    pause = between_batches(identity, line, clock)
    before = identity.enrolled.certificate
    clock.now += LIFETIME.total_seconds() * 0.7
    for _ in range(3):
        pause()
    assert line.asked == 1
    assert identity.enrolled.certificate != before
    assert [credentials.certificate for credentials in line.used] == [identity.enrolled.certificate]


@pytest.mark.parametrize("failure", [ConnectionLost("gone"), Refused(ErrorCode.INTERNAL, "later", 60.0)])
def test_a_renewal_that_fails_stops_nothing_and_is_tried_again_later(identity, line, clock, failure):
    pause = between_batches(identity, line, clock)
    before = identity.enrolled.certificate
    clock.now += LIFETIME.total_seconds() * 0.7
    line.failure = failure
    for _ in range(5):
        pause()
    assert (line.asked, identity.enrolled.certificate, line.used) == (1, before, [])
    line.failure = None
    clock.now += 61
    pause()
    assert (line.asked, len(line.used)) == (2, 1)


def test_a_certificate_of_another_authority_is_not_taken(identity, line, clock):
    pause = between_batches(identity, line, clock)
    before = identity.enrolled.certificate
    clock.now += LIFETIME.total_seconds() * 0.7
    line.authority = Authority.create()
    pause()
    assert (identity.enrolled.certificate, line.used) == (before, [])


def _moment(seconds):
    return datetime.fromtimestamp(seconds, UTC)
