"""The text forms of what commands show: 80 columns that survive a pipe."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from privacy.reporting.tables import bar, pairs, table

if TYPE_CHECKING:
    from server_kit.commands.overview import CohortLine, Overview
    from server_kit.store.protocol import DeviceRecord, Happening

_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))
_LONGEST_STORY = 42
_SHOWN_DEVICES = 5


def overview_text(found: Overview) -> str:
    """`covey server status`."""
    parts = [f"{found.name}: {_standing(found)}", pairs(_facts(found))]
    if found.processes:
        parts.append(_processes(found))
    parts += [cohorts_text(found.cohorts) or "no cohort yet: no round has been opened"]
    if found.happenings:
        parts.append("lately\n" + "\n".join(_story(each, found.at) for each in found.happenings))
    return "\n\n".join(parts)


def cohorts_text(lines: Sequence[CohortLine]) -> str:
    """`covey server cohorts`."""
    rows = [
        (
            "  " * line.cohort.count(".") + line.cohort,
            line.state,
            "" if line.devices is None else str(line.devices),
            str(line.round),
            str(line.version),
            "" if line.accuracy is None else f"{line.accuracy:.1%}",
            str(line.out),
            f"{line.arrived}/{line.needed}",
            "" if line.open_seconds is None else duration(line.open_seconds),
        )
        for line in lines
    ]
    headings = ("cohort", "state", "devices", "round", "model", "accuracy", "out", "arrived", "open for")
    return table(headings, rows, "lfrrrrrrr")


def devices_text(devices: Sequence[DeviceRecord], now_seconds: float) -> str:
    """`covey server devices`."""
    rows = [
        (
            each.device,
            f"{datetime.fromtimestamp(each.enrolled_at_seconds, UTC):%Y-%m-%d}",
            "revoked" if each.revoked else ago(each.last_seen_seconds, now_seconds),
            str(each.releases),
            str(sum(each.refusals.values())),
        )
        for each in devices
    ]
    return table(("device", "enrolled", "seen", "releases", "refused"), rows, "fflrr")


def duration(seconds: float) -> str:
    """A span of time in its largest unit."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def ago(then_seconds: float | None, now_seconds: float) -> str:
    return "never" if then_seconds is None else f"{duration(max(0.0, now_seconds - then_seconds))} ago"


def size(count_bytes: float) -> str:
    """Bytes in their largest unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count_bytes < 1024:
            return f"{count_bytes:.0f} {unit}"
        count_bytes /= 1024
    return f"{count_bytes:.1f} TiB"


def _standing(found: Overview) -> str:
    return "running" if found.running else "not running; this is what it stored"


def _facts(found: Overview) -> list[tuple[str, str]]:
    devices, spend = found.devices, found.spend
    here = "" if devices.connected is None else f"{devices.connected} connected, "
    refused = ", ".join(f"{count} {reason}" for reason, count in sorted(found.refusals.items()))
    spent = (
        f"[{bar(spend.most_epsilon / found.policy_epsilon)}] ε {spend.most_epsilon:.2f} of {found.policy_epsilon:g} "
        f"spent by the device that spent most, {spend.median_epsilon:.2f} by the median of {spend.devices}, "
        f"at δ={found.policy_delta:g}"
    )
    left_out = ", ".join(f"{count} of {device}" for device, count in sorted(spend.left_out.items())[:_SHOWN_DEVICES])
    facts = [
        ("preset", found.preset),
        ("dashboard", found.dashboard if found.running else f"{found.dashboard} once the server runs"),
        ("devices", f"{here}{devices.enrolled} enrolled, {devices.revoked} revoked"),
        ("refused", refused or "nothing"),
        ("privacy", spent),
    ]
    # Shown only where it happened: somebody has lied to an older version.
    return [*facts, ("left out", f"receipts that cannot be added up: {left_out}")] if left_out else facts


def _processes(found: Overview) -> str:
    rows = [
        (each.process, str(each.pid), duration(each.up_seconds), size(each.rss_bytes), duration(each.silent_seconds))
        for each in found.processes
    ]
    return table(("process", "pid", "up", "memory", "silent for"), rows, "lrrrr")


def _story(happening: Happening, now_seconds: float) -> str:
    facts = [f"{name} {_fact(value)}" for name, value in happening.facts.items() if _is_short(value)]
    when, cohort = ago(happening.at_seconds, now_seconds), happening.cohort
    return f"  {when:>10}  {cohort:<8}  {happening.kind:<12}  {_as_many_as_fit(facts)}".rstrip()


def _as_many_as_fit(facts: Sequence[str]) -> str:
    """Whole facts only, except for a first that is too long by itself."""
    told = ""
    for fact in facts:
        longer = f"{told}, {fact}" if told else fact
        if len(longer) > _LONGEST_STORY:
            break
        told = longer
    return told or (facts[0][: _LONGEST_STORY - 1] + "…" if facts else "")


def _fact(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _is_short(value: object) -> bool:
    return isinstance(value, bool | int | float | str)
