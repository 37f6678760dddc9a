"""Messages of the protocol with one field out of bounds, made from the protocol's own descriptors.

Fields are put together as bytes, so that what no library would write can be sent too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from device_sdk.wire._generated.federation_descriptor import SERIALIZED
from device_sdk.wire.codec import PACKAGE

_POOL = DescriptorPool()
_POOL.AddSerializedFile(SERIALIZED)
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WHOLES = (0, 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1)
_REALS = (0.0, -1.0, float("nan"), float("inf"), float("-inf"), 1e308, 5e-324)
_TEXTS = (
    b"",
    b"x" * 5000,
    b"\xff\xfe\xc0",
    b"\x00\x1b[2J\r\n",
    "\N{RIGHT-TO-LEFT OVERRIDE}\N{MATHEMATICAL DOUBLE-STRUCK CAPITAL X}".encode(),
    b"-1",
    b"1e999999999",
    b"1/0",
    b"../../etc/passwd",
    b"'; DROP TABLE summaries; --",
)
_MANY = 10_000
_MOST_BYTES = 400_000


def mutants(name: str, honest: bytes) -> Iterator[tuple[str, bytes]]:
    """Every message of this kind with one field, at any depth, out of bounds; and what was done to it."""
    twin = GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))
    yield from _mutants(twin.FromString(honest), name)
    yield f"{name} cut", honest[: len(honest) // 2]
    yield f"{name} empty", b""
    yield f"{name} of noise", bytes(range(256)) * 4


def scrambled(honest: bytes, chance: Random, count: int) -> Iterator[bytes]:
    """The message with some of its bytes changed, cut out or repeated."""
    for _ in range(count):
        body = bytearray(honest)
        for _ in range(chance.randint(1, 8)):
            place = chance.randrange(max(1, len(body)))
            match chance.randrange(3):
                case 0 if body:
                    body[place % len(body)] ^= 1 << chance.randrange(8)
                case 1:
                    del body[place : place + chance.randint(1, 16)]
                case _:
                    body[place:place] = body[place : place + chance.randint(1, 64)]
        yield bytes(body)


def _mutants(message: Any, where: str) -> Iterator[tuple[str, bytes]]:
    for field in message.DESCRIPTOR.fields:
        others, named = _without(message, field), f"{where}.{field.name}"
        yield f"{named} missing", others
        for what, value in _values(message, field, named):
            yield what, others + value


def _values(message: Any, field: FieldDescriptor, named: str) -> Iterator[tuple[str, bytes]]:
    held = getattr(message, field.name)
    if field.message_type is not None:
        parts = list(held) if _is_repeated(field) else [held] if message.HasField(field.name) else []
        for part in parts[:1]:
            for what, body in _mutants(part, named):
                yield what, _tagged(field, _BYTES, _sized(body))
            yield f"{named} twice", _tagged(field, _BYTES, _sized(part.SerializeToString())) * 2
            yield from _often(named, _tagged(field, _BYTES, _sized(part.SerializeToString())))
        yield f"{named} of nothing", _tagged(field, _BYTES, _sized(b""))
        return
    for number, (kind, value) in enumerate(_odd(field, held)):
        yield f"{named} odd {number}", _tagged(field, kind, value)
    yield f"{named} of another kind", _tagged(field, _FIXED32, b"\xff" * 4)
    if _is_repeated(field):
        yield from _often(named, _tagged(field, *next(_odd(field, held))))


def _odd(field: FieldDescriptor, held: Any) -> Iterator[tuple[int, bytes]]:
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        yield from ((_FIXED64, struct.pack("<d", value)) for value in _REALS)
    elif field.type == FieldDescriptor.TYPE_STRING:
        yield from ((_BYTES, _sized(value)) for value in _TEXTS)
    elif field.type == FieldDescriptor.TYPE_BYTES:
        body = b"" if _is_repeated(field) else bytes(held)
        for value in (b"", b"\0", body[:-1], body + b"x", bytes(len(body)), bytes(100_000)):
            yield _BYTES, _sized(value)
    else:
        yield from ((_VARINT, _varint(value)) for value in _WHOLES)


def _often(named: str, once: bytes) -> Iterator[tuple[str, bytes]]:
    yield f"{named} very often", once * min(_MANY, _MOST_BYTES // max(1, len(once)))


def _without(message: Any, field: FieldDescriptor) -> bytes:
    copy = type(message)()
    copy.CopyFrom(message)
    copy.ClearField(field.name)
    return bytes(copy.SerializeToString())


def _is_repeated(field: FieldDescriptor) -> bool:
    # Newer versions of protobuf have dropped the label, older ones have nothing else.
    return bool(field.is_repeated) if hasattr(field, "is_repeated") else field.label == FieldDescriptor.LABEL_REPEATED


def _tagged(field: FieldDescriptor, kind: int, value: bytes) -> bytes:
    return _varint(field.number << 3 | kind) + value


def _sized(body: bytes) -> bytes:
    return _varint(len(body)) + body


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
