"""A checkpoint as a file: safetensors, with the JSON document as one of the tensors, and a checksum over all of it.

    metadata      format, the name under which it was put away, and the SHA-256 of the file without these 64 digits
    document      JSON in UTF-8
    everything else is a tensor of the state

Any tool for safetensors opens it; there is no pickle and no name that is imported. Nothing is parsed before the
checksum holds, and that rule stays with later formats. It is against accidents: whoever may write here can make one.
"""

from __future__ import annotations

import errno
import hashlib
import json
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save, save_file

from server_kit.checkpoints.packing import Packed
from server_kit.errors import CheckpointTooNew, CorruptCheckpoint, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMAT = "covey-checkpoint-1"
_KIND, _DOCUMENT = FORMAT.rpartition("-")[0], "document"
_BLANK = "0" * 64
_FIELD = b'"checksum":"'
_LENGTH_BYTES = 8
_MOST_HEADER_BYTES = 100_000_000  # of safetensors itself
_PIECE_BYTES = 1 << 20


def write_file(path: Path, packed: Packed, name: str) -> None:
    """Write a checkpoint that goes by `name`, private to this user; tensors are written from where they lie."""
    save_file(_tensors(packed), path, _metadata(name))
    path.chmod(0o600)
    with path.open("r+b") as file:
        place = _place_of_checksum(file)
        checksum = _checksum(file, place)
        file.seek(place)
        file.write(checksum)


def file_bytes(packed: Packed, name: str) -> bytes:
    """What `write_file` would write, for what is small: two more copies of it, and no file yet."""
    file = BytesIO(save(_tensors(packed), _metadata(name)))
    place = _place_of_checksum(file)
    checksum = _checksum(file, place)
    file.seek(place)
    file.write(checksum)
    return file.getvalue()


def _tensors(packed: Packed) -> dict[str, torch.Tensor]:
    document = json.dumps(packed.document, allow_nan=False, separators=(",", ":")).encode()
    # `bytearray`: torch warns about memory that it may not write to.
    return {**packed.tensors, _DOCUMENT: torch.frombuffer(bytearray(document), dtype=torch.uint8)}


def _metadata(name: str) -> dict[str, str]:
    return {"format": FORMAT, "name": name, "checksum": _BLANK}


def read_file(path: Path, name: str) -> Packed:
    """What lies in a file, if that is the checkpoint `name`, whole; tensors are mapped, not read.

    `FileNotFoundError` if there is none.
    """
    try:
        with path.open("rb") as file:
            _check(file, name)
        with safe_open(path, framework="pt") as opened:
            metadata = opened.metadata()
            _check_metadata(metadata or {}, name)
            tensors = {each: opened.get_tensor(each) for each in opened.keys()}  # noqa: SIM118 - not a dict
        document = json.loads(tensors.pop(_DOCUMENT).numpy().tobytes())
    except (KeyError, SafetensorError, ValueError) as error:
        raise _unreadable(name, error) from error
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno == errno.EIO:
            raise _unreadable(name, error) from error
        # Too many open files, for one, say nothing about this one.
        raise StoreUnavailable(
            f"checkpoint {name} could not be opened ({error.strerror}); see to it and start again; nothing was changed"
        ) from error
    return Packed(document, tensors)


def _unreadable(name: str, error: Exception) -> CorruptCheckpoint:
    return CorruptCheckpoint(
        f"checkpoint {name} cannot be read ({type(error).__name__}); restore it from a backup; nothing was used"
    )


def _check(file: BinaryIO, name: str) -> None:
    place = _place_of_checksum(file)
    expected = _checksum(file, place)
    file.seek(place)
    if file.read(len(_BLANK)) != expected:
        raise CorruptCheckpoint(
            f"checkpoint {name} does not match its checksum, so it was altered or cut; restore it from a backup; "
            "nothing of it was used"
        )


def _check_metadata(metadata: dict[str, str], name: str) -> None:
    kind, _, version = metadata["format"].rpartition("-")
    if kind == _KIND and version.isdecimal() and metadata["format"] != FORMAT:
        raise CheckpointTooNew(
            f"checkpoint {name} has format {metadata['format']} and this version of Covey reads {FORMAT}; run the "
            "version that wrote it; it was not read"
        )
    if metadata["format"] != FORMAT or metadata["name"] != name:
        raise CorruptCheckpoint(
            f"what lies under the name {name} is another checkpoint or none; restore it from a backup; it was not used"
        )


def _place_of_checksum(file: BinaryIO) -> int:
    """Where the 64 digits are; ValueError where there are none."""
    file.seek(0)
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    header = file.read(min(length, _MOST_HEADER_BYTES))
    return _LENGTH_BYTES + header.index(_FIELD) + len(_FIELD)


def _checksum(file: BinaryIO, place: int) -> bytes:
    """Of everything but the digits themselves."""
    digest = hashlib.sha256()
    file.seek(0)
    digest.update(file.read(place))
    file.seek(len(_BLANK), 1)
    for piece in _pieces(file):
        digest.update(piece)
    return digest.hexdigest().encode()


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(_PIECE_BYTES):
        yield piece
