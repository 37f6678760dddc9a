"""A device with a training loop of its own, in plain NumPy: nothing but `pip install covey` is needed.

    python examples/numpy_device.py --server fl.example.com:8444 --invitation covey1-... --state state

It stands for a wrist sensor that tells resting, walking and running apart. The readings are made up;
`trained` is a training loop as people write them, and `take_part` is all that the SDK adds to it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from device_sdk import Device, PrivacyBudget, TaskInHand
from device_sdk.trainers import TrainingStopped

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Weights = dict[str, NDArray[Any]]

ACTIVITIES = ("resting", "walking", "running")
FEATURES = 6  # strength and pace of the motion along three axes


def new_model() -> dict[str, NDArray[np.float32]]:
    """Softmax regression that knows nothing yet: what a server begins with."""
    return {
        "dense1.weight": np.zeros((len(ACTIVITIES), FEATURES), np.float32),
        "dense1.bias": np.zeros(len(ACTIVITIES), np.float32),
    }


def readings(person: int, count: int = 300) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """What a sensor on this person's wrist would have recorded, and what the person was doing."""
    rng = np.random.default_rng(person)
    labels = rng.integers(len(ACTIVITIES), size=count)
    vigour = rng.uniform(0.8, 1.2)
    inputs = vigour * labels[:, None] + rng.normal(scale=0.5, size=(count, FEATURES))
    return inputs.astype(np.float32), labels


def shares(weights: Weights, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    """How likely each activity is for each reading (softmax regression)."""
    scores = inputs @ weights["dense1.weight"].T + weights["dense1.bias"]
    grown = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(grown / grown.sum(axis=1, keepdims=True), np.float32)


def trained(task: TaskInHand, inputs: NDArray[np.float32], labels: NDArray[np.int64]) -> Weights:
    """What one round of SGD on these readings adds to the task's weights."""
    weights = {name: part.copy() for name, part in task.weights.items()}
    wanted = np.eye(len(ACTIVITIES), dtype=np.float32)[labels]
    for batch in islice(batches(len(labels), task.settings.batch_size), task.settings.steps_for(len(labels))):
        task.between_batches()  # waits while the device may not train; ends the round when told to stop
        error = (shares(weights, inputs[batch]) - wanted[batch]) / len(batch)
        weights["dense1.weight"] -= task.settings.learning_rate * error.T @ inputs[batch]
        weights["dense1.bias"] -= task.settings.learning_rate * error.sum(axis=0)
    return {name: weights[name] - part for name, part in task.weights.items()}


def batches(num_records: int, batch_size: int) -> Iterator[NDArray[np.int64]]:
    """Shuffled, cut into batches, and again without end."""
    rng = np.random.default_rng()
    while True:
        order = rng.permutation(num_records)
        yield from (order[start : start + batch_size] for start in range(0, num_records, batch_size))


def fits(task: TaskInHand) -> bool:
    """Whether this loop can do the task: its model, and plain SGD."""
    shapes = {name: part.shape for name, part in task.weights.items()}
    settings = task.settings
    plain = settings.mask is None and not settings.momentum and not settings.proximal
    return shapes == {name: part.shape for name, part in new_model().items()} and plain and not settings.halves


def take_part(device: Device, person: int, rounds: int) -> None:
    """What an app does with the SDK: say how often each activity occurs, then train when asked."""
    inputs, labels = readings(person)
    device.share_label_histogram(labels, num_labels=len(ACTIVITIES), epsilon=0.5)
    for task in device.tasks(rounds=rounds):
        if not fits(task):
            task.decline()
            continue
        try:
            update = trained(task, inputs, labels)
        except TrainingStopped:
            continue  # the task is kept, and handed out again while it is in time
        task.submit(update)  # clipped, booked, noised, signed and sent
        print(f"round {task.round} in cohort {task.cohort}: sent")


def main() -> None:
    """Take part for some rounds; started again, it goes on where it was."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", required=True, help="host:port")
    parser.add_argument("--invitation", help="needed the first time")
    parser.add_argument("--state", type=Path, required=True, help="what the device keeps")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--person", type=int, default=0, help="whose readings to make up")
    options = parser.parse_args()
    keys = {"store": "file", "file": options.state.with_suffix(".key")}
    budget = PrivacyBudget(epsilon=8, delta=1e-6)  # for life, at all servers together
    with Device.open(options.state, server=options.server, budget=budget, keys=keys) as device:
        if options.invitation:
            device.enrol(options.invitation)
        take_part(device, options.person, options.rounds)


if __name__ == "__main__":
    main()
