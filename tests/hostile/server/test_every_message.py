"""Every message that a device can send, with every field out of bounds, on every call, to a real coordinator.

It stays up, its log has no error, and an honest pair of devices trains meanwhile and afterwards.
"""

from __future__ import annotations

import json
import ssl
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest

from device_sdk.wire import codec
from device_sdk.wire import messages as m
from device_sdk.wire.errors import WireError
from device_sdk.wire.invitation import Address
from device_sdk.wire.services import ENROLMENT, path
from device_sdk.wire.signing import enrolment_request, signed
from device_sdk.wire.task_terms import mechanism_of
from device_sdk.wire.tensors import blob_of
from privacy.errors import PrivacyError
from tests.hostile.server.liar import COUNTS, Liar, signed_line
from tests.hostile.server.living import Living, go_on, honest_pair
from tests.hostile.server.mutants import mutants, scrambled
from tests.server_kit.daemon.hostile_device import HostileDevice

pytestmark = pytest.mark.integration

_FEWEST_CALLS = {"Attend": 70, "Deliver": 250, "Upload": 150, "Download": 15, "Fetch": 15, "Renew": 8, "Enrol": 60}
_ODD: dict[type, tuple[Any, ...]] = {
    str: ("", "0", "f" * 32, "label_histogram", "0.0.0", "x" * 200, "1e9"),
    int: (0, 1, -1, 2**31, 2**53),
    bytes: (b"", bytes(32), bytes(64), b"{}", b'{"a":1}', b"[" * 4000),
    tuple: ((), (m.Term("epsilon", "1"),), tuple(m.Term("a", number) for number in range(32))),
    m.Blob: (m.Blob(bytes(32), 0), m.Blob(bytes(32), 80), m.Blob(bytes(32), 1 << 33)),
    m.GridEncoding: (m.GridEncoding(1, 1), m.GridEncoding(1 << 30, 8), m.GridEncoding(3, 7)),
}
"""Values that a field may hold by its form, and should not by its meaning."""
_ODD_JSON: tuple[Any, ...] = ("", 0, -1, 10**60, 10**4000, [], [[]], ["x"], [10**60] * 5, None, 1.5, True, {"a": 1})


@dataclass
class Attacker:
    """A dishonest device at a real daemon; it counts what it tries."""

    daemon: Living
    liar: Liar
    calls: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)

    def send_all(self, bodies: Iterable[tuple[str, bytes]]) -> None:
        """Each on the calls that take such a message."""
        assert self.liar.device.credentials is not None
        address = Address("127.0.0.1", self.daemon.ports[0])
        with HostileDevice(address, self.liar.device.credentials) as hostile:
            for call, body in bodies:
                self._try(call, partial(self._call, hostile, call, body))

    def enrol(self, bodies: Iterable[bytes]) -> None:
        roots = ssl.DER_cert_to_PEM_cert(self.daemon.authority.certificate).encode()
        with grpc.secure_channel(f"127.0.0.1:{self.daemon.ports[1]}", grpc.ssl_channel_credentials(roots)) as channel:
            call = channel.unary_unary(path(ENROLMENT, "Enrol"))
            for body in bodies:
                self._try("Enrol", partial(call, body, timeout=20))

    def _try(self, name: str, call: Callable[[], Any]) -> None:
        self.calls[name] += 1
        try:
            call()
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNKNOWN:  # a handler that failed, without a word of ours
                self.failed.append(f"{name}: {error.details()}")

    def _call(self, hostile: HostileDevice, call: str, body: bytes) -> None:
        match call:
            case "Attend":
                _drain(hostile.attend([codec.encode_from_device(m.Hello()), body, _GOODBYE]))
            case "Upload":
                _drain(hostile.upload([body, codec.encode_upload(m.Chunk(0, COUNTS))]))
            case "Download":
                _drain(hostile.download(body))
            case "Fetch":
                hostile.fetch(body)
            case "Deliver":
                hostile.deliver(body)
            case _:
                hostile.renew(body)


_GOODBYE = codec.encode_from_device(m.Goodbye(m.GoodbyeReason.CLOSING))


def _drain(call: Any) -> None:
    for _ in call:
        pass


def _by_form(liar: Liar, task: m.Task) -> Iterator[tuple[str, bytes]]:
    """One field out of its form, at any depth."""
    feedback = m.Feedback("0", 1, bytes(32), 1.0, 2)
    for said in (
        m.Hello(),
        m.CheckIn(m.AffinityClaim("0", 1.0, feedback)),
        m.Decline(task.task, m.DeclineReason.TERMS),
        m.Goodbye(m.GoodbyeReason.CLOSING),
    ):
        yield from _each("Attend", "DeviceMessage", codec.encode_from_device(said))
    for header in (_update(liar, task), liar.header(COUNTS)):
        yield from _each("Upload", "UploadRequest", codec.encode_upload(header))
        whole = m.Delivery(header, m.Chunk(0, COUNTS), m.CheckIn(m.AffinityClaim("0")))
        yield from _each("Deliver", "Delivery", codec.encode_delivery(whole))
    for call in ("Download", "Fetch"):
        yield from _each(call, "DownloadRequest", codec.encode(m.DownloadRequest(task.model.blob.sha256, 1)))
    yield from _each("Renew", "RenewalRequest", codec.encode(m.RenewalRequest(liar.device.tls.request())))


def _by_meaning(liar: Liar, task: m.Task) -> Iterator[tuple[str, bytes]]:
    """Within every form, signed, and not what was asked: each field of both headers, each field of their receipts."""
    for make in (lambda: _update(liar, task), lambda: liar.header(COUNTS)):
        for each in fields(make()):
            for odd in _ODD.get(type(getattr(make(), each.name)), ()):
                yield from _delivered(liar, replace(make(), **{each.name: odd}))
    for name in json.loads(liar.receipt(COUNTS)):
        for odd in _ODD_JSON:
            yield from _delivered(liar, _with_receipt(liar, name, odd))


def _with_receipt(liar: Liar, name: str, odd: Any) -> m.SummaryHeader:
    """A header that agrees with its receipt as far as it can, though one field of the receipt is odd."""
    honest = liar.header(COUNTS)
    claims = json.loads(honest.receipt)
    del claims["signature"]
    header = replace(honest, receipt=signed_line({**claims, name: odd}, liar.device.ledger))
    return replace(header, sequence=odd) if name == "sequence" and isinstance(odd, int) else header


def _delivered(liar: Liar, header: Any) -> Iterator[tuple[str, bytes]]:
    try:
        whole = signed(replace(header, signature=b""), liar.device.id, liar.device.signing)
        yield "Deliver", codec.encode_delivery(m.Delivery(whole, m.Chunk(0, COUNTS)))
    except (WireError, PrivacyError):
        return  # out of its form, and sent so by `_by_form`


def _each(call: str, name: str, honest: bytes) -> Iterator[tuple[str, bytes]]:
    return ((call, body) for _, body in mutants(name, honest))


def _update(liar: Liar, task: m.Task) -> m.UpdateHeader:
    mechanism = mechanism_of(task)
    return replace(
        liar.device.update(COUNTS, task.task, mechanism),
        cohort=task.cohort,
        round=task.round,
        model_sha256=task.model.blob.sha256,
        payload=blob_of(bytes(mechanism.size * mechanism.width_bytes)),
        encoding=m.GridEncoding(mechanism.size, mechanism.width_bytes),
    )


def _given_a_task(liar: Liar) -> m.Task:
    """It checks in as any other, and is asked like any other."""
    with liar.device.channel() as channel, channel.attend(30) as session:
        session.check_in(m.CheckIn())
        while not isinstance(task := session.receive(60), m.Task):
            assert task is not None, "the server has nothing to do for anybody"
        return task


def _attacked(daemon: Living, folder: Path, attack: Callable[[Attacker, m.Task], None]) -> Counter[str]:
    """What was tried, on which call. All that must be true meanwhile and afterwards is looked at."""
    attacker = Attacker(daemon, Liar(daemon.stranger()))
    with honest_pair(daemon, folder):
        go_on(daemon, rounds=1)
        before, rounds = daemon.living(), daemon.rounds()
        attack(attacker, _given_a_task(attacker.liar))
        assert daemon.rounds() > rounds, "no round ended meanwhile"
        go_on(daemon)
        assert daemon.living().items() >= before.items()
        daemon.answers_everybody()
    assert attacker.failed == []
    assert daemon.faults() == []
    assert "Traceback" not in daemon.said()
    return attacker.calls


def test_every_field_of_every_message_out_of_bounds(tmp_path: Path) -> None:
    def attack(attacker: Attacker, task: m.Task) -> None:
        liar = attacker.liar
        attacker.send_all(_by_meaning(liar, task))
        attacker.send_all(_by_form(liar, task))
        request = enrolment_request(bytes(32), liar.device.tls.request(), liar.device.signing, liar.device.ledger)
        attacker.enrol(body for _, body in mutants("EnrolmentRequest", codec.encode(request)))

    with Living(tmp_path) as daemon:
        calls = _attacked(daemon.begun(), tmp_path, attack)
    assert {name: calls[name] for name in _FEWEST_CALLS if calls[name] < _FEWEST_CALLS[name]} == {}, calls


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(5))
def test_messages_scrambled_by_chance(seed: int, tmp_path: Path) -> None:
    chance = Random(seed)

    def attack(attacker: Attacker, task: m.Task) -> None:
        honest = [*_by_meaning(attacker.liar, task), *_by_form(attacker.liar, task)]
        for call, body in chance.sample(honest, 400):
            attacker.send_all((call, changed) for changed in scrambled(body, chance, 10))

    with Living(tmp_path) as daemon:
        calls = _attacked(daemon.begun(), tmp_path, attack)
    assert calls.total() == 4000
