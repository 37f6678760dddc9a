"""What people are told of a step: aggregates and decisions, and nothing about one device."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from server_kit.interfaces import Split
from server_kit.store.protocol import Happening

if TYPE_CHECKING:
    from server_kit.federation import Change
    from server_kit.interfaces import CohortId, DeviceId, DeviceView, RoundOutcome
    from server_kit.store.protocol import FoldRecord, Json

_FEWEST = 2
"""Fewer answers than this are no aggregate."""


@dataclass
class Homes:
    """Which cohort each device worked for last; forgotten with the process, known again as devices take part."""

    _last: dict[DeviceId, CohortId] = field(default_factory=dict)

    def note(self, devices: Collection[DeviceId], cohort: CohortId) -> None:
        self._last.update(dict.fromkeys(devices, cohort))

    def size(self, cohort: CohortId) -> int:
        return sum(home == cohort for home in self._last.values())


def step_told(fold: FoldRecord, outcome: RoundOutcome, size: int, mix: Mapping[str, int]) -> Happening:
    """A cohort has a new model."""
    facts: Json = {
        "round": outcome.round,
        "selected": len(outcome.selected),
        "arrived": len(outcome.arrived),
        "devices": size,
        "seconds": round(outcome.duration_seconds, 3),
        "mix": dict(mix),
        **_answer_seconds(outcome),
        **_quality(outcome),
    }
    return Happening("round", fold.at_seconds, fold.cohort, facts)


def change_told(change: Change, now_seconds: float) -> Happening:
    """The tree has another shape."""
    decision = change.decision
    facts: Json = {"children": list(change.children), "why": decision.reason}
    if not isinstance(decision, Split):
        return Happening("merge", now_seconds, decision.cohort, facts)
    sizes = Counter(decision.members.values())
    if sizes:
        facts["sizes"] = [sizes[number] for number in range(len(change.children))]
    return Happening("split", now_seconds, decision.cohort, facts)


def selection_mix(outcome: RoundOutcome, views: Mapping[DeviceId, DeviceView]) -> dict[str, int]:
    """Whom a selector chose: `new` never took part before, `again` did in the last round, `back` earlier.

    `views` is what was known before the step.
    """
    mix = {"new": 0, "back": 0, "again": 0}
    for device in outcome.selected:
        view = views.get(device)
        if view is None or not view.participations:
            mix["new"] += 1
        else:
            mix["again" if view.last_round == outcome.round - 1 else "back"] += 1
    return mix


def _answer_seconds(outcome: RoundOutcome) -> Json:
    took = sorted(outcome.latencies_seconds.values())
    if len(took) < _FEWEST:
        return {}
    return {
        "answer_seconds": round(statistics.median(took), 3),
        "slow_answer_seconds": round(took[-(-len(took) * 9 // 10) - 1], 3),
    }


def _quality(outcome: RoundOutcome) -> Json:
    """Of the new model on the server's own data, or of the old one on the devices', as they told with noise."""
    told = list(outcome.losses.values())
    loss = outcome.loss
    if loss is None and len(told) >= _FEWEST:
        loss = statistics.fmean(told)
    known = {"accuracy": outcome.accuracy, "loss": None if loss is None else round(loss, 4)}
    return {name: value for name, value in known.items() if value is not None}
