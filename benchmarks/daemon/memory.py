"""Whether the daemon's processes grow: their resident memory over a thousand rounds without training.

    python -m benchmarks.daemon.memory [--devices 10] [--rounds 1000] [--json]

After a warm-up every process is looked at again and again. Compared are the medians of the first and of the last tenth
of what was seen; less than 5 % is wanted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
from pathlib import Path
from typing import Any

from benchmarks.daemon.federation import Running, heed_signals, taking_part

WARM_UP = 100
WANTED_GROWTH = 0.05
_LOOK_SECONDS = 0.5


def watch(running: Running, over: threading.Event) -> dict[str, list[int]]:
    """The resident bytes of each process of the daemon, look by look."""
    seen: dict[str, list[int]] = {}
    while not over.wait(_LOOK_SECONDS):
        for name, usage in running.federation.usage().items():
            seen.setdefault(name, []).append(usage.resident_bytes)
    return seen


def measure(devices: int, rounds: int) -> dict[str, Any]:
    """One federation for all its rounds."""
    over = threading.Event()
    with tempfile.TemporaryDirectory() as name, taking_part(Path(name), devices, rounds, WARM_UP) as running:

        def wait() -> None:
            running.wait_for("done")
            over.set()

        threading.Thread(target=wait, daemon=True).start()
        seen = watch(running, over)
        told = running.federation.rounds()
    return {"devices": devices, "rounds": len(told) - WARM_UP, "processes": [row(*each) for each in seen.items()]}


def row(name: str, resident: list[int]) -> dict[str, Any]:
    tenth = max(1, len(resident) // 10)
    first, last = statistics.median(resident[:tenth]), statistics.median(resident[-tenth:])
    return {"process": name, "first_mib": first / (1 << 20), "last_mib": last / (1 << 20), "growth": last / first - 1}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.daemon.memory", description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")
    options = parser.parse_args()
    heed_signals()
    measured = measure(options.devices, options.rounds)
    if options.json:
        print(json.dumps(measured))
        return
    print(f"{measured['rounds']} rounds of {measured['devices']} devices, after {WARM_UP} to warm up")
    print(f"{'process':14}{'MiB first':>10}{'MiB last':>10}{'growth':>9}  wanted below {WANTED_GROWTH:.0%}")
    for each in measured["processes"]:
        print(f"{each['process']:14}{each['first_mib']:10.1f}{each['last_mib']:10.1f}{each['growth']:9.1%}")


if __name__ == "__main__":
    main()
