"""A fleet of simulated devices: they keep their records, answer in virtual time, and train when their answer is due.

Nothing is computed that is not used. A device that is asked gets a time at which it will answer; what it would
send is trained only when a cohort folds it, together with all others that are due. Stragglers that no round waits
for cost nothing.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from device_sdk.affinity import AffinityRecord, Exploration, Feedback
from server_kit.altered import altered
from server_kit.cohort_tree import distance
from server_kit.interfaces import (
    Announced,
    Answer,
    CheckIn,
    CohortId,
    Counted,
    DeviceId,
    Order,
    SummaryRequest,
    Summed,
    Update,
    Updates,
)
from server_kit.round import Ticket
from server_kit.simulation.attacks import kept_within
from server_kit.simulation.chance import uniforms
from server_kit.simulation.local_training import AS_TOLD, Expected, Key, LocalTraining, kept, key_of
from server_kit.simulation.telling import BYTES, Telling

if TYPE_CHECKING:
    from server_kit.local_task import LocalTask
    from server_kit.simulation.population import Population
    from server_kit.simulation.privacy_terms import SpendingPlan
    from server_kit.simulation.ragged import FloatArray
    from server_kit.simulation.training import Trainer

_MOST_HELD = 1 << 28  # bytes of updates that are kept for a second look; beyond, they are trained again


@dataclass
class Tally:
    """What the fleet has spent."""

    bytes_down: int = 0
    bytes_up: int = 0
    steps: int = 0


@dataclass
class SimulatedFleet:
    """The devices of a population, with the records they keep."""

    population: Population
    trainer: Trainer
    seed: int = 0
    privacy: SpendingPlan | None = None
    reports_loss: bool = False
    reads_again: bool = False
    """Whether a round's updates are read more than once; noticed when it happens, if nobody knew before."""
    trains_ahead: bool = False
    """Whether every answer will be read some day, so that those still out may be trained with those that are due."""
    exploration: Exploration = field(default_factory=Exploration)
    round: int = 0
    """The run's round, which decides what has changed and who has joined."""
    records: dict[DeviceId, AffinityRecord] = field(default_factory=dict)
    expected: dict[DeviceId, Expected] = field(default_factory=dict)
    """Who is out."""
    delivered: dict[Key, Expected] = field(default_factory=dict)
    """Answers that have arrived and are not folded yet."""
    participations: dict[DeviceId, int] = field(default_factory=dict)
    summarised: dict[DeviceId, int] = field(default_factory=dict)
    chosen: dict[DeviceId, int] = field(default_factory=dict)
    trained: dict[Key, Update] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    told_stage: dict[DeviceId, int] = field(default_factory=dict)
    """The latest change of its data that each device has spoken of."""
    is_private: bool = False
    """Whether devices speak to themselves; see `in_private`."""
    delay_seconds: float = 0.0
    """What was waited for outside of rounds; whoever keeps the clock adds it."""

    # Checking in

    def waiting(self, now_seconds: float) -> Sequence[DeviceId]:
        there = self.population.waiting(now_seconds, self.round)
        busy, most = set(self.expected), self.most_participations
        if not self.trains_ahead:
            # In rounds a device is done when its answer has been folded.
            busy.update(device for device, _ in self.delivered)
        if most < math.inf:
            busy.update(device for device, done in self.participations.items() if done >= most)
        return [device for device in there if device not in busy]

    @property
    def most_participations(self) -> float:
        """How often a device may take part, by its budget."""
        return math.inf if self.privacy is None else self.privacy.terms.participations

    def check_ins(
        self, devices: Sequence[DeviceId], leaves: Sequence[CohortId], *, exploring: bool = True
    ) -> Sequence[CheckIn]:
        shifted = self._shifted(devices)
        if exploring:
            self.told_stage.update(dict.fromkeys(devices, self.population.stages.stage(self.round)))
        if len(leaves) == 1 and not self.records:
            # Nobody has anything to choose between or to remember.
            return [_plain_check_in(device, leaves[0], device in shifted) for device in devices]
        lost = self._lost(devices) if exploring else set()
        probability = self.exploration.probability(self.round) if exploring else 0.0
        numbers = np.array([self.population.index(device) for device in devices], dtype=np.int64)
        whether, where = (uniforms(self.seed, name, numbers, self.round) for name in ("explore", "explore where"))
        chances = map(_Chance, whether.tolist(), where.tolist())
        return [
            self._check_in(device, leaves, probability, chance, lost=device in lost, changed=device in shifted)
            for device, chance in zip(devices, chances, strict=True)
        ]

    def _check_in(
        self,
        device: DeviceId,
        leaves: Sequence[CohortId],
        explore: float,
        chance: _Chance,
        *,
        lost: bool,
        changed: bool,
    ) -> CheckIn:
        if lost:
            self.records.pop(device, None)
        record = self.records.get(device)
        if record is None or len(leaves) == 1:
            affinity = None if record is None else record.affinities.get(leaves[0])
            sub_cluster = None if affinity is None else affinity.sub_cluster
            return CheckIn(device, leaves[0] if len(leaves) == 1 else None, sub_cluster, changed=changed)
        cohort = record.choose(leaves, explore, chance)
        known = record.affinities.get(cohort)
        sub_cluster = None if known is None else known.sub_cluster
        return CheckIn(device, cohort, sub_cluster, record.reward(cohort), changed)

    def _lost(self, devices: Sequence[DeviceId]) -> set[DeviceId]:
        if self.population.affinity_loss == 0 or not self.records:
            return set()
        return {device for device in devices if self.population.loses_affinity(device, self.round)}

    def _shifted(self, devices: Sequence[DeviceId]) -> frozenset[DeviceId]:
        """Devices whose data have changed since they last checked in; one that is new has nothing to compare."""
        stages = self.population.stages
        now = stages.stage(self.round)
        if now == 0:
            return frozenset()
        numbers = np.array([self.population.index(device) for device in devices], dtype=np.int64)
        before = np.array([self.told_stage.get(device, now) for device in devices], dtype=np.int64)
        moved = np.flatnonzero(stages.claimed[now, numbers] != stages.claimed[before, numbers])
        return frozenset(devices[place] for place in moved.tolist())

    # Training

    def dispatch(self, orders: Sequence[Order], now_seconds: float) -> None:
        for one in self.under_way(orders, now_seconds):
            self.expected[one.order.device] = one

    def under_way(self, orders: Sequence[Order], now_seconds: float) -> list[Expected]:
        """Devices set to work, and what that costs."""
        if not orders:
            return []
        numbers = np.array([self.population.index(order.device) for order in orders])
        size = orders[0].model.numel()
        steps = np.array([self._steps(order) for order in orders])
        down = np.full(len(orders), size * BYTES, dtype=np.float64)
        up = np.array([BYTES * (size if order.task.mask is None else int(order.task.mask.sum())) for order in orders])
        latencies = self.population.latency.seconds(
            numbers, self.round, bytes_down=down, bytes_up=up.astype(np.float64), steps=steps
        )
        under_way = []
        for order, seconds in zip(orders, latencies, strict=True):
            number = self.participations.get(order.device, 0)
            self.participations[order.device] = number + 1
            under_way.append(Expected(order, now_seconds, now_seconds + float(seconds), number, self.round))
        self.tally.bytes_down += int(down.sum())
        self.tally.bytes_up += int(up.sum())
        self.tally.steps += int(steps.sum())
        return under_way

    def arrives(self, device: DeviceId, now_seconds: float) -> bool:
        """The time of an answer has come: False if the device is away and the answer with it."""
        expected = self.expected.pop(device)
        if self.population.available(device, now_seconds):
            self.delivered[expected.key] = expected
            return True
        self.trained.pop(expected.key, None)
        return False

    def forget(self, keys: Iterable[Key]) -> None:
        """Answers that nobody will read any more."""
        for key in keys:
            self.delivered.pop(key, None)
            self.trained.pop(key, None)

    def read(self, tickets: Sequence[Ticket]) -> Updates:
        """The updates behind these tickets; see `Shelf`."""
        return _Answers(self, [self.delivered[key_of(ticket)] for ticket in tickets], tickets)

    def latencies_seconds(self, devices: Sequence[DeviceId], task: LocalTask, size: int) -> FloatArray:
        """How long each device would take for a task with a model of this size, were it asked in this round."""
        numbers = np.array([self.population.index(device) for device in devices])
        steps = np.array([task.steps_for(self.population.num_samples(device)) for device in devices])
        sent = float(size * BYTES)
        return self.population.latency.seconds(numbers, self.round, bytes_down=sent, bytes_up=sent, steps=steps)

    def _steps(self, order: Order) -> int:
        return order.task.steps_for(self.population.num_samples(order.device))

    def train(self, work: Sequence[Expected]) -> Iterator[tuple[int, Update]]:
        """The updates of these answers with their places."""
        return self._training.updates(work)

    def summed(
        self, work: Sequence[Expected], tickets: Sequence[Ticket], share: Callable[[Announced], float]
    ) -> Summed | None:
        """The sum of these answers by their shares, or None where each of them must be seen."""
        training = self._training
        if training.sees_each or any(one.order.task.halves or one.order.task.mask is not None for one in work):
            return None
        told = [Counted(ticket.device, ticket.staleness, training.weight(ticket.device)) for ticket in tickets]
        total, outcomes = training.summed(work, [share(each) for each in told])
        known = zip(told, outcomes, strict=True)
        return Summed(total, [it if became is AS_TOLD else altered(it, **became._asdict()) for it, became in known])

    @property
    def _training(self) -> LocalTraining:
        return LocalTraining(self.population, self.trainer, self.seed, self.privacy, self.reports_loss)

    # Saying something about themselves

    @cached_property
    def _telling(self) -> Telling:
        return Telling(self)

    def summaries(self, request: SummaryRequest, devices: Sequence[DeviceId]) -> Mapping[DeviceId, torch.Tensor]:
        return self._telling.summaries(request, devices)

    def choices(self, devices: Sequence[DeviceId], models: torch.Tensor) -> Mapping[DeviceId, int]:
        return self._telling.choices(devices, models)

    def candour(self, options: int) -> float:
        return self._telling.candour(options)

    @contextlib.contextmanager
    def in_private(self) -> Iterator[None]:
        """Devices look at models for their own use: nothing is sent, so nothing is noised, booked or counted."""
        self.is_private = True
        try:
            yield
        finally:
            self.is_private = False

    def best_models(self, devices: Sequence[DeviceId], models: torch.Tensor) -> list[int]:
        """The model with the least loss on each device's own records."""
        data = self.population.device_data("train", self.round)
        losses = torch.stack([self.trainer.evaluate(model, data, devices).losses for model in models])
        best: list[int] = losses.nan_to_num(torch.inf).argmin(dim=0).tolist()
        return best

    # Feedback

    def tell(self, answers: Sequence[Answer], leaves: Sequence[CohortId]) -> None:
        for answer in answers:
            if answer.reward_change is None and answer.sub_cluster is None:
                continue
            record = self.records.get(answer.device, AffinityRecord())
            feedback = Feedback(answer.cohort, answer.round, answer.reward_change, answer.sub_cluster)
            self.records[answer.device] = record.learned(feedback, leaves, distance)

    def tell_split(self, cohort: CohortId, children: Sequence[CohortId]) -> None:
        self.records = {device: record.after_split(cohort, children) for device, record in self.records.items()}

    def epsilon(self) -> float | None:
        """The most that any device has spent."""
        if self.privacy is None:
            return None
        devices = self.participations.keys() | self.summarised.keys() | self.chosen.keys()
        spent = {(self.participations.get(d, 0), self.summarised.get(d, 0), self.chosen.get(d, 0)) for d in devices}
        return max((self.privacy.spent(*each) for each in spent), default=0.0)


@lru_cache(maxsize=1 << 17)
def _plain_check_in(device: DeviceId, leaf: CohortId, changed: bool) -> CheckIn:
    """Thousands say the same thing in every round; to look up what they said takes a tenth of the time."""
    return CheckIn(device, leaf, changed=changed)


@dataclass(frozen=True)
class _Chance:
    """What a device draws in a round: the same whatever else happens."""

    whether: float
    where: float

    def random(self) -> float:
        return self.whether

    def below(self, bound: int) -> int:
        return int(self.where * bound)


@dataclass
class _Answers:
    """Updates that are trained when they are read, in the order of their tickets.

    The first pass hands them on as they are made. Where a strategy reads a round twice, later rounds are kept for the
    second pass if they are not too many; else they are trained again, which ends in the same updates.
    """

    fleet: SimulatedFleet
    due: Sequence[Expected]
    tickets: Sequence[Ticket]
    _was_read: bool = False

    def __len__(self) -> int:
        return len(self.due)

    def summed(self, share: Callable[[Announced], float]) -> Summed | None:
        """Their sum, never written down one by one; None where they are kept, or must be seen."""
        if not self.due or self._was_read or self.fleet.reads_again or self.fleet.trains_ahead:
            return None
        summed = self.fleet.summed(self.due, self.tickets, share)
        self._was_read = summed is not None
        return summed

    def __iter__(self) -> Iterator[Update]:
        population = self.fleet.population
        if population.attack is None or population.attack.within is None:
            return self._each()
        self.fleet.reads_again = True
        return kept_within(self._each, population.liars, population.attack.within)

    def _each(self) -> Iterator[Update]:
        self.fleet.reads_again |= self._was_read
        self._was_read = True
        size = self.due[0].order.model.numel() * BYTES * (3 if self.due[0].order.task.halves else 1)
        if size * len(self.due) > _MOST_HELD:
            updates: Iterable[tuple[int, Update]] = self.fleet.train(self.due)
        elif self.fleet.reads_again or self.fleet.trains_ahead:
            updates = self._kept(size)
        else:
            updates = _in_turn(self.fleet.train(self.due))
        for place, update in updates:
            yield altered(update, staleness=self.tickets[place].staleness)
            del update

    def _kept(self, size: int) -> Iterator[tuple[int, Update]]:
        """All of them at once, from memory where they are there already."""
        held = self.fleet.trained
        missing = [one for one in self.due if one.key not in held]
        if missing:
            work = [*missing, *self._also(size, len(missing))]
            for place, update in self.fleet.train(work):
                held[work[place].key] = kept(update)
        return ((place, held[one.key]) for place, one in enumerate(self.due))

    def _also(self, size: int, needed: int) -> list[Expected]:
        """Where one answer is folded at a time, those still out are worked out with it, as far as they fit."""
        if not self.fleet.trains_ahead or len(self.due) >= len(self.fleet.expected) // 2:
            return []
        others = [one for one in self.fleet.expected.values() if one.key not in self.fleet.trained]
        return others[: max(0, _MOST_HELD // size - needed)]


def _in_turn(updates: Iterable[tuple[int, Update]]) -> Iterator[tuple[int, Update]]:
    """In the order of their places; only what comes before its turn is copied."""
    early: dict[int, Update] = {}
    turn = 0
    for place, update in updates:
        if place != turn:
            early[place] = kept(update)
            continue
        yield place, update
        turn += 1
        while turn in early:
            yield turn, early.pop(turn)
            turn += 1
