"""What a process publishes of itself: a snapshot in a file, replaced whole every second or two."""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import sys
import time
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

log = logging.getLogger("covey.server")

BUCKET_SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    1800.0,
)
"""Upper ends of a histogram's buckets; one more has no end."""
_FORGET_SECONDS = 300.0
_FORMAT = "covey-snapshot-1"
_NAME = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)

Labels = tuple[tuple[str, str], ...]
Series = tuple[str, Labels]


@dataclass
class Histogram:
    """How many observations fell into each bucket, and their sum."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKET_SECONDS) + 1))
    sum_seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKET_SECONDS, seconds)] += 1
        self.sum_seconds += seconds


@dataclass(frozen=True)
class Snapshot:
    """A process at one moment."""

    process: str
    pid: int
    started_at: float
    at: float
    rss_bytes: int
    counters: Mapping[Series, float] = field(default_factory=dict)
    gauges: Mapping[Series, float] = field(default_factory=dict)
    histograms: Mapping[Series, Histogram] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What `status` shows of the process; JSON values."""

    def to_json(self) -> str:
        return json.dumps(
            {
                "format": _FORMAT,
                "process": self.process,
                "pid": self.pid,
                "started_at": self.started_at,
                "at": self.at,
                "rss_bytes": self.rss_bytes,
                "counters": [[name, dict(labels), value] for (name, labels), value in self.counters.items()],
                "gauges": [[name, dict(labels), value] for (name, labels), value in self.gauges.items()],
                "histograms": [
                    [name, dict(labels), each.counts, each.sum_seconds]
                    for (name, labels), each in self.histograms.items()
                ],
                "facts": dict(self.facts),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The snapshot that `to_json` wrote; `ValueError` for anything else."""
        try:
            found = json.loads(text)
            if found["format"] != _FORMAT:
                raise ValueError("a snapshot of another format; it was not read")
            return cls(
                **{name: found[name] for name in ("process", "pid", "started_at", "at", "rss_bytes", "facts")},
                counters={series_of(name, labels): value for name, labels, value in found["counters"]},
                gauges={series_of(name, labels): value for name, labels, value in found["gauges"]},
                histograms={
                    series_of(name, labels): Histogram(counts, total)
                    for name, labels, counts, total in found["histograms"]
                },
            )
        except (KeyError, TypeError) as error:
            raise ValueError("this is no snapshot; it was not read") from error


def read_snapshots(directory: Path, now_seconds: float | None = None) -> list[Snapshot]:
    """The newest snapshot of each process, by name, but for those that were killed long ago."""
    forgotten = (time.time() if now_seconds is None else now_seconds) - _FORGET_SECONDS
    found = []
    for path in sorted(directory.glob("*.json")):
        try:
            found.append(Snapshot.from_json(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            log.warning("a snapshot cannot be read; it is left out", extra={"file": path.name})
    return [each for each in found if each.at > forgotten]


def rss_bytes() -> int:
    """The memory that this process holds now; where the system does not tell, the most it ever held."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def series_of(name: str, labels: Mapping[str, str]) -> Series:
    """A name with its labels, in one order."""
    for label in labels:
        if not _NAME.fullmatch(label):
            raise ValueError(f"{label!r} is no name of a label; use small letters, digits and underscores")
    return name, tuple(sorted((label, str(value)) for label, value in labels.items()))
