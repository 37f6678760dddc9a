"""Integers as bytes of a fixed width, so that a message's length never depends on what it says.

A value that does not fit is moved to the nearest end of the range. It is noised already, so this
is post-processing and costs no privacy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from privacy.errors import InvalidTerms

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray

COUNT_WIDTH_BYTES = 8
_NATIVE_WIDTHS = frozenset({1, 2, 4, 8})
"""Of integers that need not be put together from their bytes."""


def width_for(largest: int) -> int:
    """The fewest whole bytes that hold every integer in [-largest, largest]; eight at most."""
    width = largest.bit_length() // 8 + 1
    if width > COUNT_WIDTH_BYTES:
        raise InvalidTerms(
            f"noise this large needs integers of {width} bytes, and {COUNT_WIDTH_BYTES} are the most; "
            "use a smaller noise multiplier or a coarser grid; nothing was booked"
        )
    return width


def pack(values: Iterable[int], width_bytes: int = COUNT_WIDTH_BYTES) -> bytes:
    """Signed little-endian integers, `width_bytes` each."""
    limit = 1 << (8 * width_bytes - 1)
    return b"".join(max(-limit, min(limit - 1, value)).to_bytes(width_bytes, "little", signed=True) for value in values)


def unpack(payload: bytes, count: int, width_bytes: int = COUNT_WIDTH_BYTES) -> list[int]:
    """The inverse of `pack` for exactly `count` integers."""
    _check_length(payload, count, width_bytes)
    return [
        int.from_bytes(payload[start : start + width_bytes], "little", signed=True)
        for start in range(0, len(payload), width_bytes)
    ]


def pack_array(values: NDArray[np.int64], width_bytes: int) -> bytes:
    """`pack` for a vector too long to walk through."""
    import numpy as np

    limit = 1 << (8 * width_bytes - 1)
    # Four bytes hold most of what we send, and half the memory is half the time.
    whole_bytes = 4 if width_bytes <= 4 else 8
    clamped = np.clip(values, -limit, limit - 1).astype(f"<i{whole_bytes}")
    if width_bytes == whole_bytes:
        return clamped.tobytes()
    return clamped.view(np.uint8).reshape(-1, whole_bytes)[:, :width_bytes].tobytes()


def unpack_array(payload: bytes, count: int, width_bytes: int) -> NDArray[np.int64]:
    """The inverse of `pack_array` for exactly `count` integers."""
    import numpy as np

    _check_length(payload, count, width_bytes)
    if width_bytes in _NATIVE_WIDTHS:
        return np.frombuffer(payload, dtype=f"<i{width_bytes}").astype(np.int64)
    wide = np.zeros((count, 8), dtype=np.uint8)
    wide[:, 8 - width_bytes :] = np.frombuffer(payload, dtype=np.uint8).reshape(count, width_bytes)
    # The bytes stand at the top, so an arithmetic shift brings the sign along.
    values: NDArray[np.int64] = wide.view("<i8").reshape(count) >> (8 * (8 - width_bytes))
    return values


def _check_length(payload: bytes, count: int, width_bytes: int) -> None:
    if len(payload) != count * width_bytes:
        raise InvalidTerms(
            f"a payload of {len(payload)} bytes does not hold {count} integers of {width_bytes} bytes; "
            "sender and receiver must use the same terms; nothing was read"
        )
