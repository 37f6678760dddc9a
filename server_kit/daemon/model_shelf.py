"""The models and masks that devices may fetch: files by their hash, mapped when they are sent.

They are copies: a checkpoint has the model itself. So nothing here is synced, and old files go when nobody needs them.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING

from device_sdk.wire.tensors import blob_of
from server_kit.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from device_sdk.wire.messages import Blob


class ModelShelf:
    """A directory of files that no one changes."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._directory = directory

    def put(self, content: bytes) -> Blob:
        """Keep these bytes."""
        blob = blob_of(content)
        path = self._path(blob.sha256)
        if not path.exists():
            draft = path.with_suffix(f".{os.getpid()}.new")
            try:
                draft.write_bytes(content)
                draft.replace(path)
            except OSError as error:
                draft.unlink(missing_ok=True)
                raise StoreUnavailable(
                    f"a model cannot be put where devices fetch it ({error.strerror}); see to the disk; "
                    "nothing was changed"
                ) from error
        return blob

    def find(self, sha256: bytes) -> memoryview | None:
        """The bytes with this hash, mapped."""
        try:
            with self._path(sha256).open("rb") as file:
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (FileNotFoundError, ValueError):
            return None

    def count(self) -> int:
        """How many there are."""
        return sum(1 for _ in self._directory.iterdir())

    def keep_only(self, wanted: Iterable[bytes]) -> None:
        """Forget all others."""
        names = {self._path(sha256).name for sha256 in wanted}
        for path in self._directory.iterdir():
            if path.name not in names:
                path.unlink(missing_ok=True)

    def _path(self, sha256: bytes) -> Path:
        return self._directory / f"{sha256.hex()}.bin"
