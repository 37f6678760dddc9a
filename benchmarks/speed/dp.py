"""What record-level DP-SGD costs in the simulator: the same training with and without it, taking turns.

    python -m benchmarks.speed.dp [--model mlp|cnn] [--engine] [--json]

The workload is that of `side_by_side`. Three forms alternate chunk by chunk on one core: plain SGD, clipping
of each record, clipping and noise. Time is that of the processor, so that others on the machine disturb less.
With `--engine`, whole runs on all cores alternate instead: without terms of privacy and with those of a record, where
batches are Poisson samples.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch

from benchmarks.speed import dp_engine, workload
from server_kit.simulation.training import Cnn, DeviceData, LocalTask, Mlp
from server_kit.simulation.training.bench import Bench
from server_kit.simulation.training.planning import Group, devices_per_chunk, prefers_row_space
from server_kit.simulation.training.round_work import RoundWork
from server_kit.simulation.training.workspace import Workspace

FORMS = {
    "plain": {},
    "clipped": {"clip_norm": 1.0},
    "clipped and noised": {"clip_norm": 1.0, "noise_multiplier": 1.0},
}
WANTED = {"mlp": 1.6, "cnn": 2.0}


class Form:
    """One form of training, ready to train any chunk of devices."""

    def __init__(self, spec: Mlp | Cnn, data: DeviceData, batch_size: int, epochs: int, settings: dict) -> None:
        task = LocalTask(workload.LEARNING_RATE, batch_size=batch_size, epochs=epochs, **settings)
        devices = list(data)
        self._work = RoundWork(
            spec.initial(0)[None], data, devices, [0] * len(devices), task, 1, [0] * len(devices), False
        )
        self._shares = [1.0] * len(devices)
        self._row_space = prefers_row_space(spec, workload.SAMPLES, task)
        self.devices = devices_per_chunk(spec, workload.SAMPLES, row_space=self._row_space)
        self._bench, self._room = Bench(spec), Workspace()

    def milliseconds(self, first: int) -> float:
        """Processor time for each device of one chunk."""
        group = Group(tuple(range(first, first + self.devices)), self._row_space)
        start = time.thread_time()
        self._work.sum(group, self._shares, self._bench, self._room)
        return 1000 * (time.thread_time() - start) / self.devices


def show_engine(options: argparse.Namespace) -> None:
    rows = dp_engine.compare(options.model, options.epochs, options.passes or 3)
    if options.json:
        print(json.dumps({"model": options.model, "epochs": options.epochs, "engine": rows}))
        return
    for row in rows:
        speed = (
            f"{row['updates_per_second']:9.0f}/s ({row['slower_by']:.2f} x slower, wanted {WANTED[options.model]:g})"
        )
        print(f"{row['form']:10}{speed}{row['milliseconds_per_update']:9.3f} ms ({row['costs_more_by']:.2f} x)")


def main() -> None:
    parser = argparse.ArgumentParser(prog="dp", description=str(__doc__).splitlines()[0])
    parser.add_argument("--model", choices=("mlp", "cnn"), default="mlp")
    parser.add_argument("--batch", type=int, default=workload.BATCH)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--passes", type=int, help="default: 60 of chunks, 3 of whole runs")
    parser.add_argument("--engine", action="store_true", help="compare whole runs of the engine")
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")
    options = parser.parse_args()
    if options.engine:
        show_engine(options)
        return
    options.passes = options.passes or 60
    torch.set_num_threads(1)
    samples = workload.DEVICES * workload.SAMPLES
    data = DeviceData.equal_parts(torch.randn(samples, 784), torch.randint(0, 10, (samples,)), workload.DEVICES)
    spec = Mlp() if options.model == "mlp" else Cnn()
    forms = {name: Form(spec, data, options.batch, options.epochs, settings) for name, settings in FORMS.items()}
    times: dict[str, list[float]] = {name: [] for name in forms}
    for form in forms.values():
        # Everybody takes part once before it counts: memory is fetched, and what is kept of records is worked out.
        for first in range(0, workload.DEVICES - form.devices + 1, form.devices):
            form.milliseconds(first)
    for number in range(options.passes):
        for name, form in forms.items():
            times[name].append(form.milliseconds(number * form.devices % (workload.DEVICES - form.devices)))
    plain = times["plain"]
    rows = [
        {
            "form": name,
            "milliseconds_per_update": statistics.median(own),
            "slower_by": statistics.median(mine / theirs for mine, theirs in zip(own, plain, strict=True)),
            "slower_by_at_best": min(own) / min(plain),
            "wanted": WANTED[options.model]
            if name == "clipped and noised" and options.batch == workload.BATCH
            else None,
        }
        for name, own in times.items()
    ]
    if options.json:
        print(json.dumps({"model": options.model, "batch": options.batch, "epochs": options.epochs, "forms": rows}))
        return
    print(f"{options.model}, batch {options.batch}, {options.epochs} local epoch(s), one core, {options.passes} passes")
    for row in rows:
        wanted = f", wanted {row['wanted']:g} x" if row["wanted"] else ""
        ratios = f"{row['slower_by']:.2f} x (at best {row['slower_by_at_best']:.2f} x{wanted})"
        print(f"{row['form']:20}{row['milliseconds_per_update']:9.3f} ms   {ratios}")


if __name__ == "__main__":
    main()
