"""One cohort, step by step: whom to ask, what has arrived, when there is a new model.

    ask  ->  devices train  ->  receive, receive, ...  ->  due  ->  fold: the next version

Synchronous, buffered and asynchronous training are this one machine at different paces. A synchronous round
asks somewhat more devices than it needs and moves on with the first that answer; an asynchronous cohort keeps
a number of devices busy and moves on after each arrival, or after a buffer of them. Every model has a version,
so a late update is known by its staleness.

Nothing here looks at a clock or draws chance of its own: time comes in with each call, and chance follows from
the seed, the cohort and the step. The same calls give the same bits; `replay` is the proof.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from server_kit.aggregation.streaming import Held, blocks_of
from server_kit.interfaces import (
    CohortId,
    DeviceId,
    DeviceView,
    Memory,
    RoundOutcome,
    Update,
    Updates,
    has_parts,
    in_parts,
    summed,
)

if TYPE_CHECKING:
    from server_kit.interfaces import Aggregator, Announced, Selector, Summed


def whole(number: float) -> int:
    """The least whole number that is not below; 1.3 devices for each of 10 are 13, whatever floats say."""
    return math.ceil(number - 1e-9)


@dataclass(frozen=True)
class Pace:
    """How many devices are asked, and how many arrivals make the next model.

    `in_flight` None: one round at a time, asking `over_commit` times the arrivals that are needed, and at the
    deadline moving on with those that came if they are `fewest` at least. Else: so many devices are kept busy.
    """

    arrivals: int
    over_commit: float = 1.0
    in_flight: int | None = None
    deadline_seconds: float = math.inf
    fewest: int = 1
    begin_with: int = 1
    """How many devices must wait before a round is opened; with fewer than it wants, a round is content."""
    fold_late: bool = False
    """Whether an update that missed its round is folded into the next, with its staleness, or dropped."""


class Verdict(StrEnum):
    """What became of an arrival."""

    ACCEPTED = "accepted"
    LATE = "late"
    NOT_ASKED = "not asked"
    """Never asked, or a second answer: counted once whatever arrives twice."""


@dataclass(frozen=True)
class Asked:
    """A device that was handed a model and has not answered yet."""

    version: int
    at_seconds: float


@dataclass(frozen=True)
class Ticket:
    """An answer that a cohort has accepted: whose, and how far the model has moved on since it was handed out."""

    device: DeviceId
    base_version: int
    staleness: int
    asked_at_seconds: float = 0.0


class Shelf(Protocol):
    """Where the answers to this cohort lie: on disk in a daemon; in a simulation nobody has trained them yet."""

    def read(self, tickets: Sequence[Ticket]) -> Updates:
        """The updates behind these tickets, in their order, until the next `read`."""


@dataclass
class MemoryShelf:
    """A shelf for tests and small rounds: put an answer there, then tell the cohort that it has arrived."""

    held: dict[tuple[DeviceId, int], Update] = field(default_factory=dict)

    def put(self, update: Update) -> None:
        self.held[update.device, update.base_version] = update

    def read(self, tickets: Sequence[Ticket]) -> Updates:
        found = [self.held[ticket.device, ticket.base_version] for ticket in tickets]
        return Held([replace(up, staleness=ticket.staleness) for up, ticket in zip(found, tickets, strict=True)])


@dataclass
class CohortState:
    """Everything about a cohort that a checkpoint must hold; copying it is what a split does."""

    cohort: CohortId
    model: torch.Tensor
    version: int = 0
    round: int = 0
    opened_at_seconds: float | None = None
    asked: dict[DeviceId, Asked] = field(default_factory=dict)
    missed: dict[DeviceId, Asked] = field(default_factory=dict)
    """Asked in an earlier round and still out: they may yet arrive, late."""
    arrived: list[Ticket] = field(default_factory=list)
    needed: int = 1
    """How many arrivals complete the round that is open."""
    aggregation: Memory = field(default_factory=dict)
    selection: Memory = field(default_factory=dict)
    clustering: Memory = field(default_factory=dict)
    refusals: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Cohort:
    """A cohort at work: its state, and the parts that it is trained with."""

    state: CohortState
    selector: Selector
    aggregator: Aggregator
    pace: Pace
    shelf: Shelf
    seed: int = 0

    def ask(self, waiting: Sequence[DeviceView], now_seconds: float, places: int | None = None) -> list[DeviceId]:
        """Choose devices among those that wait; they are to train on the present version.

        As many as the pace wants, or as `places` says where someone above the cohort has counted.
        """
        state = self.state
        # A device counts once in a round; where there are none, it may go on as soon as it has answered.
        done = state.arrived
        if self.pace.in_flight is not None:
            done = [ticket for ticket in done if ticket.asked_at_seconds == now_seconds]
        taken = {ticket.device for ticket in done}
        free = [view for view in waiting if view.device not in state.asked and view.device not in taken]
        wanted = self.wanted(now_seconds) if places is None else places
        opening = state.opened_at_seconds is None
        if wanted < 1 or not free or (opening and len(free) < self.pace.begin_with):
            return []
        chosen = self.selector.select(free, wanted, state.selection, self._rng("ask"))
        if chosen and (opening or self._overdue(now_seconds)):
            state.opened_at_seconds = now_seconds
        for device in chosen:
            state.asked[device] = Asked(state.version, now_seconds)
            state.missed.pop(device, None)
        state.needed = self._needed()
        return chosen

    def receive(self, device: DeviceId, now_seconds: float) -> Verdict:
        """A device has answered, and what it sent lies on the shelf. Whatever arrives twice is counted once."""
        del now_seconds
        state = self.state
        if device in state.asked:
            asked, verdict = state.asked.pop(device), Verdict.ACCEPTED
        elif device in state.missed:
            asked, verdict = state.missed.pop(device), Verdict.LATE
        else:
            return self._refuse(Verdict.NOT_ASKED)
        if verdict is Verdict.LATE and not self.pace.fold_late:
            return self._refuse(Verdict.LATE)
        state.arrived.append(Ticket(device, asked.version, state.version - asked.version, asked.at_seconds))
        return verdict

    def lost(self, device: DeviceId) -> None:
        """A device that was asked has gone; `ask` will replace it."""
        self.state.asked.pop(device, None)
        self.state.missed.pop(device, None)

    def due(self, now_seconds: float) -> bool:
        """Whether there is enough for the next model."""
        state = self.state
        nobody_is_out = self.pace.in_flight is None and not state.asked
        enough = self.pace.fewest if nobody_is_out or self._overdue(now_seconds) else state.needed
        return len(state.arrived) >= max(1, enough)

    def deadline_seconds(self) -> float:
        """When `due` should be asked again though nothing arrives."""
        opened = self.state.opened_at_seconds
        return math.inf if opened is None else opened + self.pace.deadline_seconds

    def fold(self, now_seconds: float, watch: Callable[[Update], None] | None = None) -> RoundOutcome:
        """Make the next model of what has arrived. Unusable updates are left out and counted; the round goes on.

        `watch` is shown each usable update before they are aggregated.
        """
        state = self.state
        usable = Usable(self.shelf.read(state.arrived), state.model.shape)
        if watch is not None:
            for update in usable:
                watch(update)
        state.model = self.aggregator.aggregate(state.model, usable, state.aggregation)
        state.refusals.update(usable.refused)
        state.version += 1
        state.round += 1
        outcome = RoundOutcome(
            round=state.round,
            selected=(*(ticket.device for ticket in state.arrived), *state.asked),
            arrived=tuple(usable.losses),
            duration_seconds=now_seconds - (state.opened_at_seconds or 0.0),
            losses={device: loss for device, loss in usable.losses.items() if loss is not None},
            weights=dict(usable.weights),
        )
        state.arrived.clear()
        if self.pace.in_flight is None:
            # Whoever is still out has missed this round and is free for the next.
            state.missed.update(state.asked)
            state.asked.clear()
            state.opened_at_seconds = None
        else:
            state.opened_at_seconds = now_seconds
        return outcome

    def wanted(self, now_seconds: float) -> int:
        """How many more devices should be out."""
        if self.pace.in_flight is not None:
            return self.pace.in_flight - len(self.state.asked)
        if self.due(now_seconds):
            # The next model is made of those who came; whoever is asked now would be late for it.
            return 0
        target = whole(self.pace.arrivals * self.pace.over_commit)
        # Past the deadline those still out are given up, and others are asked in their place.
        out = 0 if self._overdue(now_seconds) else len(self.state.asked)
        return target - len(self.state.arrived) - out

    def _needed(self) -> int:
        """All that the pace asks for, or its share of those who were there to be asked."""
        if self.pace.in_flight is not None:
            return self.pace.arrivals
        taking_part = len(self.state.asked) + len(self.state.arrived)
        return min(self.pace.arrivals, max(1, whole(taking_part / self.pace.over_commit)))

    def _overdue(self, now_seconds: float) -> bool:
        return now_seconds >= self.deadline_seconds()

    def _refuse(self, verdict: Verdict) -> Verdict:
        self.state.refusals[verdict.value] += 1
        return verdict

    def _rng(self, purpose: str) -> np.random.Generator:
        state = self.state
        out = len(state.asked) + len(state.arrived)
        label = f"{self.seed}:{state.cohort}:{state.version}:{out}:{purpose}"
        return np.random.default_rng(int.from_bytes(hashlib.sha256(label.encode()).digest()[:16]))


class Usable:
    """A round's updates without those that cannot be folded: of another shape, or not finite."""

    def __init__(self, updates: Updates, shape: torch.Size) -> None:
        self._updates = updates
        self._shape = shape
        self.refused: Counter[str] = Counter()
        self.losses: dict[DeviceId, float | None] = {}
        self.weights: dict[DeviceId, float] = {}
        self._usable: list[bool] = []
        """Of all updates in their order, as the last pass over them found."""

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Update]:
        # Counted afresh in each pass, since an aggregator may read more than once.
        self.refused.clear()
        self.losses.clear()
        self.weights.clear()
        self._usable.clear()
        for update in self._updates:
            self._usable.append(False)
            if update.delta.shape != self._shape:
                self.refused["of another shape"] += 1
            elif not all(_is_finite(part) for part in blocks_of(update.delta)):
                self.refused["not finite"] += 1
            else:
                self._usable[-1] = True
                self.losses[update.device] = update.loss
                self.weights[update.device] = update.weight
                yield update
            # It is not kept while the next is read.
            del update

    @property
    def has_parts(self) -> bool:
        return has_parts(self._updates)

    def parts(self, start: int, stop: int) -> Iterator[torch.Tensor]:
        """Some coordinates of each usable update; all of them have been read once to know which those are."""
        if len(self._usable) != len(self._updates):
            len(self)
        found = zip(in_parts(self._updates, start, stop), self._usable, strict=True)
        return (part for part, is_usable in found if is_usable)

    def summed(self, share: Callable[[Announced], float]) -> Summed | None:
        """The same updates as a sum, where whoever makes them can add them up; see `SelfSumming`."""
        added_up = summed(self._updates, share)
        if added_up is None or added_up.total.shape != self._shape:
            return None
        usable = [each for each in added_up.counted if each.is_finite]
        self.refused = Counter({"not finite": len(added_up.counted) - len(usable)})
        self.losses = {each.device: each.loss for each in usable}
        self.weights = {each.device: each.weight for each in usable}
        return added_up


def _is_finite(values: torch.Tensor) -> bool:
    """Whether all are; what is not a number is both the least and the largest. One pass, and nothing written."""
    low, high = torch.aminmax(values)
    return math.isfinite(low) and math.isfinite(high)


@dataclass(frozen=True)
class Asking:
    """`ask` was called."""

    waiting: tuple[DeviceView, ...]
    at_seconds: float


@dataclass(frozen=True)
class Arrival:
    """`receive` was called."""

    device: DeviceId
    at_seconds: float


@dataclass(frozen=True)
class Folding:
    """`fold` was called."""

    at_seconds: float


Event = Asking | Arrival | Folding


def replay(cohort: Cohort, events: Iterable[Event]) -> None:
    """Do again what the log says; from the same start this ends in the same state, bit for bit."""
    for event in events:
        match event:
            case Asking(waiting, at):
                cohort.ask(waiting, at)
            case Arrival(device, at):
                cohort.receive(device, at)
            case Folding(at):
                cohort.fold(at)
