"""Small models travel with the tasks that name them, so that nobody has to ask for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from device_sdk.wire.codec import MAX_CONTROL_BYTES, encode_enclosed, encode_from_server
from device_sdk.wire.messages import ENCLOSED_BYTES, Task
from server_kit.daemon.refusals import log

if TYPE_CHECKING:
    from device_sdk.wire.messages import DeviceId, ServerMessage
    from server_kit.daemon.desk import Models

_MOST_KEPT = 16


class Enclosures:
    """Encodes what is said to devices, with what goes with it. Blocks on the desk; safe to use from several threads."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._encoded: dict[bytes, bytes] = {}

    def encoded(self, device: DeviceId, message: ServerMessage) -> bytes:
        """The bytes of a message; with its model, if it is a task and the model is small."""
        body = encode_from_server(message)
        if not isinstance(message, Task) or message.model.blob.size_bytes > ENCLOSED_BYTES:
            return body
        sha256 = message.model.blob.sha256
        enclosed = self._encoded.get(sha256) or self._read(device, sha256)
        return body if len(body) + len(enclosed) > MAX_CONTROL_BYTES else body + enclosed

    def _read(self, device: DeviceId, sha256: bytes) -> bytes:
        """The encoded model, kept for others who get it; empty if there is none: devices ask, and are told why."""
        try:
            content = self._models.blob(device, sha256)
        except Exception:
            log.exception("failed to read a model that was to go with its task; devices will ask for it")
            return b""
        if content is None:
            return b""
        encoded = encode_enclosed(bytes(content))
        # A new dictionary, because others read the old one meanwhile.
        kept = list(self._encoded.items())[1 - _MOST_KEPT :]
        self._encoded = dict([*kept, (sha256, encoded)])
        return encoded
