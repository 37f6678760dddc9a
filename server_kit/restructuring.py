"""Another shape of the tree: what a split or a merge does to everything that a federation keeps."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from server_kit.interfaces import CohortId, DeviceId, Memory, Merge, Split
from server_kit.round import CohortState

if TYPE_CHECKING:
    from server_kit.federation_state import FederationState, Plan


@dataclass(frozen=True)
class Restructuring:
    """Splits and merges the cohorts of one federation."""

    state: FederationState
    plan: Plan

    def split(self, split: Split) -> tuple[CohortId, ...]:
        """The children. They start as copies of their parent, optimiser included, or with the models given."""
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
        # Whoever has not been heard goes where most go.
        most = Counter(split.members.values()).most_common(1)[0][0] if split.members else 0
        self._seat(split, children, most)
        self._hand_over(parent, lambda device: children[split.members.get(device, most)])
        return children

    def merge(self, merge: Merge) -> None:
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
        pace = self.plan.strategy.pace(self.plan.participants, len(self.state.tree.leaves()))
        merged.needed = max(1, min(needed, pace.arrivals))
        assigned = self.state.memory.get("assigned", {})
        assigned.update((device, merge.cohort) for device, home in assigned.items() if home in gone)
        for state in states:
            self._hand_over(state, lambda _: merge.cohort)

    def _seat(self, split: Split, children: tuple[CohortId, ...], most: int) -> None:
        """Note where the split puts devices, for matchers that go by it."""
        matcher = self.plan.strategy.matcher
        if getattr(matcher, "asks_for_choices", False):
            self.state.suggested.update((device, children[part]) for device, part in split.members.items())
        if getattr(matcher, "keeps_table", False):
            assigned = self.state.memory.setdefault("assigned", {})
            unheard = {device: most for device, home in assigned.items() if home == split.cohort}
            assigned.update((device, children[part]) for device, part in {**unheard, **split.members}.items())

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
