"""Devices that have next to nothing in common: the best groups are tried, however little they explain."""

from __future__ import annotations

import torch

from server_kit.formation import Discovery
from server_kit.interfaces import Look, Split
from server_kit.strategy import Strategy
from tests.server_kit.engine.scripted import Play, ScriptedFleet, names, rng, seen

SIZE = 64


def looked(devices: int, noise: float, **settings: float) -> Look:
    """Two steps of devices of which each has a direction of its own."""
    formation = Discovery(steps=2, **settings)  # type: ignore[arg-type]
    now = Play(Strategy("differing", formation=formation), ScriptedFleet(names(devices)))
    now.state.cohorts["0"].model = torch.zeros(SIZE)
    chance, memory = torch.Generator().manual_seed(1), {}  # type: ignore[var-annotated]
    own = torch.randn(devices, SIZE, generator=chance)
    look = Look()
    for _ in range(2):
        halves = [own + noise * torch.randn(devices, SIZE, generator=chance) for _ in range(2)]
        updates = dict(zip(names(devices), sum(halves).tolist(), strict=True))  # type: ignore[union-attr]
        look = formation.look(seen(updates, halves=(halves[0], halves[1])), memory, now.federation, rng())
    return look


def test_groups_are_tried_though_they_explain_little():
    assert isinstance(looked(40, 0.01).decision, Split)


def test_the_ordinary_bound_would_refuse_them():
    assert looked(40, 0.01, differing=1.0).decision is None


def test_where_training_noise_has_its_part_it_holds():
    assert looked(40, 1.0).decision is None


def test_few_devices_do_not_tell():
    assert looked(14, 0.01, least_members=5).decision is None
