"""Devices that train alone, each as often as a server would have asked it: what a federation must beat."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from server_kit.errors import InvalidSetting
from server_kit.simulation.fairness import accuracy_spread
from server_kit.simulation.judging import sampled
from server_kit.simulation.metrics import Progress
from server_kit.simulation.records import CohortPoint, Point, Run

if TYPE_CHECKING:
    from server_kit.simulation.population import Population
    from server_kit.simulation.training import Trainer
    from server_kit.simulation.virtual_time import RunSettings
    from server_kit.strategy import Strategy


def train_alone(
    population: Population,
    strategy: Strategy,
    trainer: Trainer,
    settings: RunSettings,
    *,
    seed: int,
    on_point: Callable[[Point], None] | None,
) -> Run:
    """All tested devices side by side; one turn is one local task, and its time is that of the mean device."""
    if settings.privacy is not None:
        raise InvalidSetting("a device that trains alone releases nothing; leave out the privacy terms")
    devices = sampled(population, settings, seed)
    turns = max(1, math.ceil(settings.rounds * settings.participants / len(population)))
    task = replace(settings.task, halves=False)
    models = trainer.spec.initial(seed).repeat(len(devices), 1)
    numbers = np.array([population.index(device) for device in devices])
    steps = np.array([task.steps_for(population.num_samples(device)) for device in devices])
    seconds = population.latency.seconds(numbers, 0, bytes_down=0.0, bytes_up=0.0, steps=steps)
    points: list[Point] = []
    for turn in range(turns + 1):
        if turn * float(seconds.mean()) > settings.max_seconds:
            break
        now = turn * settings.rounds // turns
        if turn:
            data = population.device_data("train", now)
            models += trainer.train(models, data, devices, task, seed=seed, round_number=turn).updates
        accuracies = trainer.evaluate(models, population.device_data("test", now), devices).accuracies
        spread = accuracy_spread(accuracies.double().numpy())
        progress = Progress(now, turn * float(seconds.mean()), spread.mean, client_steps=turn * int(steps.sum()))
        points.append(Point(progress, spread, {"0": CohortPoint(len(devices), spread.mean, turn)}))
        if on_point is not None:
            on_point(points[-1])
    final = tuple(torch.as_tensor(accuracies).double().tolist())
    return Run(strategy.name, seed, tuple(points), (), final, dict.fromkeys(devices, "0"))
