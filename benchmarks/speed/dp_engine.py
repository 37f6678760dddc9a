"""Whole runs of the engine with and without record-level DP-SGD, taking turns; see `dp`."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.speed import environments, workload

ROUNDS = {"mlp": 40, "cnn": 6}


def compare(model: str, epochs: int, passes: int) -> list[dict[str, object]]:
    """A row for plain and one for private runs: the rate, the processor time, and how much slower than plain."""
    found: dict[str, list[workload.Measurement]] = {"plain": [], "record": []}
    with tempfile.TemporaryDirectory() as folder:
        workload.write_data(Path(folder))
        for _ in range(passes):
            for privacy, measured in found.items():
                measured.append(_measure([folder, model, str(ROUNDS[model]), str(epochs), privacy]))
    return [
        {
            "form": name,
            "updates_per_second": statistics.median(each.updates_per_second for each in own),
            "milliseconds_per_update": 1000 * statistics.median(each.processor_seconds_per_update for each in own),
            "slower_by": statistics.median(
                before.updates_per_second / after.updates_per_second
                for before, after in zip(found["plain"], own, strict=True)
            ),
            "costs_more_by": statistics.median(
                after.processor_seconds_per_update / before.processor_seconds_per_update
                for before, after in zip(found["plain"], own, strict=True)
            ),
        }
        for name, own in found.items()
    ]


def _measure(arguments: list[str]) -> workload.Measurement:
    command = [sys.executable, "-m", "benchmarks.speed.run_covey", *arguments]
    done = subprocess.run(
        command, env=environments.surroundings(), cwd=environments.ROOT, capture_output=True, text=True, check=True
    )
    told = next(line for line in done.stdout.splitlines() if line.startswith(workload.MARK))
    return workload.Measurement(**json.loads(told.removeprefix(workload.MARK)))
