"""A round without training through the whole daemon: mutual TLS, signatures, ledgers, a durable store on both sides.

    python -m benchmarks.daemon.rounds [--devices 10 100] [--rounds 50] [--json]

Server and devices share this machine. A round is counted from one to the next: asking all devices, fetching the
model, booking, noising, signing, storing and uploading an update on each, storing them all here, the next model with
its checkpoint, what follows from it, and until the last device has checked in again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.daemon.federation import heed_signals, taking_part

WANTED_MILLISECONDS = {10: 50, 100: 300}
WARM_UP = 5


def measure(devices: int, rounds: int, fleets: int) -> dict[str, Any]:
    """One federation, from its foundation to its last round."""
    with tempfile.TemporaryDirectory() as name, taking_part(Path(name), devices, rounds, WARM_UP, fleets) as running:
        before = running.processor_seconds()
        running.wait_for("done")
        after = running.processor_seconds()
        told = running.federation.rounds()
    turns = [1000 * (later[0] - earlier[0]) for earlier, later in pairwise(told[WARM_UP - 1 :])]
    return {
        "devices": devices,
        "rounds": len(turns),
        "median_ms": statistics.median(turns),
        "quartiles_ms": statistics.quantiles(turns, n=4)[::2],
        "answers_median_ms": statistics.median(1000 * seconds for _, seconds in told[WARM_UP:]),
        "wanted_ms": WANTED_MILLISECONDS.get(devices),
        "processor_ms": {name: 1000 * (seconds - before[name]) / rounds for name, seconds in after.items()},
    }


def show(row: dict[str, Any]) -> None:
    low, high = row["quartiles_ms"]
    wanted = "" if row["wanted_ms"] is None else f", wanted {row['wanted_ms']}"
    print(f"{row['devices']} devices, {row['rounds']} rounds: median {row['median_ms']:.0f} ms{wanted}; ", end="")
    print(f"half of them within {low:.0f} to {high:.0f}; the last answer after {row['answers_median_ms']:.0f}")
    spent = ", ".join(f"{name} {value:.0f}" for name, value in row["processor_ms"].items())
    print(f"    processor time of a round in ms: {spent}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.daemon.rounds", description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--fleets", type=int, default=1, help="how many processes the devices live in")
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")
    options = parser.parse_args()
    heed_signals()
    load = os.getloadavg()[0]
    rows = [measure(devices, options.rounds, options.fleets) for devices in options.devices]
    if options.json:
        print(json.dumps({"load_before": load, "rows": rows}))
        return
    for row in rows:
        show(row)
    print(f"load of the machine before: {load:.1f}")


if __name__ == "__main__":
    main()
