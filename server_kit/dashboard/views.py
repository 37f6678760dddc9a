"""The federation, its devices, what they spent and how the server does, as documents. No device is named in full."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from server_kit.commands.overview import LATELY_SECONDS
from server_kit.dashboard.cohort_views import Document, changes, cohort_lines
from server_kit.observer.health import Health, is_alive, is_ready
from server_kit.steady_clock import steady_seconds

if TYPE_CHECKING:
    from server_kit.dashboard.sight import Sight
    from server_kit.privacy_spend import SpendSpread
    from server_kit.snapshots import Snapshot
    from server_kit.store.protocol import DeviceRecord

DEVICE_STATES = ("working", "here", "away", "never", "revoked")
"""Has a task; was here in the last ten minutes; was here before; enrolled and never seen; kept out."""
_SHOWN_DIGITS = 10
_PAGE = 50
_BINS = 24


def overview(sight: Sight) -> Document:
    """The first page, and what the stream repeats."""
    standing, facts = sight.standing(), sight.reader.facts()
    snapshots = sight.snapshots()
    return {
        "format": "covey-dashboard-1",
        "at": sight.clock(),
        "name": sight.home.config.federation.name,
        "preset": sight.home.config.federation.preset,
        "running": sight.home.is_running(),
        "over": any(each.facts.get("over") is True for each in snapshots),
        "store_up": standing is not None,
        "health": _verdicts(sight, snapshots),
        "devices": {
            "enrolled": None if facts is None else facts.devices.enrolled,
            "seen_lately": None if facts is None else facts.devices.seen_lately,
            "revoked": None if facts is None else facts.devices.revoked,
            "connected": _gauge(snapshots, "covey_devices_connected"),
            "waiting": _gauge(snapshots, "covey_devices_waiting"),
        },
        "refused": None if facts is None else sum(facts.refusals.values()),
        "spend": _spend(sight, sight.reader.spread_so_far()),
        "cohorts": [] if standing is None else cohort_lines(sight, standing),
        "changes": changes(sight),
        "read_to": 0 if standing is None else standing.read_to,
    }


def devices(sight: Sight, state: str = "", page: int = 1) -> Document | None:
    """A page of devices, those seen last first; of one state if it is named."""
    records, standing, facts = sight.reader.devices(), sight.standing(), sight.reader.facts()
    if records is None or standing is None or facts is None:
        return None
    now = sight.clock()
    states = {each.device: _state(each, standing.working, now) for each in records}
    chosen = [each for each in records if state in ("", states[each.device])]
    chosen.sort(key=lambda each: (-(each.last_seen_seconds or 0.0), each.device))
    pages = max(1, math.ceil(len(chosen) / _PAGE))
    page = min(max(1, page), pages)
    count = Counter(states.values())
    return {
        "at": now,
        "states": {name: count[name] for name in DEVICE_STATES},
        "state": state,
        "page": page,
        "pages": pages,
        "shown": len(chosen),
        "refusals": dict(sorted(facts.refusals.items(), key=lambda each: (-each[1], each[0]))),
        "devices": [
            {
                "device": each.device[:_SHOWN_DIGITS],
                "state": states[each.device],
                "enrolled_at": each.enrolled_at_seconds,
                "last_seen": each.last_seen_seconds,
                "releases": each.releases,
                "refusals": dict(each.refusals),
            }
            for each in chosen[(page - 1) * _PAGE : page * _PAGE]
        ],
    }


def privacy(sight: Sight) -> Document | None:
    """How ε is spread over devices, beside the policy's promise."""
    spread, policy = sight.reader.spread(), sight.home.config.policy
    if spread is None:
        return None
    top = max(policy.epsilon, *spread.devices_by_epsilon) if spread.devices_by_epsilon else policy.epsilon
    return {
        **(_spend(sight, spread) or {}),
        "at": sight.clock(),
        "bins": spread_bins(spread, top * 1.05),
        "mechanisms": dict(sorted(spread.releases_by_mechanism.items(), key=lambda each: (-each[1], each[0]))),
        "left_out": {device[:_SHOWN_DIGITS]: count for device, count in spread.left_out.items()},
        "over": sum(count for epsilon, count in spread.devices_by_epsilon.items() if epsilon > policy.epsilon),
    }


def health(sight: Sight) -> Document:
    """Processes and what is wrong with them."""
    snapshots, now = sight.snapshots(), sight.clock()
    return {
        "at": now,
        "running": sight.home.is_running(),
        "store_up": sight.standing() is not None,
        **_verdicts(sight, snapshots),
        "certificate_expires_at": _gauge(snapshots, "covey_certificate_expires_at_seconds"),
        "restarts": sum(
            int(value)
            for each in snapshots
            for (name, _), value in each.counters.items()
            if name == "covey_restarts_total"
        ),
        "processes": [
            {
                "process": each.process,
                "pid": each.pid,
                "started_at": each.started_at,
                "silent_seconds": max(0.0, now - each.at),
                "rss_bytes": each.rss_bytes,
            }
            for each in snapshots
        ],
    }


def spread_bins(spread: SpendSpread, top: float) -> list[Document]:
    """Devices by ε in bins of one width, from 0 to `top`; a bin holds its lower end."""
    width = top / _BINS
    count: Counter[int] = Counter()
    for epsilon, devices in spread.devices_by_epsilon.items():
        count[min(_BINS - 1, int(epsilon / width))] += devices
    return [{"from": number * width, "to": (number + 1) * width, "devices": count[number]} for number in range(_BINS)]


def _spend(sight: Sight, spread: SpendSpread | None) -> Document | None:
    if spread is None:
        return None
    policy, spend = sight.home.config.policy, spread.summary
    return {
        "devices": spend.devices,
        "releases": spend.releases,
        "median": spend.median_epsilon,
        "most": spend.most_epsilon,
        "limit": policy.epsilon,
        "delta": policy.delta,
    }


def _verdicts(sight: Sight, snapshots: list[Snapshot]) -> Document:
    facts, now = sight.reader.facts(), sight.clock()
    leases = None if facts is None else facts.leases
    ready = is_ready(snapshots, leases, now, steady_seconds())
    return {"alive": _told(is_alive(snapshots, now)), "ready": _told(ready)}


def _told(found: Health) -> Document:
    return {"ok": found.good, "faults": list(found.faults)}


def _state(record: DeviceRecord, working: frozenset[str], now_seconds: float) -> str:
    if record.revoked:
        return "revoked"
    if record.last_seen_seconds is None:
        return "never"
    if record.device in working:
        return "working"
    return "here" if now_seconds - record.last_seen_seconds <= LATELY_SECONDS else "away"


def _gauge(snapshots: list[Snapshot], name: str) -> float | None:
    """The sum over processes; None if nobody says."""
    found = [each.gauges[name, ()] for each in snapshots if (name, ()) in each.gauges]
    return sum(found) if found else None
