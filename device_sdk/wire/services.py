"""The names under which the two ends find each other, and the limits that gRPC itself keeps for them."""

from __future__ import annotations

from device_sdk.wire.codec import MAX_MESSAGE_BYTES

ENROLMENT = "covey.v1.Enrolment"
FEDERATION = "covey.v1.Federation"
ERROR_METADATA = "covey-error-bin"
"""The trailing metadata that holds an encoded `Error`."""

_PING_ANSWER_SECONDS = 20
_WINDOW_BYTES = 2 << 20
_FRAME_BYTES = 1 << 20

KEEPALIVE_PATIENCE = (
    ("grpc.keepalive_timeout_ms", _PING_ANSWER_SECONDS * 1000),
    # Without this one gRPC waits a minute for the answer to a ping, whatever the other says.
    ("grpc.http2.ping_timeout_ms", _PING_ANSWER_SECONDS * 1000),
)
MESSAGE_LIMITS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", 8192),
    ("grpc.absolute_max_metadata_size", 16384),
    # Left to itself gRPC widens its window until tens of megabytes of a transfer wait in memory.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
    # A chunk in a frame or two instead of 64: less to do, and less to keep, for both ends.
    ("grpc.http2.max_frame_size", _FRAME_BYTES),
)


def path(service: str, method: str) -> str:
    return f"/{service}/{method}"
