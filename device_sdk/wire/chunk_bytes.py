"""A chunk's bytes without protobuf, which copies them three times: the same bytes, for the bulk of what is sent.

Reading takes the one spelling that we write and bounds it like the schema does; anything else is None, and left to
the codec. What is read is a view of the message, not a copy.
"""

from __future__ import annotations

from device_sdk.wire.messages import CHUNK_BYTES, Chunk

_OFFSET, _DATA, _CHUNK_IN_UPLOAD = b"\x08", b"\x12", b"\x1a"
_HEADERS = (b"\x0a", b"\x12")
_MOST_OFFSET = 1 << 34
_LONGEST_NUMBER = 5


def encode_chunk(offset: int, data: memoryview) -> bytes:
    """As `codec.encode(Chunk(...))`."""
    return b"".join((_head(offset, data), data))


def encode_upload_chunk(offset: int, data: memoryview) -> bytes:
    """As `codec.encode_upload(Chunk(...))`."""
    head = _head(offset, data)
    return b"".join((_CHUNK_IN_UPLOAD, _number(len(head) + len(data)), head, data))


def alone(body: bytes) -> Chunk | None:
    """The chunk that `encode_chunk` spelled."""
    return _chunk(body, 0)


def in_upload(body: bytes, position: int = 0) -> Chunk | None:
    """The chunk that `encode_upload_chunk` spelled, from `position` to the end."""
    if body[position : position + 1] != _CHUNK_IN_UPLOAD:
        return None
    length, start = _read_number(body, position + 1)
    return _chunk(body, start) if start + length == len(body) else None


def end_of_header(body: bytes) -> int:
    """Where a delivery's first field ends, if that is its header; else 0."""
    if body[:1] not in _HEADERS:
        return 0
    length, start = _read_number(body, 1)
    return start + length if length > 0 else 0


def _chunk(body: bytes, position: int) -> Chunk | None:
    offset = 0
    if body[position : position + 1] == _OFFSET:
        offset, position = _read_number(body, position + 1)
    if body[position : position + 1] != _DATA:
        return None
    length, position = _read_number(body, position + 1)
    if position + length != len(body) or not 0 < length <= CHUNK_BYTES or offset > _MOST_OFFSET:
        return None
    return Chunk(offset, memoryview(body)[position:])


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
