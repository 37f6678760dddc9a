"""A whole federation: the tree of cohorts, the cohorts at work, and what is known about devices.

    invite   devices that wait are led to leaves, and some of them are asked to train
    receive  one has answered
    due      which leaves can move on
    fold     one does: its next model, feedback to those who took part, maybe another shape of the tree

Daemon and simulation drive these four; neither knows what the parts do. Time comes in by argument, chance follows
from the seed and the step.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from server_kit.cohort_tree import ROOT, CohortTree
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
    Split,
)
from server_kit.round import Cohort, CohortState, Shelf, Verdict
from server_kit.selection import Uniform
from server_kit.watching import Watch

if TYPE_CHECKING:
    from server_kit.layout import Layout
    from server_kit.local_task import LocalTask
    from server_kit.strategy import Strategy

_LATENCY_MEMORY = 0.7  # of what was believed about a device's latency before


@dataclass
class FederationState:
    """Everything that a checkpoint must hold."""

    tree: CohortTree
    cohorts: dict[CohortId, CohortState]
    memory: Memory = field(default_factory=dict)
    """What structure and shared selection remember."""
    views: dict[DeviceId, DeviceView] = field(default_factory=dict)
    claims: dict[DeviceId, CheckIn] = field(default_factory=dict)
    """What each device said when it was last asked to train."""
    out: dict[DeviceId, CohortId] = field(default_factory=dict)
    """Where the answer of a device that was asked belongs."""
    steps: int = 0
    """Folds of all cohorts."""
    suggested: dict[DeviceId, CohortId] = field(default_factory=dict)
    """Where the latest splits put devices."""
    sated: set[CohortId] = field(default_factory=set)
    """Leaves that have asked all they could; there is no use in asking again before something happens."""


@dataclass(frozen=True)
class Trained:
    """What a local objective may look at."""

    model: torch.Tensor
    aggregation: Memory
    layout: Layout


@dataclass(frozen=True)
class Plan:
    """What does not change while a federation runs."""

    strategy: Strategy
    task: LocalTask
    layout: Layout
    participants: int
    fresh_model: Callable[[int], torch.Tensor]
    seed: int = 0
    check_ins: int = 2000
    """At most so many waiting devices are looked at when a leaf chooses: a sample is as good as all."""


@dataclass(frozen=True)
class Change:
    """The tree has another shape."""

    decision: Decision
    children: tuple[CohortId, ...] = ()


class Federation:
    """The state, the plan, and the fleet that they are about."""

    def __init__(
        self, plan: Plan, fleet: Fleet, shelf_of: Callable[[CohortId], Shelf], state: FederationState | None = None
    ) -> None:
        self.plan = plan
        self.fleet = fleet
        self.state = state or FederationState(CohortTree(), {ROOT: CohortState(ROOT, plan.fresh_model(0))})
        self._shelf_of = shelf_of

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
        split = self.plan.strategy.formation.begin(self, self._rng("begin"))
        change = None if split is None else self._apply(split)
        for device in self.memory.get("assigned", {}) | self.memory.get("clusters", {}):
            self.state.views[device] = DeviceView(device)
        return change

    def invite(self, now_seconds: float) -> list[Order]:
        """Ask devices to train, as many as leaves want and there are."""
        if not self.state.out:
            # Nothing will happen by itself.
            self.state.sated.clear()
        if self.plan.strategy.shares_places:
            orders = self._invite_any(now_seconds)
        else:
            orders = self._invite_for_each(now_seconds)
        for order in orders:
            self.state.out[order.device] = order.cohort
        self.fleet.dispatch(orders, now_seconds)
        return orders

    def receive(self, device: DeviceId, now_seconds: float) -> Verdict:
        """A device has answered."""
        cohort = self._cohort(self.state.out.pop(device, ROOT))
        asked = (cohort.state.asked | cohort.state.missed).get(device)
        verdict = cohort.receive(device, now_seconds)
        if asked is not None:
            self._note(device, now_seconds - asked.at_seconds, cohort.state.version - asked.version)
        return verdict

    def lost(self, device: DeviceId) -> None:
        """A device that was asked has gone."""
        cohort = self._cohort(self.state.out.pop(device, ROOT))
        cohort.lost(device)
        if not cohort.state.asked and not cohort.state.arrived:
            # Nobody is left of this round: another may begin.
            cohort.state.opened_at_seconds = None
        self.state.sated.discard(cohort.state.cohort)

    def due(self, now_seconds: float) -> list[CohortId]:
        """The leaves that have enough for their next model."""
        return [leaf for leaf in self.leaves if self._cohort(leaf).due(now_seconds)]

    def next_deadline(self, now_seconds: float) -> float:
        """When `due` should be asked again though nothing arrives."""
        deadlines = (self._cohort(leaf).deadline_seconds() for leaf in self.leaves)
        return min((deadline for deadline in deadlines if deadline > now_seconds), default=math.inf)

    def fold(self, leaf: CohortId, now_seconds: float) -> tuple[RoundOutcome, Change | None]:
        """The next model of a leaf, and what follows from having seen its updates."""
        strategy, state = self.plan.strategy, self.state.cohorts[leaf]
        watch = Watch(strategy.formation.wants, self.plan.seed)
        if hasattr(strategy.aggregator, "cohort_alpha"):
            state.aggregation["members"] = len(self.members(leaf))
            state.aggregation["population"] = max(1, len(self.memory.get("assigned", {})))
        outcome = self._cohort(leaf).fold(now_seconds, watch.see if watch.is_on else None)
        self.state.steps += 1
        for device in outcome.arrived:
            self._participated(device, outcome)
        if strategy.shares_places:
            strategy.selector.observe(outcome, self.memory.setdefault("selection", {}))
        change = self._look(leaf, watch, outcome.arrived)
        self._mix()
        self.state.sated.clear()
        return outcome, change

    def homes(self, devices: Sequence[DeviceId]) -> list[CohortId]:
        """Which leaf's model each device would use, without exploring."""
        check_ins = self.fleet.check_ins(devices, self.leaves, exploring=False)
        return self.plan.strategy.matcher.match(check_ins, self, self._rng("homes"))

    def global_model(self) -> torch.Tensor:
        """The mean of the leaves' models, for those who belong nowhere yet."""
        return torch.stack([self.model(leaf) for leaf in self.leaves]).mean(dim=0)

    # Inviting

    def _invite_for_each(self, now_seconds: float) -> list[Order]:
        hungry = [leaf for leaf in self.leaves if self._is_hungry(leaf, now_seconds)]
        if not hungry:
            return []
        check_ins = self._waiting(now_seconds)
        by_leaf: dict[CohortId, list[CheckIn]] = {leaf: [] for leaf in hungry}
        for check_in, home in zip(check_ins, self._matched(check_ins), strict=True):
            if home in by_leaf:
                by_leaf[home].append(check_in)
        orders = []
        for leaf in hungry:
            views = [self._view(check_in.device) for check_in in by_leaf[leaf]]
            chosen = self._cohort(leaf).ask(views, now_seconds)
            self.state.sated.add(leaf)
            orders += self._orders(leaf, chosen, by_leaf[leaf])
        return orders

    def _is_hungry(self, leaf: CohortId, now_seconds: float) -> bool:
        """Whether it wants more, and may get more: past its deadline a leaf asks again for those it gave up."""
        cohort = self._cohort(leaf)
        may = leaf not in self.state.sated or cohort.deadline_seconds() <= now_seconds
        return may and cohort.wanted(now_seconds) > 0

    def _invite_any(self, now_seconds: float) -> list[Order]:
        """Choose devices first, and see then where they belong."""
        strategy, leaves = self.plan.strategy, self.leaves
        if strategy.is_asynchronous:
            places = self.plan.participants - len(self.state.out)
        elif any(self.state.cohorts[leaf].opened_at_seconds is not None for leaf in leaves):
            return []
        else:
            places = math.ceil(self.plan.participants * strategy.over_commit - 1e-9)
        if places < 1:
            return []
        check_ins = self._waiting(now_seconds)
        if not check_ins:
            return []
        views = [self._view(check_in.device) for check_in in check_ins]
        memory = self.memory.setdefault("selection", {})
        chosen = set(strategy.selector.select(views, places, memory, self._rng("select")))
        taken = [check_in for check_in in check_ins if check_in.device in chosen]
        by_leaf: dict[CohortId, list[CheckIn]] = {}
        for check_in, home in zip(taken, self._matched(taken), strict=True):
            by_leaf.setdefault(home, []).append(check_in)
        orders = []
        for leaf, theirs in by_leaf.items():
            views = [self._view(check_in.device) for check_in in theirs]
            asked = self._cohort(leaf).ask(views, now_seconds, places=len(theirs))
            orders += self._orders(leaf, asked, theirs)
        return orders

    def _waiting(self, now_seconds: float) -> list[CheckIn]:
        """The check-ins of those who wait and may take part, or of a sample of them."""
        rng = self._rng("check in")
        waiting = [device for device in self.fleet.waiting(now_seconds) if device not in self.state.out]
        if len(waiting) > self.plan.check_ins:
            waiting = [waiting[place] for place in sorted(rng.choice(len(waiting), self.plan.check_ins, replace=False))]
        check_ins = self.fleet.check_ins(waiting, self.leaves)
        new = [check_in.device for check_in in check_ins if check_in.changed or check_in.device not in self.state.views]
        if new:
            for device in new:
                self.state.views.setdefault(device, DeviceView(device))
            self.plan.strategy.formation.welcome(new, self, rng)
            # What it was asked on arrival may have been all that a device had to give.
            able = set(self.fleet.waiting(now_seconds))
            check_ins = [check_in for check_in in check_ins if check_in.device in able]
        banned = self.memory.get("banned_until", {})
        return [check_in for check_in in check_ins if not self._banned(check_in.device, banned)]

    def _banned(self, device: DeviceId, banned: dict[DeviceId, int]) -> bool:
        if device not in banned:
            return False
        # A ban is counted in rounds of a cohort; of all cohorts together there are more.
        if max(self.state.cohorts[leaf].round for leaf in self.leaves) >= banned[device]:
            del banned[device]
            return False
        return True

    def _matched(self, check_ins: Sequence[CheckIn]) -> list[CohortId]:
        return self.plan.strategy.matcher.match(check_ins, self, self._rng("match"))

    def _orders(self, leaf: CohortId, chosen: Iterable[DeviceId], check_ins: Iterable[CheckIn]) -> list[Order]:
        said = {check_in.device: check_in for check_in in check_ins}
        state = self.state.cohorts[leaf]
        trained = Trained(state.model, state.aggregation, self.plan.layout)
        usual = replace(self.plan.task, halves=True) if self.plan.strategy.formation.wants.halves else self.plan.task
        orders = []
        for device in chosen:
            self.state.claims[device] = said[device]
            task = self.plan.strategy.objective.task_for(usual, self._view(device), trained)
            orders.append(Order(device, leaf, state.version, state.model, task))
        return orders

    # What is known about devices

    def _view(self, device: DeviceId) -> DeviceView:
        view = self.state.views.get(device) or DeviceView(device)
        cluster = self.memory.get("clusters", {}).get(device)
        return view if cluster == view.cluster else replace(view, cluster=cluster)

    def _note(self, device: DeviceId, latency_seconds: float, staleness: int) -> None:
        view = self.state.views.get(device) or DeviceView(device)
        before = latency_seconds if view.latency_seconds is None else view.latency_seconds
        latency = _LATENCY_MEMORY * before + (1 - _LATENCY_MEMORY) * latency_seconds
        self.state.views[device] = replace(view, latency_seconds=latency, staleness=staleness)

    def _participated(self, device: DeviceId, outcome: RoundOutcome) -> None:
        view = self.state.views.get(device) or DeviceView(device)
        self.state.views[device] = replace(
            view,
            loss=outcome.losses.get(device, view.loss),
            samples=round(outcome.weights[device]) if device in outcome.weights else view.samples,
            participations=view.participations + 1,
            last_round=outcome.round,
        )

    # Structure

    def _look(self, leaf: CohortId, watch: Watch, arrived: Sequence[DeviceId]) -> Change | None:
        strategy, state = self.plan.strategy, self.state.cohorts[leaf]
        rate = getattr(strategy.aggregator, "cohort_alpha", None)
        seen = watch.seen(leaf, state.round, self.state.claims, None if rate is None else rate(state.aggregation))
        if not watch.is_on:
            seen = replace(seen, devices=tuple(arrived))
        look = strategy.formation.look(seen, state.clustering, self, self._rng(f"look {leaf}"))
        self.fleet.tell(look.answers, self.leaves)
        decision = look.decision
        return None if decision is None or not self._has_places_for(decision) else self._apply(decision)

    def _has_places_for(self, decision: Decision) -> bool:
        """Where leaves have places of their own, there cannot be more leaves than places."""
        if isinstance(decision, Merge) or self.plan.strategy.shares_places:
            return True
        return len(self.leaves) + decision.parts - 1 <= self.plan.participants

    def _apply(self, decision: Decision) -> Change:
        if isinstance(decision, Split):
            return Change(decision, self._split(decision))
        self._merge(decision)
        return Change(decision)

    def _split(self, split: Split) -> tuple[CohortId, ...]:
        self.state.tree = self.state.tree.split(split.cohort, split.parts)
        children = self.state.tree.children[split.cohort]
        parent = self.state.cohorts[split.cohort]
        for number, child in enumerate(children):
            model = parent.model.clone() if split.models is None else split.models[number].clone()
            self.state.cohorts[child] = CohortState(
                child,
                model,
                version=parent.version,
                round=parent.round,
                opened_at_seconds=parent.opened_at_seconds,
                needed=parent.needed,
                aggregation=self._inherited(parent.aggregation),
                selection=copy.deepcopy(parent.selection),
            )
        if getattr(self.plan.strategy.matcher, "asks_for_choices", False):
            self.state.suggested.update((device, children[part]) for device, part in split.members.items())
        # Whoever has not been heard goes where most go.
        most = Counter(split.members.values()).most_common(1)[0][0] if split.members else 0
        if getattr(self.plan.strategy.matcher, "keeps_table", False):
            unheard = dict.fromkeys(self.members(split.cohort), most)
            assigned = self.memory.setdefault("assigned", {})
            assigned.update((device, children[part]) for device, part in {**unheard, **split.members}.items())
        self._hand_over(parent, lambda device: children[split.members.get(device, most)])
        self.fleet.tell_split(split.cohort, children)
        return children

    def _merge(self, merge: Merge) -> None:
        """The cohort trains again; its optimiser goes on from the descendant that has seen most steps."""
        tree = self.state.tree
        gone = [leaf for leaf in tree.leaves() if leaf.startswith(f"{merge.cohort}.")]
        self.state.tree = tree.merge(merge.cohort)
        states = [self.state.cohorts.pop(leaf) for leaf in gone]
        eldest = max(states, key=lambda state: state.version)
        before = self.state.cohorts[merge.cohort]
        merged = CohortState(
            merge.cohort,
            merge.model.clone(),
            version=eldest.version + 1,
            round=eldest.round,
            aggregation=self._inherited(eldest.aggregation),
            opened_at_seconds=min(
                (s.opened_at_seconds for s in states if s.opened_at_seconds is not None), default=None
            ),
            arrived=[ticket for state in states for ticket in state.arrived],
            selection=before.selection,
            refusals=sum((state.refusals for state in states), before.refusals),
        )
        self.state.cohorts[merge.cohort] = merged
        needed = sum(state.needed for state in states if state.asked or state.arrived)
        merged.needed = max(1, min(needed, self._cohort(merge.cohort).pace.arrivals))
        assigned = self.memory.get("assigned", {})
        assigned.update((device, merge.cohort) for device, home in assigned.items() if home in gone)
        for state in states:
            self._hand_over(state, lambda _: merge.cohort)

    def _hand_over(self, gone: CohortState, heir: Callable[[DeviceId], CohortId]) -> None:
        """Devices that are out for a cohort that no longer trains answer to its heirs."""
        for device, cohort in list(self.state.out.items()):
            if cohort != gone.cohort:
                continue
            home = self.state.out[device] = heir(device)
            if device in gone.asked:
                self.state.cohorts[home].asked[device] = gone.asked.pop(device)
            elif device in gone.missed:
                self.state.cohorts[home].missed[device] = gone.missed.pop(device)

    def _inherited(self, aggregation: Memory) -> Memory:
        inherited = getattr(self.plan.strategy.aggregator, "inherited", copy.deepcopy)
        memory: Memory = inherited(aggregation)
        return memory

    def _mix(self) -> None:
        mixing, leaves = self.plan.strategy.mixing, self.leaves
        if mixing is None or any(self.state.cohorts[leaf].opened_at_seconds is not None for leaf in leaves):
            return
        for leaf, model in mixing.mixed({leaf: self.model(leaf) for leaf in leaves}).items():
            self.state.cohorts[leaf].model = model

    def _cohort(self, leaf: CohortId) -> Cohort:
        strategy = self.plan.strategy
        return Cohort(
            self.state.cohorts[leaf],
            Uniform() if strategy.shares_places else strategy.selector,
            strategy.aggregator,
            strategy.pace(self.plan.participants, len(self.leaves)),
            self._shelf_of(leaf),
            self.plan.seed,
        )

    def _rng(self, purpose: str) -> np.random.Generator:
        label = f"{self.plan.seed}:{self.state.steps}:{len(self.state.out)}:{purpose}"
        return np.random.default_rng(int.from_bytes(hashlib.sha256(label.encode()).digest()[:16]))

    @property
    def refusals(self) -> Counter[str]:
        """What was not folded, and why."""
        return sum((state.refusals for state in self.state.cohorts.values()), Counter())
