"""One step of one cohort as far as its worker goes: the next model, and what others may see of how it came about."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from server_kit.interfaces import Memory, RoundOutcome, Seen
from server_kit.watching import Watch

if TYPE_CHECKING:
    from server_kit.interfaces import Aggregator
    from server_kit.round import Cohort
    from server_kit.strategy import Strategy


@dataclass(frozen=True)
class Folded:
    """What a step tells those who look for structure."""

    outcome: RoundOutcome
    seen: Seen


def fold(cohort: Cohort, strategy: Strategy, now_seconds: float, facts: Memory) -> Folded:
    """Make the cohort's next model; `facts` is what its aggregator must know of the federation (`facts_for`)."""
    state = cohort.state
    state.aggregation.update(facts)
    watch = Watch(strategy.formation.wants, cohort.seed)
    outcome = cohort.fold(now_seconds, watch.see if watch.is_on else None)
    rate = getattr(strategy.aggregator, "cohort_alpha", None)
    seen = watch.seen(state.cohort, state.round, None if rate is None else rate(state.aggregation))
    return Folded(outcome, seen if watch.is_on else replace(seen, devices=outcome.arrived))


def facts_for(aggregator: Aggregator, members: int, population: int) -> Memory:
    """How large a cohort and the federation are, for an aggregator whose rate depends on it."""
    if not hasattr(aggregator, "cohort_alpha"):
        return {}
    return {"members": members, "population": max(1, population)}
