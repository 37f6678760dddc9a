"""What a process counts and measures, and how others get to see it: a snapshot in a file, replaced every few seconds.

    meter = Meter("coordinator")
    with meter.publishing(home.run):
        meter.count("covey_refusals_total", reason="replayed")
        meter.observe("covey_round_seconds", 0.8, cohort="0.1")

Names and labels are words that we chose; nothing that a device holds, and no device, is ever one of them.
"""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
PUBLISH_SECONDS = 2.0
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
                counters={_series(name, labels): value for name, labels, value in found["counters"]},
                gauges={_series(name, labels): value for name, labels, value in found["gauges"]},
                histograms={
                    _series(name, labels): Histogram(counts, total)
                    for name, labels, counts, total in found["histograms"]
                },
            )
        except (KeyError, TypeError) as error:
            raise ValueError("this is no snapshot; it was not read") from error


class Meter:
    """Counts, gauges and durations of one process. Safe to use from any thread, and cheap: a lock and a dictionary."""

    def __init__(self, process: str) -> None:
        self.process = process
        self._started_at = time.time()
        self._mutex = threading.Lock()
        self._counters: dict[Series, float] = {}
        self._gauges: dict[Series, float] = {}
        self._histograms: dict[Series, Histogram] = {}
        self._facts: dict[str, Any] = {}

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to what only grows."""
        series = _series(name, labels)
        with self._mutex:
            self._counters[series] = self._counters.get(series, 0) + amount

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set what goes up and down."""
        series = _series(name, labels)
        with self._mutex:
            self._gauges[series] = value

    def forget(self, name: str, **labels: str) -> None:
        """Drop a gauge whose subject is gone, such as a cohort."""
        with self._mutex:
            self._gauges.pop(_series(name, labels), None)

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        """Note how long something took."""
        series = _series(name, labels)
        with self._mutex:
            self._histograms.setdefault(series, Histogram()).add(seconds)

    @contextmanager
    def timing(self, name: str, **labels: str) -> Iterator[None]:
        """Observe how long the block takes, if it does not fail."""
        begun = time.monotonic()
        yield
        self.observe(name, time.monotonic() - begun, **labels)

    def fact(self, name: str, value: Any) -> None:
        """Something for people to see: a JSON value, such as the phase a process is in."""
        with self._mutex:
            self._facts[name] = value

    def snapshot(self) -> Snapshot:
        """The process as it stands."""
        with self._mutex:
            return Snapshot(
                process=self.process,
                pid=os.getpid(),
                started_at=self._started_at,
                at=time.time(),
                rss_bytes=rss_bytes(),
                counters=dict(self._counters),
                gauges=dict(self._gauges),
                histograms={
                    name: Histogram(list(each.counts), each.sum_seconds) for name, each in self._histograms.items()
                },
                facts=dict(self._facts),
            )

    def publish(self, directory: Path) -> None:
        """Put a snapshot in place of the last one. A reader sees the old one or the new one, whole."""
        path = directory / f"{self.process}.json"
        draft = directory / f".{self.process}.{os.getpid()}.new"
        draft.write_text(self.snapshot().to_json(), encoding="utf-8")
        draft.replace(path)

    @contextmanager
    def publishing(self, directory: Path, every_seconds: float = PUBLISH_SECONDS) -> Iterator[None]:
        """Publish at once, then again and again, and a last time at the end. A full disk is no reason to stop."""
        ended = threading.Event()

        def publish() -> None:
            while True:
                self._try_to_publish(directory)
                if ended.wait(every_seconds):
                    return

        thread = threading.Thread(target=publish, name="covey-metrics", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self._try_to_publish(directory)

    def _try_to_publish(self, directory: Path) -> None:
        try:
            self.publish(directory)
        except OSError as error:
            log.warning("could not publish metrics", extra={"meter": self.process, "reason": error.strerror})


def read_snapshots(directory: Path) -> list[Snapshot]:
    """The newest snapshot of each process, by name; a file that cannot be read is left out."""
    found = []
    for path in sorted(directory.glob("*.json")):
        try:
            found.append(Snapshot.from_json(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            log.warning("a snapshot cannot be read; it is left out", extra={"file": path.name})
    return found


def rss_bytes() -> int:
    """The memory that this process holds now; where the system does not tell, the most it ever held."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def _series(name: str, labels: Mapping[str, str]) -> Series:
    for word in (name, *labels):
        if not _NAME.fullmatch(word):
            raise ValueError(f"{word!r} is no name of a metric or label; use small letters, digits and underscores")
    return name, tuple(sorted((label, str(value)) for label, value in labels.items()))
