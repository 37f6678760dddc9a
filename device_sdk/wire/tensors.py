"""Tensors as bytes, in pieces: what is declared is checked before memory is taken, what arrives before it is used.

A model is a safetensors file. Reading it here copies nothing and believes nothing: the preamble must say exactly
what the task declared, and every number must be finite. An update is integers on a grid, packed to the fewest
whole bytes (`privacy.packing`), with nothing around them.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from device_sdk.wire.coherence import tensor_bytes
from device_sdk.wire.errors import MalformedMessage, PayloadMismatch, TooLarge
from device_sdk.wire.hashing import BackgroundHash
from device_sdk.wire.messages import CHUNK_BYTES, Blob, Chunk, Dtype, TensorSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Tensors = Mapping[str, NDArray[Any]]

_LENGTH_BYTES = 8
_NUMPY_TYPES = {"F32": "<f4", "F16": "<f2", "I32": "<i4", "I64": "<i8", "U8": "u1", "BOOL": "?"}
_CHECKED_AT_ONCE = 1 << 20
_IN_SMALL_PAGES_BYTES = 4 * CHUNK_BYTES
"""The end of a transfer, which memory is taken for as it comes: the peak is there, with the last pieces under way."""


def blob_of(payload: bytes | memoryview) -> Blob:
    """The name of some bytes."""
    return Blob(hashlib.sha256(payload).digest(), len(payload))


def chunks(payload: bytes | memoryview, offset: int = 0) -> Iterator[Chunk]:
    """The payload from `offset` on, in pieces of `CHUNK_BYTES`."""
    view = memoryview(payload)
    for start in range(offset, len(view), CHUNK_BYTES):
        yield Chunk(start, bytes(view[start : start + CHUNK_BYTES]))


def fits(chunk: Chunk, received: int, blob: Blob) -> bool:
    """Whether a piece is the next of a transfer: full-sized, or the last."""
    return chunk.offset == received and len(chunk.data) == min(CHUNK_BYTES, blob.size_bytes - received)


class Assembly:
    """Puts a transfer together again. Survives a cut: `received` is where to go on."""

    def __init__(self, blob: Blob, most_bytes: int) -> None:
        if blob.size_bytes > most_bytes:
            raise TooLarge(f"{blob.size_bytes} bytes were announced and at most {most_bytes} are taken; none were")
        self._blob = blob
        self._buffer = memoryview(_buffer(blob.size_bytes))
        # A thread would take longer to start than one piece takes to hash.
        self._hash = BackgroundHash() if blob.size_bytes > CHUNK_BYTES else hashlib.sha256()
        self.received = 0

    @property
    def complete(self) -> bool:
        return self.received == self._blob.size_bytes

    def add(self, chunk: Chunk) -> None:
        """Take the next piece; one that is out of place or too long ends the transfer."""
        if not fits(chunk, self.received, self._blob):
            raise MalformedMessage("a piece of a transfer is out of place or beyond its end; it was not used")
        end = chunk.offset + len(chunk.data)
        self._buffer[chunk.offset : end] = chunk.data
        self._hash.update(self._buffer[chunk.offset : end])
        self.received = end

    def finish(self) -> memoryview:
        """All bytes, if they are those that were announced."""
        if not self.complete or self._hash.digest() != self._blob.sha256:
            raise PayloadMismatch("the bytes that arrived are not those that were announced; they were thrown away")
        return self._buffer.toreadonly()


def _buffer(size_bytes: int) -> bytearray | mmap.mmap:
    """Memory for a transfer. Large ones are mapped, in large pages where there are: filling it twice takes time."""
    if size_bytes <= CHUNK_BYTES:
        return bytearray(size_bytes)
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return mmap.mmap(-1, size_bytes)
    # Private, which is not Python's default: Linux gives shared memory in small pages, whatever it is advised.
    mapped = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # as it raises where the kernel was built without large pages
        mapped.madvise(mmap.MADV_HUGEPAGE, 0, max(0, size_bytes - _IN_SMALL_PAGES_BYTES))
    return mapped


def model_bytes(tensors: Tensors) -> bytes:
    """A model as a safetensors file."""
    from safetensors.numpy import save

    return save(dict(tensors))


def model_specs(tensors: Tensors) -> tuple[TensorSpec, ...]:
    """What a task declares about a model, in the order of the names."""
    names = {numpy_type.lstrip("<"): name for name, numpy_type in _NUMPY_TYPES.items()}
    return tuple(
        TensorSpec(name, Dtype(names[_short_type(tensor.dtype)]), tuple(tensor.shape))
        for name, tensor in sorted(tensors.items())
    )


def read_model(payload: bytes | memoryview, declared: tuple[TensorSpec, ...]) -> dict[str, NDArray[Any]]:
    """The tensors of a safetensors file, as read-only views of `payload`; exactly those that were declared."""
    import numpy as np

    view = memoryview(payload).toreadonly()
    start, preamble = _preamble(view)
    expected = {spec.name: spec for spec in declared}
    if preamble.keys() - {"__metadata__"} != expected.keys() or len(view) - start != tensor_bytes(declared):
        raise PayloadMismatch("this model has other tensors than its task declared; it was thrown away")
    tensors, spans = {}, []
    for name, spec in sorted(expected.items()):
        begin, end = _span(preamble[name], spec)
        spans.append((begin, end))
        flat = np.frombuffer(view[start + begin : start + end], dtype=_NUMPY_TYPES[spec.dtype.value])
        _check_numbers(flat)
        tensors[name] = flat.reshape(spec.shape)
    _check_disjoint(spans)
    return tensors


def _preamble(view: memoryview) -> tuple[int, dict[str, Any]]:
    length = int.from_bytes(view[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + length
    if len(view) < _LENGTH_BYTES or start > len(view):
        raise PayloadMismatch("this model is not a safetensors file; it was thrown away")
    try:
        preamble = json.loads(bytes(view[_LENGTH_BYTES:start]))
    except (ValueError, RecursionError) as error:
        raise PayloadMismatch("this model is not a safetensors file; it was thrown away") from error
    if not isinstance(preamble, dict):
        raise PayloadMismatch("this model is not a safetensors file; it was thrown away")
    return start, preamble


def _span(entry: Any, spec: TensorSpec) -> tuple[int, int]:
    """Where a tensor's bytes lie, if its entry says what was declared."""
    size = math.prod(spec.shape) * spec.dtype.width_bytes
    match entry:
        case {"dtype": spec.dtype.value, "shape": list(shape), "data_offsets": [int(begin), int(end)]} if (
            tuple(shape) == spec.shape and begin >= 0 and end - begin == size
        ):
            return begin, end
    raise PayloadMismatch("a tensor of this model differs in type or shape from its task; the model was thrown away")


def _check_disjoint(spans: list[tuple[int, int]]) -> None:
    """Together with the total size this means: every byte belongs to one tensor."""
    position = 0
    for begin, end in sorted(spans):
        if begin != position:
            raise PayloadMismatch("the tensors of this model overlap or leave gaps; it was thrown away")
        position = end


def _check_numbers(flat: NDArray[Any]) -> None:
    import numpy as np

    # In pieces, so that the check itself takes little memory.
    for start in range(0, len(flat), _CHECKED_AT_ONCE):
        piece = flat[start : start + _CHECKED_AT_ONCE]
        if piece.dtype.kind == "f" and not np.isfinite(piece).all():
            raise PayloadMismatch("this model holds numbers that are not finite; it was thrown away")
        if piece.dtype.kind == "b" and (piece.view(np.uint8) > 1).any():
            raise PayloadMismatch("this model holds truth values that are neither; it was thrown away")


def _short_type(dtype: np.dtype[Any]) -> str:
    """`f4` for float32, whatever the byte order; safetensors writes little-endian."""
    short = "?" if dtype.kind == "b" else f"{dtype.kind}{dtype.itemsize}"
    if short not in {name.lstrip("<") for name in _NUMPY_TYPES.values()}:
        raise MalformedMessage(f"a model's tensors cannot hold {dtype.name}; nothing was sent")
    return short
