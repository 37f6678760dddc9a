"""A whole federation: the tree of cohorts, the cohorts at work, and what is known about devices.

    invite   devices that wait are led to leaves, and some of them are asked to train
    receive  one has answered
    due      which leaves can move on
    fold     one does: its next model, feedback to those who took part, maybe another shape of the tree

Daemon and simulation drive these; neither knows what the parts do. In a daemon a worker makes the next model, and the
coordinator's `digest` is what remains of `fold`. Time comes in by argument, chance follows from the seed and the step.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from server_kit.altered import altered
from server_kit.cohort_tree import ROOT, CohortTree
from server_kit.federation_state import FederationState, Plan
from server_kit.folding import Folded, facts_for, fold
from server_kit.interfaces import (
    CheckIn,
    CohortId,
    Decision,
    DeviceId,
    DeviceView,
    Fleet,
    Memory,
    Merge,
    Order,
    RoundOutcome,
    Seen,
)
from server_kit.inviting import Inviting
from server_kit.restructuring import Restructuring
from server_kit.round import Cohort, CohortState, Shelf, Verdict
from server_kit.selection import Uniform

if TYPE_CHECKING:
    from server_kit.local_task import LocalTask

_LATENCY_MEMORY = 0.7  # of what was believed about a device's latency before


@dataclass(frozen=True)
class Change:
    """The tree has another shape."""

    decision: Decision
    children: tuple[CohortId, ...] = ()


_Footing = tuple[Plan, CohortTree, int, int]
"""What the pace of a leaf follows from: the plan, the tree, how many must wait, and its round."""


class Federation:
    """The state, the plan, and the fleet that they are about."""

    def __init__(
        self, plan: Plan, fleet: Fleet, shelf_of: Callable[[CohortId], Shelf], state: FederationState | None = None
    ) -> None:
        self.plan = plan
        self.fleet = fleet
        self.state = state or FederationState(CohortTree(), {ROOT: CohortState(ROOT, plan.fresh_model(0))})
        self.least_waiting: Callable[[CohortId], int] = lambda _: 1
        """How many devices must wait before a leaf opens a round."""
        self._shelf_of = shelf_of
        self._at_work: dict[CohortId, tuple[_Footing, Cohort]] = {}
        self._inviting = Inviting(self)

    # What parts may know (interfaces.Federated)

    @property
    def leaves(self) -> Sequence[CohortId]:
        return self.state.tree.leaves()

    @property
    def memory(self) -> Memory:
        return self.state.memory

    @property
    def task(self) -> LocalTask:
        return self.plan.task

    @property
    def steps(self) -> int:
        return self.state.steps

    @property
    def suggested(self) -> Mapping[DeviceId, CohortId]:
        return self.state.suggested

    @property
    def is_told(self) -> bool:
        return not getattr(self.fleet, "is_private", False)

    def model(self, cohort: CohortId) -> torch.Tensor:
        return self.state.cohorts[cohort].model

    def fresh_model(self, number: int) -> torch.Tensor:
        return self.plan.fresh_model(number)

    def clustering(self, cohort: CohortId) -> Memory:
        return self.state.cohorts[cohort].clustering

    def members(self, cohort: CohortId) -> Sequence[DeviceId]:
        return [device for device, home in self.memory.get("assigned", {}).items() if home == cohort]

    def descend(self, check_in: CheckIn, rng: np.random.Generator) -> CohortId:
        return self.state.tree.match(check_in.cohort, check_in.sub_cluster, rng)

    # What drives it

    def begin(self) -> Change | None:
        """Look at the fleet before the first round."""
        split = self.plan.strategy.formation.begin(self, self.rng("begin"))
        change = None if split is None else self._apply(split)
        for device in self.memory.get("assigned", {}) | self.memory.get("clusters", {}):
            self.state.views[device] = DeviceView(device)
        return change

    def invite(self, now_seconds: float) -> list[Order]:
        """Ask devices to train, as many as leaves want and there are."""
        if not self.state.out:
            # Nothing will happen by itself.
            self.state.sated.clear()
        orders = self._inviting.orders(now_seconds)
        for order in orders:
            self.state.out[order.device] = order.cohort
        if orders:
            self.fleet.dispatch(orders, now_seconds)
        return orders

    def receive(self, device: DeviceId, now_seconds: float) -> Verdict:
        """A device has answered."""
        cohort = self.cohort(self.state.out.pop(device, ROOT))
        asked = cohort.state.missed.get(device) or cohort.state.asked.get(device)
        verdict = cohort.receive(device, now_seconds)
        if asked is not None:
            self.note(device, now_seconds - asked.at_seconds, cohort.state.version - asked.version)
        return verdict

    def lost(self, device: DeviceId) -> None:
        """A device that was asked has gone."""
        cohort = self.cohort(self.state.out.pop(device, ROOT))
        cohort.lost(device)
        if not cohort.state.asked and not cohort.state.arrived:
            # Nobody is left of this round: another may begin.
            cohort.state.opened_at_seconds = None
        self.state.sated.discard(cohort.state.cohort)

    def due(self, now_seconds: float) -> list[CohortId]:
        """The leaves that have enough for their next model."""
        return [leaf for leaf in self.leaves if self.cohort(leaf).due(now_seconds)]

    def next_deadline(self, now_seconds: float) -> float:
        """When `due` should be asked again though nothing arrives."""
        soonest = math.inf
        for leaf in self.leaves:
            deadline = self.cohort(leaf).deadline_seconds()
            if now_seconds < deadline < soonest:
                soonest = deadline
        return soonest

    def fold(self, leaf: CohortId, now_seconds: float) -> tuple[RoundOutcome, Change | None]:
        """The next model of a leaf, and what follows from having seen its updates."""
        folded = fold(self.cohort(leaf), self.plan.strategy, now_seconds, self.facts(leaf))
        return folded.outcome, self.digest(folded)

    def facts(self, leaf: CohortId) -> Memory:
        """What a leaf's aggregator must know of the whole."""
        population = len(self.memory.get("assigned", {}))
        return facts_for(self.plan.strategy.aggregator, len(self.members(leaf)), population)

    def digest(self, folded: Folded) -> Change | None:
        """What follows from a step of a leaf, whose state is the one after it."""
        outcome, strategy = folded.outcome, self.plan.strategy
        self.state.steps += 1
        for device in outcome.arrived:
            self._participated(device, outcome)
        own = self.state.cohorts[folded.seen.cohort].selection
        strategy.selector.observe(outcome, self.memory.setdefault("selection", {}) if strategy.shares_places else own)
        change = self._look(folded.seen)
        self._mix()
        self.state.sated.clear()
        return change

    def homes(self, devices: Sequence[DeviceId]) -> list[CohortId]:
        """Which leaf's model each device would use, without exploring."""
        check_ins = self.fleet.check_ins(devices, self.leaves, exploring=False)
        return self.plan.strategy.matcher.match(check_ins, self, self.rng("homes"))

    def global_model(self) -> torch.Tensor:
        """The mean of the leaves' models, for those who belong nowhere yet."""
        return torch.stack([self.model(leaf) for leaf in self.leaves]).mean(dim=0)

    # What is known about devices

    def view(self, device: DeviceId) -> DeviceView:
        """What is known about a device."""
        return self.views([device])[0]

    def views(self, devices: Iterable[DeviceId]) -> list[DeviceView]:
        """What is known about each device."""
        known, clusters = self.state.views, self.memory.get("clusters", {})
        views = [known.get(device) or DeviceView(device) for device in devices]
        if not clusters:
            return [view if view.cluster is None else replace(view, cluster=None) for view in views]
        found = [clusters.get(view.device) for view in views]
        return [
            view if cluster == view.cluster else replace(view, cluster=cluster)
            for view, cluster in zip(views, found, strict=True)
        ]

    def note(self, device: DeviceId, latency_seconds: float, staleness: int) -> None:
        """Remember how long a device took to answer, and how stale its answer was."""
        view = self.state.views.get(device) or DeviceView(device)
        before = latency_seconds if view.latency_seconds is None else view.latency_seconds
        latency = _LATENCY_MEMORY * before + (1 - _LATENCY_MEMORY) * latency_seconds
        self.state.views[device] = altered(view, latency_seconds=latency, staleness=staleness)

    def _participated(self, device: DeviceId, outcome: RoundOutcome) -> None:
        view = self.state.views.get(device) or DeviceView(device)
        self.state.views[device] = altered(
            view,
            loss=outcome.losses.get(device, view.loss),
            samples=round(outcome.weights[device]) if device in outcome.weights else view.samples,
            participations=view.participations + 1,
            last_round=outcome.round,
        )

    # Structure

    def _look(self, seen: Seen) -> Change | None:
        claims = self.state.claims
        seen = replace(seen, claims={device: claims[device] for device in seen.devices if device in claims})
        leaf, formation = seen.cohort, self.plan.strategy.formation
        look = formation.look(seen, self.clustering(leaf), self, self.rng(f"look {leaf}"))
        self.fleet.tell(look.answers, self.leaves)
        decision = look.decision
        return None if decision is None or not self._has_places_for(decision) else self._apply(decision)

    def _has_places_for(self, decision: Decision) -> bool:
        """Where leaves have places of their own, there cannot be more leaves than places."""
        if isinstance(decision, Merge) or self.plan.strategy.shares_places:
            return True
        return len(self.leaves) + decision.parts - 1 <= self.plan.participants

    def _apply(self, decision: Decision) -> Change:
        restructuring = Restructuring(self.state, self.plan)
        if isinstance(decision, Merge):
            restructuring.merge(decision)
            return Change(decision)
        children = restructuring.split(decision)
        self.fleet.tell_split(decision.cohort, children)
        return Change(decision, children)

    def _mix(self) -> None:
        mixing, leaves = self.plan.strategy.mixing, self.leaves
        if mixing is None or any(self.state.cohorts[leaf].opened_at_seconds is not None for leaf in leaves):
            return
        for leaf, model in mixing.mixed({leaf: self.model(leaf) for leaf in leaves}).items():
            self.state.cohorts[leaf].model = model

    def cohort(self, leaf: CohortId) -> Cohort:
        """A leaf at work; made anew when what it stands on has changed, since every event asks for it."""
        state = self.state.cohorts[leaf]
        # The tree itself, not its leaves: the same object is compared at a glance, and leaves would have to be listed.
        footing = (self.plan, self.state.tree, self.least_waiting(leaf), state.round)
        known = self._at_work.get(leaf)
        if known is None or known[0] != footing or known[1].state is not state:
            known = self._at_work[leaf] = footing, self._cohort(state, footing)
        return known[1]

    def _cohort(self, state: CohortState, footing: _Footing) -> Cohort:
        plan, tree, begin_with, number = footing
        strategy = plan.strategy
        return Cohort(
            state,
            Uniform() if strategy.shares_places else strategy.selector,
            strategy.aggregator,
            strategy.pace(plan.participants, len(tree.leaves()), begin_with, number),
            self._shelf_of(state.cohort),
            plan.seed,
        )

    def rng(self, purpose: str) -> np.random.Generator:
        """Chance for one purpose at this step; the same whenever it is asked."""
        label = f"{self.plan.seed}:{self.state.steps}:{len(self.state.out)}:{purpose}"
        return np.random.default_rng(int.from_bytes(hashlib.sha256(label.encode()).digest()[:16]))

    @property
    def refusals(self) -> Counter[str]:
        """What was not folded, and why."""
        return sum((state.refusals for state in self.state.cohorts.values()), Counter())
