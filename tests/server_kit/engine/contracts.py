"""What every part of a kind must keep, whoever wrote it. Each check raises AssertionError at the first breach."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from server_kit.aggregation.streaming import Held
from server_kit.formation.clusterers import Given
from server_kit.interfaces import (
    Answer,
    CheckIn,
    DeviceView,
    Memory,
    Merge,
    Order,
    RoundOutcome,
    Seen,
    Split,
    SummaryRequest,
    Update,
)
from server_kit.inviting import Trained
from server_kit.layout import Layout
from server_kit.local_task import LocalTask
from server_kit.strategy import Strategy
from tests.server_kit.engine.scripted import SIZE, Play, ScriptedFleet, names, rng
from tests.server_kit.engine.worlds import same


def keeps_selector(selector: Any) -> None:
    """Different waiting devices, as many as asked for at most; all that it remembers is in its memory."""
    memory: Memory = {}
    chance = np.random.default_rng(0)
    pristine = copy.deepcopy(selector)
    for step in range(60):
        waiting = _views(chance, int(chance.integers(0, 13)))
        count = int(chance.integers(0, 9))
        offered, repeated = copy.deepcopy(waiting), copy.deepcopy(memory)
        chosen = selector.select(waiting, count, memory, rng(step))
        assert isinstance(chosen, list)
        assert len(set(chosen)) == len(chosen) <= count
        assert set(chosen) <= {view.device for view in waiting}
        assert len(waiting) > count or len(chosen) == len(waiting)
        assert not waiting or not count or chosen
        assert waiting == offered
        fresh = copy.deepcopy(pristine)
        assert fresh.select(waiting, count, repeated, rng(step)) == chosen
        losses = {device: float(chance.random()) for device in chosen}
        outcome = RoundOutcome(step + 1, tuple(chosen), tuple(chosen), 1.0, losses)
        selector.observe(outcome, memory)
        fresh.observe(outcome, repeated)
        assert same(memory, repeated)


def _views(chance: np.random.Generator, count: int) -> list[DeviceView]:
    """Devices known well, a little, or not at all."""
    views = []
    for device in chance.permutation(names(20))[:count].tolist():
        known = chance.random(4) < 0.7
        views.append(
            DeviceView(
                device,
                float(chance.random()) if known[0] else None,
                float(chance.random()) if known[1] else None,
                int(chance.integers(0, 9)) if known[2] else None,
                last_round=int(chance.integers(0, 9)) if known[2] else None,
                cluster=int(chance.integers(0, 3)) if known[3] else None,
            )
        )
    return views


class Reused:
    """Hands out each update in the same piece of memory, as a stream from a disk may."""

    def __init__(self, updates: list[Update]) -> None:
        self._updates = updates

    def __len__(self) -> int:
        return len(self._updates)

    def __iter__(self) -> Iterator[Update]:
        room = torch.empty_like(self._updates[0].delta)
        for update in self._updates:
            room.copy_(update.delta)
            yield Update(update.device, room, staleness=update.staleness, weight=update.weight, loss=update.loss)
            room.fill_(1e9)


def keeps_aggregator(aggregator: Any) -> None:
    """Leaves its input alone, keeps nothing of a stream but what it computed, and goes the way devices point."""
    model = torch.linspace(-1, 1, SIZE)
    offered = model.clone()
    assert torch.equal(aggregator.aggregate(model, Held([]), {}), model)
    memory: Memory = {}
    streamed: Memory = {}
    generator = torch.Generator().manual_seed(1)
    for step in range(5):
        updates = [
            Update(
                device, torch.randn(SIZE, generator=generator), staleness=place, weight=1.0 + place, loss=0.5 + place
            )
            for place, device in enumerate(names(4))
        ]
        sent = copy.deepcopy(updates)
        moved = aggregator.aggregate(model, Held(updates), memory)
        assert moved.shape == model.shape
        assert moved.dtype == model.dtype
        assert bool(torch.isfinite(moved).all())
        assert moved.data_ptr() != model.data_ptr()
        assert torch.equal(model, offered)
        assert same(updates, sent)
        torch.testing.assert_close(aggregator.aggregate(model, Reused(updates), streamed), moved)
        assert set(memory) == set(streamed), step
    alike = torch.tensor([1.0, -1.0, 0.5, -0.5])
    step = aggregator.aggregate(model, Held([Update(device, alike, loss=1.0) for device in names(3)]), {}) - model
    assert torch.equal(step.sign(), alike.sign())


def keeps_objective(objective: Any) -> None:
    """A task of the usual kind for devices known and unknown; the usual one is left as it is."""
    layout = Layout((("one.weight", (4, 3)), ("one.bias", (4,)), ("two.weight", (2, 4)), ("two.bias", (2,))))
    usual = LocalTask(learning_rate=0.1, epochs=2)
    memories: list[Memory] = [{}, {"members": 9, "merges": 400, "staleness": [0, 3, 9]}]
    for memory in memories:
        cohort = Trained(torch.linspace(-1, 1, layout.size), memory, layout)
        model, remembered = cohort.model.clone(), copy.deepcopy(memory)
        for view in (
            DeviceView("new"),
            DeviceView("known", 2.0, 0.5, 30, 4, 7, 1, 3),
            DeviceView("late", staleness=99),
        ):
            task = objective.task_for(usual, view, cohort)
            assert isinstance(task, LocalTask)
            again = objective.task_for(usual, view, cohort)
            assert same(vars(task), vars(again))
            if task.mask is not None:
                assert task.mask.dtype == torch.bool
                assert task.mask.shape == (layout.size,)
                assert bool(task.mask.any())
        assert torch.equal(cohort.model, model)
        assert memory == remembered
    assert vars(usual) == vars(LocalTask(learning_rate=0.1, epochs=2))


def forked(formation: Any = None) -> Play:
    """A federation whose root has split into three, and one of these again; another was merged back."""
    more = {} if formation is None else {"formation": formation}
    now = Play(Strategy("forked", **more), ScriptedFleet(names(8)))
    now.federation.memory["assigned"] = {"d0": "0.0.0", "d1": "0.1", "d2": "0.9.9", "d3": "0"}
    now.state.tree = now.state.tree.split("0", 3).split("0.0", 2).split("0.1", 2).merge("0.1")
    for number, leaf in enumerate(now.state.tree.leaves()):
        now.state.cohorts[leaf] = copy.deepcopy(now.state.cohorts["0"])
        now.state.cohorts[leaf].model = torch.full((SIZE,), float(number))
    return now


def keeps_matcher(matcher: Any) -> None:
    """A living leaf for each check-in, in their order, whatever they say; the same chance, the same leaves."""
    now = forked()
    said = [
        CheckIn("d0", "0.0", 1, 2.0),
        CheckIn("d1", "0.1.1", 7, float("nan")),
        CheckIn("d2", "no such thing", -3, -1.0, True),
        CheckIn("d3", "", 0),
        CheckIn("d4"),
        CheckIn("never seen", "0.2"),
    ]
    now.fleet.prefers = lambda device, models: len(models) - 1
    for asked in ([], said[:1], said):
        first, second = (matcher.match(asked, _copied(now).federation, rng(3)) for now in (_copied(now), _copied(now)))
        assert len(first) == len(asked)
        assert set(first) <= set(now.federation.leaves)
        assert first == second
    silent = _copied(now)
    silent.fleet.choices = lambda devices, models: {}  # type: ignore[method-assign]
    assert set(matcher.match(said, silent.federation, rng())) <= set(now.federation.leaves)
    alone = Play(Strategy("alone"), ScriptedFleet(names(3)))
    assert matcher.match(said, alone.federation, rng()) == ["0"] * len(said)


def _copied(now: Play) -> Play:
    other = forked()
    other.federation.state = copy.deepcopy(now.state)
    other.fleet.prefers = now.fleet.prefers
    return other


def keeps_formation(formation: Any) -> None:
    """Sound decisions about living cohorts, answers for those who took part, and no state but in memories."""
    first, second = (_performed(formation) for _ in range(2))
    assert same(first, second)


def _performed(formation: Any) -> list[Any]:
    """Thirty steps of a federation of two kinds of devices; what was decided in each."""
    fleet = ScriptedFleet(names(12), row=_row, delta=lambda device, order: _row(device))
    fleet.prefers = lambda device, models: int(device[1:]) % len(models)
    now = Play(Strategy("contract", formation=formation), fleet)
    decided: list[Any] = []
    wants = formation.wants
    split = formation.begin(now.federation, rng())
    _sound(split, now)
    if split is not None:
        now.federation._apply(split)
    formation.welcome(["d12", "d13"], now.federation, rng())
    fleet.devices += ["d12", "d13"]
    chance = np.random.default_rng(5)
    memories: dict[str, Memory] = {}
    for step in range(1, 31):
        leaf = now.federation.leaves[step % len(now.federation.leaves)]
        seen = _step(leaf, step, [] if step == 4 else fleet.devices, chance)
        shown = copy.deepcopy(seen)
        look = formation.look(seen, memories.setdefault(leaf, {}), now.federation, rng(step))
        assert same(seen, shown)
        assert {answer.device for answer in look.answers} <= set(seen.devices)
        assert all(isinstance(answer, Answer) and answer.cohort == leaf for answer in look.answers)
        _sound(look.decision, now)
        decided.append((look.decision, look.answers))
        if look.decision is not None:
            now.federation._apply(look.decision)
        copy.deepcopy(memories)
    assert formation.wants == wants
    return decided


def _row(device: str) -> list[float]:
    return [5.0, 0.0, 0.0, 1.0] if int(device[1:]) % 2 else [0.0, 5.0, 1.0, 0.0]


def _step(leaf: str, step: int, devices: list[str], chance: np.random.Generator) -> Seen:
    rows = torch.tensor([_row(device) for device in devices]).view(-1, SIZE)
    noise = [torch.from_numpy(chance.normal(0, 0.3, rows.shape)).float() for _ in range(3)]
    claims = {device: CheckIn(device, leaf, int(device[1:]) % 2, 0.5) for device in devices}
    halves = (rows + noise[1], rows + noise[2]) if devices else None
    return Seen(leaf, step, tuple(devices), (0,) * len(devices), rows + noise[0], halves, claims, 0.01)


def _sound(decision: Any, now: Play) -> None:
    if isinstance(decision, Split):
        assert decision.cohort in now.federation.leaves
        assert decision.parts >= 2
        assert set(decision.members.values()) <= set(range(decision.parts))
        if decision.models is not None:
            assert len(decision.models) == decision.parts
            assert all(model.shape == (SIZE,) for model in decision.models)
        assert decision.reason
    elif decision is not None:
        assert isinstance(decision, Merge)
        assert now.state.tree.children.get(decision.cohort)
        assert decision.model.shape == (SIZE,)


def keeps_fleet(fleet: Any, size: int) -> None:
    """Whoever is asked may stay silent; whoever was not asked says nothing; asking changes nothing."""
    waiting = list(fleet.waiting(0.0))
    assert len(set(waiting)) == len(waiting)
    assert list(fleet.waiting(0.0)) == waiting
    leaves = ["0.0", "0.1"]
    for exploring in (True, False):
        said = fleet.check_ins(waiting, leaves, exploring=exploring)
        assert [check_in.device for check_in in said] == waiting
        assert all(check_in.cohort is None or check_in.cohort in leaves for check_in in said)
    some = waiting[:3]
    models = torch.stack([torch.zeros(size), torch.ones(size)])
    assert all(0 <= choice < 2 for choice in fleet.choices(some, models).values())
    assert set(fleet.choices(some, models)) <= set(some)
    assert fleet.choices([], models) == {}
    assert all(1 / options < fleet.candour(options) <= 1 for options in (2, 5))
    request = SummaryRequest("update", model=models[0], task=LocalTask(0.1))
    assert set(fleet.summaries(request, some)) <= set(some)
    assert len({tuple(row.shape) for row in fleet.summaries(request, some).values()}) <= 1
    assert fleet.summaries(request, []) == {}
    fleet.tell([Answer(some[0], "0.0", 1, 0.5, 1), Answer(some[1], "0.0", 1)], leaves)
    fleet.tell_split("0.0", ["0.0.0", "0.0.1"])
    fleet.dispatch([], 0.0)
    fleet.dispatch([Order(some[0], "0.0", 0, models[0], LocalTask(0.1))], 1.0)


def keeps_clusterer(clusterer: Any) -> None:
    """A label from 0 on for each row, none left out, the same for the same chance; rows are left as they are."""
    chance = torch.Generator().manual_seed(2)
    apart = torch.cat([torch.randn(6, SIZE, generator=chance) + 9, torch.randn(6, SIZE, generator=chance) - 9])
    for points in (apart, apart[:1], apart[:2], apart[:1].repeat(5, 1), torch.zeros(4, SIZE)):
        rows = points[:, :1].round() if isinstance(clusterer, Given) else points
        shown = rows.clone()
        found, again = (clusterer.cluster(rows, rng(7)) for _ in range(2))
        assert len(found.labels) == len(rows)
        assert set(found.labels.tolist()) == set(range(found.count))
        assert np.array_equal(found.labels, again.labels)
        assert torch.equal(rows, shown)


def keeps_split_rule(rule: Any) -> None:
    """A sentence or nothing, whoever is missing; what it remembers is in its memory."""
    chance = np.random.default_rng(0)
    memory: Memory = {}
    labels: dict[str, int] = {}
    for step in range(1, 60):
        seen = _step("0", step, names(int(chance.integers(0, 14))), chance)
        repeated = copy.deepcopy(memory)
        reason = rule.reason(seen, labels, memory)
        assert reason is None or (isinstance(reason, str) and reason)
        assert reason is None or len(set(labels.values())) > 1
        assert rule.reason(seen, labels, repeated) == reason
        assert same(memory, repeated)
        labels.update((device, int(device[1:]) % 2) for device in seen.devices)


def keeps_mixing(mixing: Any) -> None:
    """Every leaf gets a model of its own; what was there is left as it is."""
    for count in (1, 2, 5):
        models = {f"0.{number}": torch.linspace(-number, number + 1, SIZE) for number in range(count)}
        models["0.0"] = torch.zeros(SIZE)
        shown = copy.deepcopy(models)
        mixed = mixing.mixed(models)
        assert list(mixed) == list(models)
        assert all(model.shape == (SIZE,) and bool(torch.isfinite(model).all()) for model in mixed.values())
        assert same(models, shown)
