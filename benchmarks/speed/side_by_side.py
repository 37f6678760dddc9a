"""Device updates per second: ours, Flower's simulation and pfl-research, in one run, taking turns.

    python -m benchmarks.speed.side_by_side [--model mlp|cnn] [--quick] [--json]

1000 devices of 60 samples, 100 of them a round, batches of 10, plain SGD; every system computes on all
cores. Aggregation counts, starting up does not. Each pass runs the systems one after the other, and a ratio
is the median over passes of the ratio within a pass: the machine may be shared, but its mood is then too.
Processor time, of all processes of a system, tells what an update costs however busy the machine is.
Every system tells the loss of its model after the second round; one that did other work is found out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.speed import environments, workload

SYSTEMS = ("covey", "plain loop", "pfl", "flower")
# Rounds that take each system a few seconds.
ROUNDS = {
    "mlp": {"covey": 60, "plain loop": 10, "pfl": 10, "flower": 4},
    "cnn": {"covey": 15, "plain loop": 4, "pfl": 4, "flower": 3},
}
WANTED = {"mlp": {"flower": 60.0, "pfl": 6.0}, "cnn": {"flower": 5.0, "pfl": 1.3}}
TOLERANCE = 0.05  # of the loss: systems draw their own cohorts and orders
TIMEOUT_SECONDS = 900


def command(system: str, arguments: list[str], environment: Path) -> list[str]:
    """How a system is started."""
    if system == "pfl":
        torchrun = environments.programs("pfl", environment) / "torchrun"
        cores = os.cpu_count() or 1
        return [str(torchrun), f"--nproc_per_node={cores}", "-m", "benchmarks.speed.run_pfl", *arguments]
    if system == "flower":
        python = environments.programs("flower", environment) / "python"
        return [str(python), "-m", "benchmarks.speed.run_flower", *arguments]
    module = {"covey": "run_covey", "plain loop": "run_plain"}[system]
    return [sys.executable, "-m", f"benchmarks.speed.{module}", *arguments]


def measure(system: str, arguments: list[str], environment: Path) -> workload.Measurement:
    """Run one system in processes of its own."""
    finished = subprocess.run(
        command(system, arguments, environment),
        env=environments.surroundings(),
        cwd=environments.ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    told = [line for line in finished.stdout.splitlines() if line.startswith(workload.MARK)]
    if finished.returncode or not told:
        raise SystemExit(f"{system} failed:\n{finished.stdout[-2000:]}\n{finished.stderr[-4000:]}")
    return workload.Measurement(**json.loads(told[-1].removeprefix(workload.MARK)))


def check(measured: list[workload.Measurement]) -> None:
    """All did the same work, or nothing is compared."""
    expected = next(one for one in measured if one.system == "covey").loss_after_checked_round
    for one in measured:
        if abs(one.loss_after_checked_round - expected) > TOLERANCE:
            raise SystemExit(
                f"{one.system} reached a loss of {one.loss_after_checked_round:.3f} after {workload.CHECKED_ROUND} "
                f"rounds, ours {expected:.3f}: not the same work, so nothing is compared"
            )


def summary(passes: list[list[workload.Measurement]], model: str) -> list[dict[str, object]]:
    """One row for each system: medians, and our ratio to it."""
    rows = []
    for system in SYSTEMS:
        own = [next(one for one in each if one.system == system) for each in passes]
        ours = [next(one for one in each if one.system == "covey") for each in passes]
        ratios = [us.updates_per_second / it.updates_per_second for us, it in zip(ours, own, strict=True)]
        costs = [
            it.processor_seconds_per_update / us.processor_seconds_per_update for us, it in zip(ours, own, strict=True)
        ]
        rows.append(
            {
                "system": system,
                "updates_per_second": statistics.median(one.updates_per_second for one in own),
                "processor_milliseconds": 1000 * statistics.median(one.processor_seconds_per_update for one in own),
                "costs_more_by": statistics.median(costs),
                "start_up_seconds": statistics.median(one.start_up_seconds for one in own),
                "covey_is_faster_by": statistics.median(ratios),
                "lowest": min(ratios),
                "highest": max(ratios),
                "wanted": WANTED[model].get(system),
            }
        )
    return rows


def show(rows: list[dict[str, object]], options: argparse.Namespace) -> None:
    print(f"{options.model}, {options.epochs} local epoch(s), {options.passes} pass(es), {os.cpu_count()} cores")
    print(f"{'':12}{'updates/s':>10}{'start-up s':>12}{'covey faster by':>24}{'wanted':>9}{'processor ms':>22}")
    for row in rows:
        spread = f"{row['covey_is_faster_by']:.1f} ({row['lowest']:.1f}-{row['highest']:.1f})"
        wanted = "" if row["wanted"] is None else f"{row['wanted']:g}"
        cost = f"{row['processor_milliseconds']:.2f} ({row['costs_more_by']:.1f} x)"
        print(
            f"{row['system']:12}{row['updates_per_second']:10.0f}{row['start_up_seconds']:12.1f}{spread:>24}{wanted:>9}"
            f"{cost:>22}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.side_by_side", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--model", choices=("mlp", "cnn"), default="mlp")
    parser.add_argument("--epochs", type=int, default=1, help="local epochs")
    parser.add_argument("--passes", type=int, default=3, help="how often each system is measured")
    parser.add_argument("--quick", action="store_true", help="one pass of few rounds")
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")
    parser.add_argument("--environments", type=Path, default=environments.default_folder(), help="where the peers live")
    options = parser.parse_args()
    if options.quick:
        options.passes = 1
    passes: list[list[workload.Measurement]] = []
    with tempfile.TemporaryDirectory() as folder:
        workload.write_data(Path(folder))
        for number in range(options.passes):
            passes.append([])
            for system in SYSTEMS[number % len(SYSTEMS) :] + SYSTEMS[: number % len(SYSTEMS)]:
                rounds = max(2, ROUNDS[options.model][system] // (4 if options.quick else 1))
                arguments = [folder, options.model, str(rounds), str(options.epochs)]
                passes[-1].append(measure(system, arguments, options.environments))
                print(f"pass {number + 1}: {system} {passes[-1][-1].updates_per_second:.0f}/s", file=sys.stderr)
            check(passes[-1])
    rows = summary(passes, options.model)
    if options.json:
        raw = [[asdict(one) for one in each] for each in passes]
        print(json.dumps({"model": options.model, "epochs": options.epochs, "systems": rows, "passes": raw}, indent=2))
    else:
        show(rows, options)


if __name__ == "__main__":
    main()
