"""Seconds, bytes and counts as a person reads them; a column of figures shares one unit."""

from __future__ import annotations

from collections.abc import Callable

_TIMES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
_SIZES = ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_COUNTS = ((1e9, "billion"), (1e6, "million"), (1.0, ""))

Unit = tuple[float, str]
UnitFor = Callable[[float], Unit]


def time_unit(longest_seconds: float) -> Unit:
    """The largest unit of which the longest time has two at least, in seconds, and its name."""
    return next(((size, name) for size, name in _TIMES if longest_seconds >= 2 * size), _TIMES[-1])


def size_unit(largest_bytes: float) -> Unit:
    """The largest decimal unit that the largest size fills."""
    return next((unit for unit in _SIZES if largest_bytes >= unit[0]), _SIZES[-1])


def count_unit(largest: float) -> Unit:
    """Plain numbers while they are short."""
    return next((unit for unit in _COUNTS if largest >= unit[0]), _COUNTS[-1])


def in_unit(value: float, unit: Unit) -> str:
    """Three digits and the unit's name."""
    scaled, name = value / unit[0], unit[1]
    if scaled >= 99.95 or not name:
        return f"{scaled:,.0f} {name}".rstrip()
    return f"{scaled:.1f} {name}" if scaled >= 9.995 else f"{scaled:.2f} {name}"
