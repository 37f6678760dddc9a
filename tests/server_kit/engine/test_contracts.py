"""One suite for each protocol over all its built-in parts; a part is tested by being listed in `server_kit.parts`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from server_kit.aggregation import FedAvg
from server_kit.clustering import Clustering, KMeans
from server_kit.formation.never import Never
from server_kit.interfaces import (
    Aggregator,
    Answer,
    Clusterer,
    Formation,
    Look,
    Matcher,
    Merge,
    Mixing,
    Objective,
    Selector,
    Split,
    SplitRule,
)
from server_kit.parts import PARTS
from server_kit.places import Place
from server_kit.reading import Reader
from server_kit.selection import Uniform
from server_kit.simulation.fleet import SimulatedFleet
from server_kit.simulation.training import Trainer
from tests.server_kit.engine import contracts
from tests.server_kit.engine.scripted import ScriptedFleet, names
from tests.server_kit.engine.worlds import SPEC, people

CONTRACTS: dict[Any, Callable[[Any], None]] = {
    Selector: contracts.keeps_selector,
    Aggregator: contracts.keeps_aggregator,
    Objective: contracts.keeps_objective,
    Matcher: contracts.keeps_matcher,
    Formation: contracts.keeps_formation,
    Clusterer: contracts.keeps_clusterer,
    SplitRule: contracts.keeps_split_rule,
    Mixing: contracts.keeps_mixing,
}
_FAST = {"start_round": 1, "clusterer": {"min_participants": 2}, "rule": {"kind": "fixed_rounds", "rounds": [5, 9]}}
_WORDS: dict[str, dict[str, Any]] = {
    # What a part cannot do without, or what makes it act within the few steps of its contract.
    "norm_bound": {"inner": "fedavg", "bound": 1.0},
    "guarded": {"inner": "fedavg"},
    "hierarchical": {"clusters": 2},
    "founding": {"summarizer": "first_updates", "clusterer": {"kind": "kmeans", "clusters": 2}},
    "online": _FAST,
    "gated": {"inner": {"kind": "online", **_FAST}, "steps": 2},
    "bipartition": {"after_round": 3, "mean_norm_below": 9.0, "quorum": 0.1},
    "spectral": {"sketch": "none", "quorum": 0.1},
    "kmeans": {"clusters": 2},
    "optics": {"eps": 1.0},
    "ternary_cosine": {"groups": 2},
    "discovery": {"steps": 2, "least_members": 2},
}
LISTED = [(protocol, name) for protocol in CONTRACTS for name in PARTS[protocol]]


def built(protocol: Any, name: str) -> Any:
    """The part as a configuration file would name it."""
    table = {"kind": name, **_WORDS.get(name, {})}
    return Reader(Path(), PARTS).rule(PARTS[protocol], table, Place("contract"))


@pytest.mark.parametrize(("protocol", "name"), LISTED, ids=[f"{each.__name__}-{name}" for each, name in LISTED])
def test_every_listed_part_keeps_its_contract(protocol, name):
    CONTRACTS[protocol](built(protocol, name))


def test_both_fleets_keep_theirs():
    with Trainer(SPEC) as trainer:
        contracts.keeps_fleet(SimulatedFleet(people(), trainer), SPEC.layout.size)
    contracts.keeps_fleet(ScriptedFleet(names(5)), 4)


class TwiceTheSame(Uniform):
    def select(self, waiting, count, memory, rng):
        chosen = super().select(waiting, count, memory, rng)
        return chosen[:-1] + chosen[:1] if len(chosen) > 1 else chosen


class MoreThanAsked(Uniform):
    def select(self, waiting, count, memory, rng):
        return super().select(waiting, count + 1, memory, rng)


class Dawdler(Uniform):
    """Has nobody where few wait."""

    def select(self, waiting, count, memory, rng):
        return [] if len(waiting) < 3 else super().select(waiting, count, memory, rng)


class OwnChance(Uniform):
    def select(self, waiting, count, memory, rng):
        return super().select(waiting, count, memory, np.random.default_rng())


class Reordering(Uniform):
    def select(self, waiting, count, memory, rng):
        waiting.sort(key=lambda view: view.device, reverse=True)
        return super().select(waiting, count, memory, rng)


@dataclass
class Counting:
    """Remembers in itself what belongs into the memory."""

    turn: int = 0

    def select(self, waiting, count, memory, rng):
        self.turn += 1
        ordered = [view.device for view in waiting]
        return (ordered[self.turn % max(1, len(ordered)) :] + ordered)[: min(count, len(ordered))]

    def observe(self, outcome, memory):
        self.turn += 1


@dataclass(frozen=True)
class InPlace(FedAvg):
    def aggregate(self, model, updates, memory):
        model.copy_(super().aggregate(model, updates, memory))
        return model


@dataclass(frozen=True)
class KeepsReferences(FedAvg):
    def aggregate(self, model, updates, memory):
        held = [update.delta for update in updates]
        return model + torch.stack(held).mean(dim=0) if held else model.clone()


@dataclass(frozen=True)
class Backwards(FedAvg):
    def aggregate(self, model, updates, memory):
        return 2 * model - super().aggregate(model, updates, memory)


@dataclass(frozen=True)
class InDouble(FedAvg):
    def aggregate(self, model, updates, memory):
        return super().aggregate(model, updates, memory).double()


class NarrowMask:
    def task_for(self, usual, view, cohort):
        return replace(usual, mask=torch.ones(3, dtype=torch.bool))


class NothingToTrain:
    def task_for(self, usual, view, cohort):
        return replace(usual, mask=torch.zeros(cohort.layout.size, dtype=torch.bool))


class ForgetsCohort:
    def task_for(self, usual, view, cohort):
        cohort.aggregation.clear()
        return usual


class AsAsked:
    """Believes what devices say."""

    def match(self, check_ins, federation, rng):
        return [check_in.cohort or "0" for check_in in check_ins]


class OnlyTheKnown:
    def match(self, check_ins, federation, rng):
        known = federation.memory.get("assigned", {})
        return [federation.leaves[0] for check_in in check_ins if check_in.device in known]


class ThrowsDice:
    def match(self, check_ins, federation, rng):
        dice = np.random.default_rng()
        return [federation.leaves[int(dice.integers(len(federation.leaves)))] for _ in check_ins]


class SplitsTheDead(Never):
    def look(self, seen, memory, federation, rng):
        return Look(Split("0.7", 2, reason="why not"))


class OutOfRange(Never):
    def look(self, seen, memory, federation, rng):
        return Look(Split(seen.cohort, 2, {"d0": 2}, None, "why not"))


class MergesALeaf(Never):
    def look(self, seen, memory, federation, rng):
        return Look(Merge(seen.cohort, federation.model(seen.cohort)))


class TellsStrangers(Never):
    def look(self, seen, memory, federation, rng):
        return Look(None, (Answer("stranger", seen.cohort, seen.round, 1.0),))


class Normalises(Never):
    def look(self, seen, memory, federation, rng):
        seen.updates.div_(2)
        return Look()


class SplitsByChance(Never):
    def look(self, seen, memory, federation, rng):
        lucky = np.random.default_rng().random() < 0.5
        return Look(None, (Answer(seen.devices[0], seen.cohort, 1, float(lucky)),) if seen.devices else ())


class LeavesNoiseOut:
    def cluster(self, points, rng):
        return Clustering(np.full(len(points), -1), None)


class Skips:
    def cluster(self, points, rng):
        return Clustering(np.arange(len(points)) * 2, None)


class Moody:
    def cluster(self, points, rng):
        return KMeans(min(2, len(points))).cluster(points + torch.rand_like(points) * 99, np.random.default_rng())


class SplitsTheWhole:
    def reason(self, seen, labels, memory):
        return "always"


class SelfRemembering:
    def __init__(self):
        self.calls = 0

    def reason(self, seen, labels, memory):
        self.calls += 1
        return "now" if self.calls % 2 and len(set(labels.values())) > 1 else None


class DropsALeaf:
    def mixed(self, models):
        return dict(list(models.items())[1:])


class DividesByNorm:
    def mixed(self, models):
        return {cohort: model / model.norm() for cohort, model in models.items()}


BROKEN: dict[Any, list[Any]] = {
    Selector: [TwiceTheSame(), MoreThanAsked(), Dawdler(), OwnChance(), Reordering(), Counting()],
    Aggregator: [InPlace(), KeepsReferences(), Backwards(), InDouble()],
    Objective: [NarrowMask(), NothingToTrain(), ForgetsCohort()],
    Matcher: [AsAsked(), OnlyTheKnown(), ThrowsDice()],
    Formation: [SplitsTheDead(), OutOfRange(), MergesALeaf(), TellsStrangers(), Normalises(), SplitsByChance()],
    Clusterer: [LeavesNoiseOut(), Skips(), Moody()],
    SplitRule: [SplitsTheWhole(), SelfRemembering()],
    Mixing: [DropsALeaf(), DividesByNorm()],
}


@pytest.mark.parametrize(
    ("protocol", "part"),
    [(protocol, part) for protocol, parts in BROKEN.items() for part in parts],
    ids=lambda each: type(each).__name__ if not isinstance(each, type) else each.__name__,
)
def test_a_part_that_breaks_its_contract_is_caught(protocol, part):
    with pytest.raises(AssertionError):
        CONTRACTS[protocol](part)


class Gossip(ScriptedFleet):
    """Passes on what others would choose."""

    def choices(self, devices, models):
        return dict.fromkeys(self.devices, 0)


class Dreamers(ScriptedFleet):
    def check_ins(self, devices, leaves, *, exploring=True):
        return [replace(each, cohort="0.7") for each in super().check_ins(devices, leaves)]


class Vanishing(ScriptedFleet):
    def waiting(self, now_seconds):
        return [self.devices.pop() for _ in range(3)]


@pytest.mark.parametrize("kind", [Gossip, Dreamers, Vanishing])
def test_a_fleet_that_breaks_its_contract_is_caught(kind):
    with pytest.raises(AssertionError):
        contracts.keeps_fleet(kind(names(9)), 4)


def test_every_protocol_of_the_list_has_a_contract_or_is_a_part_of_one():
    inside = {"Summarizer", "Distance", "AutomaticEps"}  # exercised through the formations that use them
    assert {each.__name__ for each in PARTS} - {each.__name__ for each in CONTRACTS} == inside
