"""One measurement in a process of its own, so that its peak of memory is its own."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


def measured_alone(module, case):
    """What `python -m module --case {case}` printed, as a dictionary."""
    command = [sys.executable, "-m", module, "--case", json.dumps(case)]
    finished = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    if finished.returncode:
        raise SystemExit(f"{module} failed on {case}:\n{finished.stderr}")
    return json.loads(finished.stdout)


@contextmanager
def stopwatch(into, name) -> Iterator[None]:
    """Write the seconds on the clock and of the processors that the block takes into a dictionary."""
    clock, processor = time.perf_counter(), time.process_time()
    yield
    into[f"{name}_seconds"] = time.perf_counter() - clock
    into[f"{name}_cpu_seconds"] = time.process_time() - processor


def peak_mebibytes():
    """The most memory this process ever held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def printed_table(rows, columns):
    """Rows of dictionaries under a heading; a missing value is a dash."""
    shown = [[heading for heading, _, _ in columns]]
    shown += [["-" if row.get(key) is None else form.format(row[key]) for _, key, form in columns] for row in rows]
    widths = [max(len(line[column]) for line in shown) for column in range(len(columns))]
    for line in shown:
        print("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)))
