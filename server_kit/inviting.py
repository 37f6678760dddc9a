"""Asking devices to train: who waits, which leaf each belongs to, whom the leaves choose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from server_kit.interfaces import CheckIn, CohortId, DeviceId, DeviceView, Order
from server_kit.round import whole

if TYPE_CHECKING:
    import torch

    from server_kit.federation import Federation
    from server_kit.federation_state import FederationState, Plan
    from server_kit.interfaces import Memory
    from server_kit.layout import Layout


_LOOKED_AT_FOR_A_PLACE = 50


@dataclass(frozen=True)
class Trained:
    """What a local objective may look at."""

    model: torch.Tensor
    aggregation: Memory
    layout: Layout


@dataclass(frozen=True)
class Inviting:
    """Chooses for one federation."""

    federation: Federation

    @property
    def plan(self) -> Plan:
        return self.federation.plan

    @property
    def state(self) -> FederationState:
        return self.federation.state

    def orders(self, now_seconds: float) -> list[Order]:
        """Whom to ask now, and for what."""
        shared = self.plan.strategy.shares_places
        return self._any(now_seconds) if shared else self._for_each(now_seconds)

    def _for_each(self, now_seconds: float) -> list[Order]:
        hungry = [leaf for leaf in self.federation.leaves if self._is_hungry(leaf, now_seconds)]
        if not hungry:
            return []
        check_ins = self._waiting(now_seconds, self.plan.check_ins)
        by_leaf: dict[CohortId, list[CheckIn]] = {leaf: [] for leaf in hungry}
        for check_in, home in zip(check_ins, self._matched(check_ins), strict=True):
            if home in by_leaf:
                by_leaf[home].append(check_in)
        orders = []
        for leaf in hungry:
            views = self.federation.views(check_in.device for check_in in by_leaf[leaf])
            chosen = self.federation.cohort(leaf).ask(views, now_seconds)
            self.state.sated.add(leaf)
            orders += self._orders(leaf, chosen, by_leaf[leaf])
        return orders

    def _is_hungry(self, leaf: CohortId, now_seconds: float) -> bool:
        """Whether it wants more, and may get more: past its deadline a leaf asks again for those it gave up."""
        cohort = self.federation.cohort(leaf)
        if leaf in self.state.sated and cohort.deadline_seconds() > now_seconds:
            return False
        return cohort.wanted(now_seconds) > 0

    def _any(self, now_seconds: float) -> list[Order]:
        """Choose devices first, and see then where they belong."""
        strategy, leaves = self.plan.strategy, self.federation.leaves
        if strategy.is_asynchronous:
            places = self.plan.participants - len(self.state.out)
        elif any(self.state.cohorts[leaf].opened_at_seconds is not None for leaf in leaves):
            return []
        else:
            latest = max(self.state.cohorts[leaf].round for leaf in leaves)
            places = whole(self.plan.participants * strategy.over_commit_in(latest))
        if places < 1:
            return []
        # One place at a time becomes free without rounds, and looking at thousands for each would be all that we do.
        most = places * _LOOKED_AT_FOR_A_PLACE if strategy.is_asynchronous else self.plan.check_ins
        check_ins = self._waiting(now_seconds, most)
        if len(check_ins) < (1 if strategy.is_asynchronous else self.federation.least_waiting(leaves[0])):
            return []
        views = self.federation.views(check_in.device for check_in in check_ins)
        memory = self.federation.memory.setdefault("selection", {})
        chosen = set(strategy.selector.select(views, places, memory, self.federation.rng("select")))
        taken = [check_in for check_in in check_ins if check_in.device in chosen]
        by_leaf: dict[CohortId, list[CheckIn]] = {}
        for check_in, home in zip(taken, self._matched(taken), strict=True):
            by_leaf.setdefault(home, []).append(check_in)
        orders = []
        for leaf, theirs in by_leaf.items():
            views = self.federation.views(check_in.device for check_in in theirs)
            asked = self.federation.cohort(leaf).ask(views, now_seconds, places=len(theirs))
            orders += self._orders(leaf, asked, theirs)
        return orders

    def _waiting(self, now_seconds: float, most: int) -> list[CheckIn]:
        """The check-ins of those who wait and may take part, or of a sample of so many of them."""
        rng, fleet, out = self.federation.rng("check in"), self.federation.fleet, self.state.out
        waiting = [device for device in fleet.waiting(now_seconds) if device not in out]
        most = min(most, self.plan.check_ins)
        if len(waiting) > most:
            waiting = [waiting[place] for place in sorted(rng.choice(len(waiting), most, replace=False))]
        check_ins = fleet.check_ins(waiting, self.federation.leaves)
        views = self.state.views
        new = [check_in.device for check_in in check_ins if check_in.changed or check_in.device not in views]
        if new:
            for device in new:
                self.state.views.setdefault(device, DeviceView(device))
            self.plan.strategy.formation.welcome(new, self.federation, rng)
            # What it was asked on arrival may have been all that a device had to give.
            able = set(fleet.waiting(now_seconds))
            check_ins = [check_in for check_in in check_ins if check_in.device in able]
        banned = self.federation.memory.get("banned_until")
        if not banned:
            return list(check_ins)
        return [check_in for check_in in check_ins if not self._banned(check_in.device, banned)]

    def _banned(self, device: DeviceId, banned: dict[DeviceId, int]) -> bool:
        if device not in banned:
            return False
        # A ban is counted in rounds of a cohort; of all cohorts together there are more.
        if max(self.state.cohorts[leaf].round for leaf in self.federation.leaves) >= banned[device]:
            del banned[device]
            return False
        return True

    def _matched(self, check_ins: Sequence[CheckIn]) -> list[CohortId]:
        return self.plan.strategy.matcher.match(check_ins, self.federation, self.federation.rng("match"))

    def _orders(self, leaf: CohortId, chosen: Iterable[DeviceId], check_ins: Iterable[CheckIn]) -> list[Order]:
        said = {check_in.device: check_in for check_in in check_ins}
        state = self.state.cohorts[leaf]
        trained = Trained(state.model, state.aggregation, self.plan.layout)
        usual = replace(self.plan.task, halves=True) if self.plan.strategy.formation.wants.halves else self.plan.task
        orders = []
        for view in self.federation.views(chosen):
            self.state.claims[view.device] = said[view.device]
            task = self.plan.strategy.objective.task_for(usual, view, trained)
            orders.append(Order(view.device, leaf, state.version, state.model, task))
        return orders
