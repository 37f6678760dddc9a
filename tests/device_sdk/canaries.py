"""Values that must never be seen outside: where they are planted, and how they are recognised in any usual spelling."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable
from pathlib import Path

Canary = bytes | str | float


def spellings(canary: Canary) -> list[bytes]:
    """How a value may look in a file or a log: raw, hexadecimal, base64, as a number or a Python literal."""
    if isinstance(canary, float):
        return [repr(canary).encode(), canary.hex().encode(), struct.pack("<d", canary), struct.pack("<f", canary)]
    raw = canary.encode() if isinstance(canary, str) else canary
    # At any of three alignments; the first and last characters depend on the neighbours.
    aligned = [base64.b64encode(b"\0" * shift + raw)[4:-4] for shift in range(3)]
    return [raw, raw.hex().encode(), raw.hex().upper().encode(), repr(raw)[2:-1].encode(), *aligned]


def seen(canaries: dict[str, Canary], text: bytes) -> set[str]:
    """The names of the canaries that stand in `text`."""
    return {name for name, canary in canaries.items() if any(spelling in text for spelling in spellings(canary))}


def seen_in_files(canaries: dict[str, Canary], directory: Path) -> set[str]:
    files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    return set().union(*(seen(canaries, path.name.encode() + b"\n" + path.read_bytes()) for path in files))


def seen_in_lines(canaries: dict[str, Canary], lines: Iterable[str]) -> set[str]:
    return set().union(*(seen(canaries, line.encode()) for line in lines))
