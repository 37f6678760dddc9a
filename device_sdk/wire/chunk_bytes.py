"""A chunk's bytes without protobuf, which copies them three times: the same bytes, for the bulk of what is sent.

Reading takes the one spelling that we write and bounds it like the schema does; anything else is None, and left to
the codec. What is read is a view of the message, not a copy.
"""

from __future__ import annotations

from dataclasses import dataclass

from device_sdk.wire.messages import CHUNK_BYTES, Chunk

_OFFSET, _DATA, _CHUNK_IN_UPLOAD = b"\x08", b"\x12", b"\x1a"
_HEADERS, _CHECK_IN = (b"\x0a", b"\x12"), b"\x22"
_MOST_OFFSET = 1 << 34
_LONGEST_NUMBER = 5


@dataclass(frozen=True)
class DeliveryParts:
    """A delivery's fields; header and check-in as they were spelled."""

    header: bytes
    chunk: Chunk
    check_in: bytes | None


def encode_chunk(offset: int, data: memoryview) -> bytes:
    """As `codec.encode(Chunk(...))`."""
    return b"".join((_head(offset, data), data))


def encode_upload_chunk(offset: int, data: memoryview) -> bytes:
    """As `codec.encode_upload(Chunk(...))`."""
    head = _head(offset, data)
    return b"".join((_CHUNK_IN_UPLOAD, _number(len(head) + len(data)), head, data))


def encode_check_in(encoded: bytes) -> bytes:
    """What follows a delivery's chunk to say that the device is ready."""
    return b"".join((_CHECK_IN, _number(len(encoded)), encoded))


def alone(body: bytes) -> Chunk | None:
    """The chunk that `encode_chunk` spelled."""
    return _chunk(body, 0, len(body))


def in_upload(body: bytes) -> Chunk | None:
    """The chunk that `encode_upload_chunk` spelled."""
    start, end = _field(body, 0, _CHUNK_IN_UPLOAD)
    return _chunk(body, start, end) if end == len(body) else None


def in_delivery(body: bytes) -> DeliveryParts | None:
    """The parts of a delivery, as `codec.encode_delivery` spelled them."""
    _, end_of_header = _field(body, 0, *_HEADERS)
    start, end = _field(body, end_of_header, _CHUNK_IN_UPLOAD)
    chunk = _chunk(body, start, end) if 0 < end_of_header < end else None
    if chunk is None:
        return None
    if end == len(body):
        return DeliveryParts(body[:end_of_header], chunk, None)
    start, end = _field(body, end, _CHECK_IN)
    return DeliveryParts(body[:end_of_header], chunk, body[start:end]) if end == len(body) else None


def _field(body: bytes, position: int, *tags: bytes) -> tuple[int, int]:
    """Where the content of a field begins and ends; 0 and 0 if it is none of these, or goes beyond the body."""
    if body[position : position + 1] not in tags:
        return 0, 0
    length, start = _read_number(body, position + 1)
    return (start, start + length) if 0 <= length <= len(body) - start else (0, 0)


def _chunk(body: bytes, position: int, end: int) -> Chunk | None:
    offset = 0
    if body[position : position + 1] == _OFFSET:
        offset, position = _read_number(body, position + 1)
    if body[position : position + 1] != _DATA:
        return None
    length, position = _read_number(body, position + 1)
    if position + length != end or not 0 < length <= CHUNK_BYTES or offset > _MOST_OFFSET:
        return None
    return Chunk(offset, memoryview(body)[position:end])


def _head(offset: int, data: memoryview) -> bytes:
    return (_OFFSET + _number(offset) if offset else b"") + _DATA + _number(len(data))


def _number(value: int) -> bytes:
    """As protobuf spells whole numbers: seven bits a byte, lowest first."""
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def _read_number(body: bytes, position: int) -> tuple[int, int]:
    """A number and where it ends; -1 if it is none of ours."""
    value = 0
    for index, byte in enumerate(body[position : position + _LONGEST_NUMBER]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, position + index + 1
    return -1, position
