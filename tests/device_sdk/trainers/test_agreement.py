"""The same task on the same records in the same order is the same update: without torch, with it, and simulated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from device_sdk.trainers import StreamOfWords, descent, numpy_trainer, torch_trainer
from server_kit.simulation.training import train
from tests.device_sdk.trainers import cases
from tests.device_sdk.trainers.cases import ROUND, SEED, SPECS, fleet

DENSE = ("logistic", "mlp", "deep mlp")
KINDS: dict[str, Callable[..., Any]] = {"numpy": cases.numpy_trainer, "torch": cases.torch_trainer}
COMBINATIONS = [
    (kind, spec, objective)
    for kind in KINDS
    for spec in (DENSE if kind == "numpy" else (*DENSE, "cnn"))
    for objective in cases.OBJECTIVES
]


def differences(kind, spec_name, objective, devices=("d0", "d1", "d3")):
    """How far each device's update, and its halves, are from what the simulator's kernel gives it."""
    spec = SPECS[spec_name]
    data = fleet(spec)
    task, settings = cases.objective(spec, objective)
    simulated = train(spec, spec.initial(1), data, devices, task, seed=SEED, round_number=ROUND)
    start = cases.named(spec, spec.initial(1))
    found = []
    for place, device in enumerate(simulated.devices):
        trained = KINDS[kind](spec, data, device).train(start, settings)
        pairs = [(trained.update, simulated.updates[place])]
        if task.halves:
            assert trained.halves is not None
            assert simulated.halves is not None
            pairs += zip(trained.halves, simulated.halves[:, place], strict=True)
        else:
            assert trained.halves is None
        found += [float((cases.flat(spec, ours) - theirs).abs().max()) for ours, theirs in pairs]
    return found


@pytest.mark.parametrize(("kind", "spec_name", "objective"), COMBINATIONS)
def test_a_device_does_what_the_simulator_does(kind, spec_name, objective):
    assert max(differences(kind, spec_name, objective)) < 5e-6


@pytest.mark.parametrize("spec_name", DENSE)
def test_trainers_agree_on_masked_and_halved_training_of_a_device_without_records(spec_name):
    spec = SPECS[spec_name]
    data = fleet(spec)
    _, settings = cases.objective(spec, "masked halves")
    for make in KINDS.values():
        trained = make(spec, data, "d4").train(cases.named(spec, spec.initial(1)), settings)
        assert torch.equal(cases.flat(spec, trained.update), torch.zeros(spec.layout.size))


class ForgetsTheStart(descent.Descent):
    def __init__(self, settings, weights, start, mask):
        super().__init__(settings, weights, start * 0, mask)


class ForgetsTheMask(descent.Descent):
    def __init__(self, settings, weights, start, mask):
        super().__init__(settings, weights, start, None)


class CountsBothHalvesAsOne(descent.Descent):
    def step(self, gradient, *, first_half):
        super().step(gradient, first_half=True)


@pytest.mark.parametrize("module", [numpy_trainer, torch_trainer], ids=["numpy", "torch"])
@pytest.mark.parametrize(
    ("fault", "objective"),
    [(ForgetsTheStart, "proximal"), (ForgetsTheMask, "masked"), (CountsBothHalvesAsOne, "halves")],
)
def test_a_faulty_rule_is_caught(monkeypatch, module, fault, objective):
    monkeypatch.setattr(module, "Descent", fault)
    kind = "numpy" if module is numpy_trainer else "torch"
    assert max(differences(kind, "mlp", objective, devices=("d0",))) > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_another_batch_order_is_caught(monkeypatch, kind):
    monkeypatch.setattr(cases, "SimulatorsWords", lambda device: StreamOfWords(seed=1))
    assert max(differences(kind, "mlp", "plain", devices=("d0",))) > 1e-3
