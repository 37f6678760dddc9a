"""Golden vectors: the bytes of every message, annotated field by field, kept in `vectors/`.

`python -m tests.device_sdk.wire.golden` writes them anew. Do that only for a new message or field: bytes that
change mean that devices in the field no longer understand us.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from device_sdk.wire import codec
from tests.device_sdk.wire import examples

VECTORS = Path(__file__).parent / "vectors"

Group = tuple[dict[str, Any], Callable[[Any], bytes], Callable[[bytes], Any], str]
GROUPS: list[Group] = [
    (examples.FROM_DEVICE, codec.encode_from_device, codec.decode_from_device, "DeviceMessage"),
    (examples.FROM_SERVER, codec.encode_from_server, codec.decode_from_server, "ServerMessage"),
    (examples.UPLOADS, codec.encode_upload, codec.decode_upload, "UploadRequest"),
    (examples.DELIVERIES, codec.encode_delivery, codec.decode_delivery, "Delivery"),
    (examples.UPLOAD_REPLIES, codec.encode_upload_reply, codec.decode_upload_reply, "UploadReply"),
]


def cases() -> Iterator[tuple[str, Any, Callable[[Any], bytes], Callable[[bytes], Any], str]]:
    """Name, message, encoder, decoder and protobuf type of every example."""
    for name, message in examples.ALONE.items():
        yield name, message, codec.encode, partial(codec.decode, type(message)), type(message).__name__
    for group, encode, decode, envelope in GROUPS:
        for name, message in group.items():
            yield name, message, encode, decode, envelope


def annotated(body: bytes, type_name: str) -> str:
    """The bytes in hexadecimal, a line for each field, with the field's name and value behind it."""
    descriptor = codec._twin(type_name).DESCRIPTOR
    return "\n".join([f"# {descriptor.full_name}, {len(body)} bytes", *_lines(body, descriptor, "")]) + "\n"


def bytes_of(text: str) -> bytes:
    """The bytes of an annotated vector."""
    return bytes.fromhex("".join(line.partition("#")[0] for line in text.splitlines()))


def _lines(body: bytes, descriptor: Any, indent: str) -> Iterator[str]:
    position = 0
    while position < len(body):
        start = position
        tag, position = _varint(body, position)
        field = descriptor.fields_by_number[tag >> 3]
        if tag & 7 == 2:
            length, position = _varint(body, position)
            content = body[position : position + length]
            head = body[start:position].hex(" ")
            position += length
            if field.message_type is not None:
                yield f"{indent}{head}  # {field.name} ({field.number}): {length} bytes of {field.message_type.name}"
                yield from _lines(content, field.message_type, indent + "  ")
            else:
                yield f"{indent}{head} {content.hex(' ')}  # {field.name} ({field.number}): {_shown(field, content)}"
        else:
            value, position = _double(body, position) if tag & 7 == 1 else _varint(body, position)
            yield f"{indent}{body[start:position].hex(' ')}  # {field.name} ({field.number}): {value:g}"


def _shown(field: Any, content: bytes) -> str:
    if field.type == field.TYPE_STRING:
        return content.decode()
    return f"{len(content)} bytes"


def _double(body: bytes, position: int) -> tuple[float, int]:
    return struct.unpack_from("<d", body, position)[0], position + 8


def _varint(body: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = body[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if not byte & 0x80:
            return value, position


if __name__ == "__main__":
    VECTORS.mkdir(exist_ok=True)
    for name, message, encode, _, type_name in cases():
        (VECTORS / f"{name}.txt").write_text(annotated(encode(message), type_name), encoding="utf-8")
