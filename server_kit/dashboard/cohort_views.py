"""Cohorts as documents: the tree with what is under way, one cohort over time, all of them side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from server_kit.cohort_tree import lineage, parent_of
from server_kit.store.protocol import CohortState

if TYPE_CHECKING:
    from server_kit.dashboard.chronicle import Track
    from server_kit.dashboard.sight import Sight, Standing
    from server_kit.store.protocol import CohortRecord, Happening

Document = dict[str, Any]
_CHART_POINTS = 240


def cohort_lines(sight: Sight, standing: Standing) -> list[Document]:
    """Every cohort there ever was, in the order of the tree."""
    deadline_seconds = _deadline_seconds(sight)
    return [_line(sight, standing, record, deadline_seconds) for record in standing.cohorts]


def changes(sight: Sight) -> list[Document]:
    """Splits and merges, newest first."""
    with sight.chronicle.mutex:
        return [change_document(each) for each in reversed(sight.chronicle.changes)]


def change_document(happening: Happening) -> Document:
    facts = happening.facts
    return {
        "number": happening.number,
        "kind": happening.kind,
        "at": happening.at_seconds,
        "cohort": happening.cohort,
        "children": list(facts.get("children", ())),
        "sizes": list(facts.get("sizes", ())),
        "why": str(facts.get("why", "")),
    }


def side_by_side(sight: Sight) -> Document:
    """The accuracy of each cohort over time, and when each trained."""
    standing = sight.standing()
    states = {} if standing is None else {each.cohort: each.state.value for each in standing.cohorts}
    with sight.chronicle.mutex:
        tracks = [sight.chronicle.tracks[name] for name in sorted(sight.chronicle.tracks)]
        return {
            "at": sight.clock(),
            "tracks": [
                {
                    "cohort": track.cohort,
                    "state": states.get(track.cohort, "training"),
                    "devices": track.devices,
                    "spans": [list(span) for span in track.spans],
                    "accuracy": thinned(track.accuracy),
                }
                for track in tracks
            ],
            "changes": [change_document(each) for each in sight.chronicle.changes],
        }


def one_cohort(sight: Sight, name: str) -> Document | None:
    """A cohort with its ancestors' figures before it; None if there is none of this name."""
    standing = sight.standing()
    record = None if standing is None else next((each for each in standing.cohorts if each.cohort == name), None)
    if standing is None or record is None:
        return None
    with sight.chronicle.mutex:
        track = sight.chronicle.track(name)
        relevant = {name, parent_of(name)}
        return {
            **_line(sight, standing, record, _deadline_seconds(sight)),
            "at": sight.clock(),
            "lineage": list(lineage(name))[::-1],
            "children": [each.cohort for each in standing.cohorts if parent_of(each.cohort) == name],
            "series": _series(track),
            "before": [_series(sight.chronicle.track(each)) for each in list(lineage(name))[:0:-1]],
            "mix": track.mix,
            "mixed_rounds": len(track.mixes),
            "changes": [change_document(each) for each in sight.chronicle.changes if each.cohort in relevant][::-1],
        }


def thinned(points: list[list[Any]]) -> list[list[Any]]:
    """Enough of them for a chart, the first and the newest among them."""
    if len(points) <= _CHART_POINTS:
        return [list(point) for point in points]
    step = (len(points) - 1) / (_CHART_POINTS - 1)
    return [list(points[round(number * step)]) for number in range(_CHART_POINTS)]


def _line(sight: Sight, standing: Standing, record: CohortRecord, deadline_seconds: float | None) -> Document:
    track = sight.chronicle.track(record.cohort)
    return {
        "cohort": record.cohort,
        "parent": parent_of(record.cohort),
        "state": record.state.value,
        "round": record.round,
        "version": record.version,
        "devices": track.devices,
        "accuracy": track.accuracy[-1][2] if track.accuracy else None,
        "accuracy_error": track.accuracy[-1][3] if track.accuracy else None,
        "accuracy_round": track.accuracy[-1][0] if track.accuracy else None,
        "loss": track.loss[-1][2] if track.loss else None,
        "answer_seconds": track.rounds[-1][5] if track.rounds else None,
        "last_round_at": track.rounds[-1][1] if track.rounds else None,
        "open": _open(standing, record, deadline_seconds),
    }


def _open(standing: Standing, record: CohortRecord, deadline_seconds: float | None) -> Document | None:
    if record.state is not CohortState.TRAINING or record.opened_at_seconds is None:
        return None
    found = standing.rounds[record.cohort]
    return {
        "selected": found.out + found.arrived,
        "arrived": found.arrived,
        "needed": record.needed,
        "late": found.late,
        "opened_at": record.opened_at_seconds,
        "deadline_at": None if deadline_seconds is None else record.opened_at_seconds + deadline_seconds,
    }


def _deadline_seconds(sight: Sight) -> float | None:
    """As the coordinator says: whether rounds have one depends on how it trains."""
    found = [each.facts.get("deadline_seconds") for each in sight.snapshots() if each.process == "coordinator"]
    return found[0] if found and isinstance(found[0], int | float) else None


def _series(track: Track) -> Document:
    return {
        "cohort": track.cohort,
        "spans": [list(span) for span in track.spans],
        "accuracy": thinned(track.accuracy),
        "loss": thinned(track.loss),
        "rounds": thinned(track.rounds),
    }
