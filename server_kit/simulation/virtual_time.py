"""A federation in virtual time: the engine of the daemon, behind it a simulated fleet and a clock that jumps.

    with the parts of a strategy, the devices of a population and a seed, everything that happens is fixed

A round of the run is as many answers as there are places; with several cohorts, or without rounds at all, it is
the same amount of work by devices.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from server_kit.errors import InvalidSetting
from server_kit.federation import Change, Federation
from server_kit.federation_state import Plan
from server_kit.interfaces import CohortId, DeviceId, Split
from server_kit.local_task import LocalTask
from server_kit.round import Verdict
from server_kit.simulation.all_seeing import reveal
from server_kit.simulation.fleet import SimulatedFleet
from server_kit.simulation.judging import Judge
from server_kit.simulation.local_training import Key, key_of
from server_kit.simulation.records import Happening, Point, Run
from server_kit.simulation.standalone import train_alone
from server_kit.simulation.training import Trainer
from server_kit.simulation.training.hardware import Hardware
from server_kit.simulation.training.workers import leaving_cores_to_workers

if TYPE_CHECKING:
    from server_kit.simulation.population import Population
    from server_kit.simulation.privacy_terms import PrivacyTerms
    from server_kit.simulation.training.bench import Spec
    from server_kit.strategy import Strategy

_IDLE_SECONDS = 60.0  # how long the clock jumps while nobody is there
_MOST_IDLE = 100_000  # jumps in a row before a run is given up


@dataclass(frozen=True)
class RunSettings:
    """How long a run is, how many take part, and what devices do."""

    rounds: int = 100
    participants: int = 20
    """Devices in a round, all cohorts together; or, without rounds, devices at work at a time."""
    evaluate_every: int = 5
    max_seconds: float = math.inf
    """Of the virtual clock."""
    evaluated_devices: int = 2000
    """At most so many devices, drawn once, are tested."""
    task: LocalTask = field(default_factory=lambda: LocalTask(learning_rate=0.05))
    privacy: PrivacyTerms | None = None
    device: Hardware = "auto"
    """Where models are trained and tested."""
    all_seeing: bool = False
    """Whether the server knows every device's loss and latency before each round, as HACCS's released code does."""

    def __post_init__(self) -> None:
        for name in ("rounds", "participants", "evaluate_every", "evaluated_devices"):
            if getattr(self, name) < 1:
                raise InvalidSetting(f"{name} must be at least 1, got {getattr(self, name)}; nothing was started")
        if self.all_seeing and self.privacy is not None:
            raise InvalidSetting("all_seeing shows what devices with a budget would not tell; nothing was started")


def simulate(
    population: Population,
    strategy: Strategy,
    spec: Spec,
    settings: RunSettings,
    seed: int = 0,
    *,
    on_point: Callable[[Point], None] | None = None,
) -> Run:
    """Run a strategy on a population; `on_point` is shown each evaluation as it is made."""
    with Trainer(spec, device=settings.device) as trainer:
        if strategy.alone:
            return train_alone(population, strategy, trainer, settings, seed=seed, on_point=on_point)
        run = _Simulation(population, strategy, trainer, settings, seed=seed, on_point=on_point or (lambda _: None))
        return run.run()


class _Simulation:
    """The event loop: answers fall due in the order of their times, and leaves move on when they can."""

    def __init__(
        self,
        population: Population,
        strategy: Strategy,
        trainer: Trainer,
        settings: RunSettings,
        *,
        seed: int,
        on_point: Callable[[Point], None],
    ) -> None:
        self._settings, self._strategy, self._seed = settings, strategy, seed
        self._on_point = on_point
        spec = trainer.spec
        spending = None
        if settings.privacy is not None:
            records = {population.num_samples(device) for device in population.devices}
            spending = settings.privacy.plan(strategy, settings.task, records)
        self.fleet = SimulatedFleet(
            population,
            trainer,
            seed,
            spending,
            strategy.reports_loss,
            reads_again=strategy.formation.wants.updates or getattr(strategy.aggregator, "reads_again", False),
            trains_ahead=strategy.is_asynchronous,
        )
        plan = Plan(
            strategy,
            settings.task,
            spec.layout,
            settings.participants,
            lambda number: spec.initial(seed + 7919 * number),
            seed,
        )
        self.federation = Federation(plan, self.fleet, lambda _: self.fleet)
        self._judge = Judge.of(population, trainer, strategy, settings, seed)
        self._due: list[tuple[float, int, DeviceId, float]] = []
        self._now = 0.0
        self._counted = 0
        self._idle = 0
        self._revealed_after = -1
        self._points: list[Point] = []
        self._happenings: list[Happening] = []

    def run(self) -> Run:
        self.begin()
        with leaving_cores_to_workers():
            while not self._is_over() and self.step():
                pass
        if self._points[-1].progress.round != self.fleet.round:
            self._evaluate()
        return self._run()

    def begin(self) -> None:
        self._note(self.federation.begin(), "founded")
        self._wait_for_founding()
        self._evaluate()

    def step(self) -> bool:
        """One event: ask whom one can, let the next answer come, move on where that suffices; False to give up."""
        self._invite()
        if not self._due:
            self._idle += 1
            if self._fold_what_is_there():
                return True
            self._now += _IDLE_SECONDS
            return self._idle <= _MOST_IDLE and not self._nobody_is_left()
        self._idle = 0
        self._next_answer()
        for leaf in self.federation.due(self._now):
            self._fold(leaf)
        return True

    def _is_over(self) -> bool:
        return self.fleet.round >= self._settings.rounds or self._now >= self._settings.max_seconds

    def _nobody_is_left(self) -> bool:
        """Whether every device has spent its budget."""
        plan = self.fleet.privacy
        if plan is None:
            return False
        done = self.fleet.participations
        return all(done.get(d, 0) >= plan.terms.participations for d in self.fleet.population.devices)

    def _invite(self) -> None:
        if self._settings.all_seeing and self._revealed_after != self.federation.steps:
            reveal(self.federation, self.fleet)
            self._revealed_after = self.federation.steps
        for order in self.federation.invite(self._now):
            at = self.fleet.expected[order.device].at_seconds
            heapq.heappush(self._due, (at, self.fleet.population.index(order.device), order.device, at))

    def _next_answer(self) -> None:
        """Let the clock go on to the next answer or deadline."""
        deadline = self.federation.next_deadline(self._now)
        if deadline < self._due[0][0]:
            self._now = deadline
            return
        at, _, device, promised = heapq.heappop(self._due)
        self._now = max(self._now, at)
        expected = self.fleet.expected.get(device)
        if expected is None or expected.at_seconds != promised:
            return
        if not self.fleet.arrives(device, self._now):
            self.federation.lost(device)
            return
        verdict = self.federation.receive(device, self._now)
        if verdict is not Verdict.ACCEPTED and not self._is_kept(expected.key):
            self.fleet.forget([expected.key])

    def _is_kept(self, key: Key) -> bool:
        """Whether an answer that is not of this round will be folded all the same."""
        return any(
            key_of(ticket) == key
            for leaf in self.federation.leaves
            for ticket in self.federation.state.cohorts[leaf].arrived
        )

    def _fold_what_is_there(self) -> bool:
        """Nobody is out and nobody can be asked: a buffer that is not full will not be."""
        lying = [leaf for leaf in self.federation.leaves if self.federation.state.cohorts[leaf].arrived]
        for leaf in lying:
            self._fold(leaf)
        return bool(lying)

    def _fold(self, leaf: CohortId) -> None:
        state = self.federation.state.cohorts.get(leaf)
        if state is None or not self.federation.state.tree.is_leaf(leaf):
            return
        folded = [key_of(ticket) for ticket in state.arrived]
        outcome, change = self.federation.fold(leaf, self._now)
        self.fleet.forget(folded)
        self._counted += max(1, len(outcome.arrived))
        self._note(change, "split")
        self._wait_for_founding()
        before = self.fleet.round
        self.fleet.round = self._counted // self._settings.participants
        every = self._settings.evaluate_every
        if self.fleet.round // every > before // every:
            self._evaluate()

    def _note(self, change: Change | None, kind: str) -> None:
        if change is None:
            return
        decision = change.decision
        kind = kind if isinstance(decision, Split) else "merged"
        happening = Happening(kind, self.fleet.round, self._now, decision.cohort, change.children, decision.reason)
        self._happenings.append(happening)

    def _wait_for_founding(self) -> None:
        self._now += self.fleet.delay_seconds
        self.fleet.delay_seconds = 0.0

    def _evaluate(self) -> None:
        point = self._judge.point(self.federation, self.fleet, self._now)
        self._points.append(point)
        self._on_point(point)

    def _run(self) -> Run:
        accuracies, homes = self._judge.everyone(self.federation, self.fleet)
        return Run(
            self._strategy.name,
            self._seed,
            tuple(self._points),
            tuple(self._happenings),
            accuracies,
            homes,
            dict(self.federation.refusals),
        )
