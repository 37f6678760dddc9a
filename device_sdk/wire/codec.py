"""The one place where protobuf meets messages: bytes in, checked values out, and back.

A message's length is checked before it is parsed, every field before it is used, and the parts against each
other. Whatever arrives, the outcome is a message or a `MalformedMessage`. Unknown fields are skipped: a newer
minor version may have added them. An unknown kind of message in a stream is None, to be ignored.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar, cast

from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from device_sdk.wire import chunk_bytes
from device_sdk.wire import messages as m
from device_sdk.wire._generated.federation_descriptor import SERIALIZED
from device_sdk.wire.coherence import check_coherence
from device_sdk.wire.errors import MalformedMessage, TooLarge, WrongVersion
from device_sdk.wire.schema import ENVELOPES, read_fields, write_fields

PACKAGE = "covey.v1"
MAX_CONTROL_BYTES = 512 * 1024
MAX_MESSAGE_BYTES = m.CHUNK_BYTES + (1 << 18)
"""The largest message of all: a chunk and its header."""

M = TypeVar("M")

_WRITTEN = "written"
# A pool of our own: an app may hold other schemas, and another version of this one.
_POOL = DescriptorPool()
_POOL.AddSerializedFile(SERIALIZED)


def encode(message: m.Message) -> bytes:
    """The bytes of a message that travels alone."""
    written = _written(message)
    if written is not None:
        return written
    twin = _twin(type(message).__name__)()
    write_fields(twin, message)
    check_coherence(message)
    body = cast("bytes", twin.SerializeToString(deterministic=True))
    # Kept with the message, which never changes: a task is booked, and then sent.
    vars(message)[_WRITTEN] = body
    return body


def decode(cls: type[M], body: bytes) -> M:
    """The message of class `cls` in `body`."""
    return _read(cls, _parse(cls.__name__, body, MAX_CONTROL_BYTES))


def encode_from_device(message: m.DeviceMessage) -> bytes:
    return _wrap("DeviceMessage", message)


def decode_from_device(body: bytes) -> m.DeviceMessage | None:
    return cast("m.DeviceMessage | None", _unwrap("DeviceMessage", body))


def encode_from_server(message: m.ServerMessage) -> bytes:
    body = _wrap("ServerMessage", message)
    if len(body) > MAX_CONTROL_BYTES:  # many models of many tensors: each part is within its bounds
        raise TooLarge(f"a message of {len(body)} bytes exceeds the limit of {MAX_CONTROL_BYTES}; it was not sent")
    return body


def decode_from_server(body: bytes) -> m.ServerMessage | None:
    return decode_with_enclosed(body)[0]


def encode_enclosed(content: bytes) -> bytes:
    """What follows the bytes of a task to enclose its model."""
    return cast("bytes", _twin("ServerMessage")(enclosed=content).SerializeToString())


def decode_with_enclosed(body: bytes) -> tuple[m.ServerMessage | None, bytes]:
    """A message and what is enclosed in it, if anything."""
    twin = _parse("ServerMessage", body, MAX_CONTROL_BYTES)
    if len(twin.enclosed) > m.ENCLOSED_BYTES:
        raise TooLarge(f"more than {m.ENCLOSED_BYTES} bytes are enclosed in a message; it was not used")
    message = cast("m.ServerMessage | None", _inside(twin))
    if isinstance(message, m.Task):
        # A device writes it down as it came, less what it does not know: that is how `encode` would spell it.
        twin.task.DiscardUnknownFields()
        vars(message)[_WRITTEN] = twin.task.SerializeToString(deterministic=True)
    return message, twin.enclosed


def encode_upload(message: m.UploadRequest) -> bytes:
    return _wrap("UploadRequest", message)


def decode_upload(body: bytes) -> m.UploadRequest:
    chunk = chunk_bytes.in_upload(body)
    return chunk or cast("m.UploadRequest", _required(_unwrap("UploadRequest", body, MAX_MESSAGE_BYTES)))


def encode_upload_reply(message: m.UploadReply) -> bytes:
    return _wrap("UploadReply", message)


def decode_upload_reply(body: bytes) -> m.UploadReply:
    return cast("m.UploadReply", _required(_unwrap("UploadReply", body)))


def decode_chunk(body: bytes) -> m.Chunk:
    return chunk_bytes.alone(body) or _read(m.Chunk, _parse("Chunk", body, MAX_MESSAGE_BYTES))


def encode_delivery(delivery: m.Delivery) -> bytes:
    # Header and chunk have the same numbers here as in an upload, so their bytes are the same too.
    chunk, check_in = delivery.chunk, delivery.check_in
    body = encode_upload(delivery.header) + chunk_bytes.encode_upload_chunk(chunk.offset, memoryview(chunk.data))
    return body if check_in is None else body + chunk_bytes.encode_check_in(encode(check_in))


def decode_delivery(body: bytes) -> m.Delivery:
    parts = chunk_bytes.in_delivery(body)
    if parts is None:
        return _read(m.Delivery, _parse("Delivery", body, MAX_MESSAGE_BYTES))
    header = _required(_unwrap("UploadRequest", parts.header))
    return m.Delivery(header, parts.chunk, None if parts.check_in is None else decode(m.CheckIn, parts.check_in))


@cache
def _twin(name: str) -> Any:
    return GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


def _parse(name: str, body: bytes, most_bytes: int) -> Any:
    if len(body) > most_bytes:
        raise TooLarge(f"a message of {len(body)} bytes exceeds the limit of {most_bytes}; it was not read")
    try:
        return _twin(name).FromString(body)
    except DecodeError as error:
        raise MalformedMessage("these bytes are not a message of this protocol; they were not used") from error


def _read(cls: type[M], twin: Any) -> M:
    # First of all: what another major version means by the rest, nobody knows.
    if "version" in twin.DESCRIPTOR.fields_by_name:
        _check_version(twin.version)
    message: M = read_fields(cls, twin)
    check_coherence(message)
    return message


def _check_version(version: Any) -> None:
    if version.major != m.THIS_VERSION.major:
        raise WrongVersion(
            f"the other end speaks version {version.major}.{version.minor} of the protocol and this one "
            f"{m.THIS_VERSION.major}.{m.THIS_VERSION.minor}; update the older of the two; nothing was done"
        )


def _wrap(envelope: str, message: Any) -> bytes:
    kinds = ENVELOPES[envelope]
    name = next(name for name, cls in kinds.items() if cls is type(message))
    twin = _twin(envelope)()
    part = getattr(twin, name)
    part.SetInParent()
    written = _written(message)
    if written is not None:
        part.MergeFromString(written)
    else:
        write_fields(part, message)
        check_coherence(message)
    return cast("bytes", twin.SerializeToString(deterministic=True))


def _written(message: Any) -> bytes | None:
    """The bytes of a message that was encoded before."""
    return cast("bytes | None", vars(message).get(_WRITTEN))


def _unwrap(envelope: str, body: bytes, most_bytes: int = MAX_CONTROL_BYTES) -> Any | None:
    return _inside(_parse(envelope, body, most_bytes))


def _inside(twin: Any) -> Any | None:
    name = twin.WhichOneof("kind")
    return None if name is None else _read(ENVELOPES[twin.DESCRIPTOR.name][name], getattr(twin, name))


def _required(message: Any | None) -> Any:
    if message is None:
        raise MalformedMessage("this message is of an unknown kind; it was not used")
    return message
