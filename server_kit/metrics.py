"""What a process counts and measures; others see it in its snapshots.

    meter = Meter("coordinator")
    with meter.publishing(home.run):
        meter.count("covey_tasks_total", outcome="declined")
        meter.observe("covey_round_seconds", 0.8, cohort="0.1")

Names stand in `metric_names`, labels are words that we chose; nothing that a device holds, and no device, is ever
one of them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from server_kit.metric_names import COUNTERS, GAUGES, HISTOGRAMS
from server_kit.snapshots import Histogram, Series, Snapshot, rss_bytes, series_of

log = logging.getLogger("covey.server")

PUBLISH_SECONDS = 2.0
BEAT = "worked_at_seconds"


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
        series = series_of(_known(name, COUNTERS), labels)
        with self._mutex:
            self._counters[series] = self._counters.get(series, 0) + amount

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set what goes up and down."""
        series = series_of(_known(name, GAUGES), labels)
        with self._mutex:
            self._gauges[series] = value

    def forget(self, name: str, **labels: str) -> None:
        """Drop a gauge whose subject is gone, such as a cohort."""
        with self._mutex:
            self._gauges.pop(series_of(name, labels), None)

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        """Note how long something took."""
        series = series_of(_known(name, HISTOGRAMS), labels)
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

    def beat(self) -> None:
        """The process works: call it in its main loop, so that one that hangs is noticed."""
        self.fact(BEAT, time.time())

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
        """Publish at once, then again and again; at the end nothing is left. A full disk is no reason to stop."""
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
            (directory / f"{self.process}.json").unlink(missing_ok=True)

    def _try_to_publish(self, directory: Path) -> None:
        try:
            self.publish(directory)
        except OSError as error:
            log.warning("could not publish metrics", extra={"meter": self.process, "reason": error.strerror})


def _known(name: str, names: Mapping[str, str]) -> str:
    if name not in names:
        raise ValueError(f"{name!r} is not in server_kit.metric_names; write there what it means")
    return name
