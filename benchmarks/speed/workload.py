"""The one workload that every system is given: data, models, and the plain loop of local training.

Runs in the environments of the peers too, so it imports torch and numpy and nothing of ours.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

DEVICES = 1000
SAMPLES = 60
SIDE = 28
CLASSES = 10
PER_ROUND = 100
BATCH = 10
LEARNING_RATE = 0.05
CHECKED_ROUND = 2  # after it every system tells its loss: those who do the same work tell nearly the same
MARK = "MEASURED "


@dataclass(frozen=True)
class Measurement:
    """What a system did: rounds that were timed, after one that was not."""

    system: str
    updates_per_second: float
    processor_seconds_per_update: float
    start_up_seconds: float
    loss_after_checked_round: float

    def tell(self) -> None:
        """Print for whoever started this process."""
        print(MARK + json.dumps(asdict(self)), flush=True)


class Clock:
    """Times rounds: the first is warm-up, the rest count."""

    def __init__(self, system: str) -> None:
        self._system = system
        self._made = time.perf_counter()
        self._ends: list[float] = []
        self._processor = 0.0
        self._loss = float("nan")

    def round_ended(self, loss: Callable[[], float]) -> None:
        """Call after each round; what `loss` takes is not counted."""
        if not self._ends:
            self._processor = processor_seconds()
        self._ends.append(time.perf_counter())
        if len(self._ends) == CHECKED_ROUND:
            before = time.process_time()
            self._loss = loss()
            self._processor += time.process_time() - before
            lost = time.perf_counter() - self._ends[-1]
            self._ends = [end + lost for end in self._ends]
            self._made += lost

    def measurement(self) -> Measurement:
        seconds = self._ends[-1] - self._ends[0]
        updates = PER_ROUND * (len(self._ends) - 1)
        spent = (processor_seconds() - self._processor) / updates
        return Measurement(self._system, updates / seconds, spent, self._ends[0] - self._made, self._loss)


def processor_seconds() -> float:
    """What this system's processes have spent so far: those of one launcher, and all that they have started."""
    root = os.getppid() if "LOCAL_RANK" in os.environ else os.getpid()
    parents: dict[int, int] = {}
    spent: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            fields = stat.read_text().rpartition(")")[2].split()
            process = int(stat.parent.name)
            # User and system time of its own, and of children that have ended.
            parents[process], spent[process] = int(fields[1]), sum(map(int, fields[11:15]))
    ours, found = {root}, {root}
    while found:
        found = {process for process, parent in parents.items() if parent in found} - ours
        ours |= found
    return sum(spent.get(process, 0) for process in ours) / os.sysconf("SC_CLK_TCK")


def write_data(folder: Path) -> None:
    """Ten blurred patterns with noise: easy enough that a round or two is seen in the loss."""
    numbers = np.random.default_rng(2024)
    patterns = numbers.normal(size=(CLASSES, SIDE * SIDE)).astype(np.float32)
    labels = numbers.integers(0, CLASSES, size=DEVICES * SAMPLES)
    inputs = 0.3 * patterns[labels] + numbers.normal(size=(len(labels), SIDE * SIDE)).astype(np.float32)
    np.save(folder / "inputs.npy", inputs.reshape(-1, 1, SIDE, SIDE).astype(np.float32))
    np.save(folder / "labels.npy", labels)


def read_data(folder: Path) -> tuple[Tensor, Tensor]:
    """Inputs [60000, 1, 28, 28] and labels."""
    return torch.from_numpy(np.load(folder / "inputs.npy")), torch.from_numpy(np.load(folder / "labels.npy"))


def build_model(name: str) -> nn.Module:
    """The same initial weights everywhere."""
    torch.manual_seed(7)
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 128), nn.ReLU(), nn.Linear(128, CLASSES))
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, CLASSES)),
    )


def cohort(round_number: int) -> list[int]:
    """Who takes part, where the system lets one choose."""
    return np.random.default_rng(round_number).choice(DEVICES, PER_ROUND, replace=False).tolist()


def batches(inputs: Tensor, labels: Tensor, epochs: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Shuffled batches of one device's samples."""
    for _ in range(epochs):
        order = torch.randperm(len(labels))
        for start in range(0, len(labels), BATCH):
            chosen = order[start : start + BATCH]
            yield inputs[chosen], labels[chosen]


def train_locally(model: nn.Module, inputs: Tensor, labels: Tensor, epochs: int) -> None:
    """The ordinary loop of local training."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for x, y in batches(inputs, labels, epochs):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def loss_of(model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    """Over the first 6,000 samples."""
    with torch.no_grad():
        return nn.functional.cross_entropy(model(inputs[:6000]), labels[:6000]).item()
