"""A large payload as a sealed blob: pieces of a mebibyte, each bound to its blob, its place and their number.

    length of the piece (4 bytes) ‖ sealed piece, again and again

Every blob has a key of its own, which stands sealed in its row. So a piece that is swapped, repeated, left out or cut
does not open, and rotating the store's keys need not touch the blob.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from privacy.errors import SealBroken
from privacy.sealing import open_sealed, place, seal
from server_kit.errors import CorruptRecord
from server_kit.store.blobs import unavailable

if TYPE_CHECKING:
    from server_kit.store.blobs import Blobs

PIECE_BYTES = 1 << 20
_TAG = "covey-blob-v1"
_LENGTH_BYTES = 4
_MOST_OVERHEAD_BYTES = 64


def sealed_pieces(content: bytes | Path, key: bytes, name: str) -> Iterator[bytes]:
    """What to write as the blob `name`."""
    count = num_pieces(_size_bytes(content))
    for number, piece in enumerate(_pieces(content)):
        sealed = seal(key, piece, place(_TAG, name, number, count))
        yield len(sealed).to_bytes(_LENGTH_BYTES)
        yield sealed


def opened_pieces(blobs: Blobs, key: bytes, name: str, size_bytes: int) -> Iterator[bytes]:
    """The pieces of the blob `name`, in order; `CorruptRecord` at the first that does not open, or is not there."""
    try:
        file = blobs.open(name)
    except FileNotFoundError:
        raise CorruptRecord from None
    count, opened_bytes = num_pieces(size_bytes), 0
    with file:
        for number in range(count):
            piece = _opened(file, key, place(_TAG, name, number, count))
            opened_bytes += len(piece)
            yield piece
        if opened_bytes != size_bytes or file.read(1):
            raise CorruptRecord


def opened_part(blobs: Blobs, key: bytes, name: str, size_bytes: int, span: tuple[int, int]) -> bytes:
    """Some of the bytes of the blob `name`, out of the pieces that hold them; `CorruptRecord` as in `opened_pieces`."""
    start, stop = span
    if start >= stop:
        return b""
    first, last, count = start // PIECE_BYTES, (stop - 1) // PIECE_BYTES, num_pieces(size_bytes)
    try:
        file = blobs.open(name)
    except FileNotFoundError:
        raise CorruptRecord from None
    with file:
        with unavailable():
            # All sealed pieces but the last are of one length.
            each = _LENGTH_BYTES + int.from_bytes(file.read(_LENGTH_BYTES))
            file.seek(first * each)
        opened = b"".join(_opened(file, key, place(_TAG, name, number, count)) for number in range(first, last + 1))
    found = opened[start - first * PIECE_BYTES : stop - first * PIECE_BYTES]
    if len(found) != stop - start:
        raise CorruptRecord
    return found


def _opened(file: BinaryIO, key: bytes, of: bytes) -> bytes:
    with unavailable():
        sealed = _next(file)
    try:
        return open_sealed(key, sealed, of)
    except SealBroken:
        raise CorruptRecord from None


def num_pieces(size_bytes: int) -> int:
    return math.ceil(size_bytes / PIECE_BYTES)


def _next(file: BinaryIO) -> bytes:
    length = int.from_bytes(file.read(_LENGTH_BYTES))
    if length > PIECE_BYTES + _MOST_OVERHEAD_BYTES:
        raise CorruptRecord
    return file.read(length)


def _size_bytes(content: bytes | Path) -> int:
    return content.stat().st_size if isinstance(content, Path) else len(content)


def _pieces(content: bytes | Path) -> Iterator[bytes]:
    if isinstance(content, bytes):
        for start in range(0, len(content), PIECE_BYTES):
            yield content[start : start + PIECE_BYTES]
        return
    with content.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece
