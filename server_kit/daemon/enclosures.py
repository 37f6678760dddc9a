"""Small models travel ahead of the tasks that name them, so that nobody has to ask for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from device_sdk.wire.codec import encode_from_server
from device_sdk.wire.messages import ENCLOSED_BYTES, Enclosure, Task
from server_kit.daemon.refusals import log

if TYPE_CHECKING:
    from device_sdk.wire.messages import DeviceId, ServerMessage
    from server_kit.daemon.desk import Models

_MOST_KEPT = 16


class Enclosures:
    """What goes before a message. Blocks on the desk; safe to use from several threads."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._encoded: dict[bytes, bytes] = {}

    def before(self, device: DeviceId, message: ServerMessage | None) -> bytes | None:
        """The bytes to be sent ahead; none for what is not a task, and for a model that the device is to fetch."""
        if not isinstance(message, Task) or message.model.blob.size_bytes > ENCLOSED_BYTES:
            return None
        sha256 = message.model.blob.sha256
        found = self._encoded.get(sha256)
        return self._read(device, sha256) if found is None else found

    def _read(self, device: DeviceId, sha256: bytes) -> bytes | None:
        try:
            content = self._models.blob(device, sha256)
        except Exception:
            log.exception("failed to read a model that was to go with its task; devices will ask for it")
            return None
        if content is None:
            return None
        encoded = encode_from_server(Enclosure(bytes(content)))
        # A new dictionary, because others read the old one meanwhile.
        kept = list(self._encoded.items())[1 - _MOST_KEPT :]
        self._encoded = dict([*kept, (sha256, encoded)])
        return encoded
