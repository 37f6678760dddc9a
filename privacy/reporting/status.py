"""`covey privacy status`: the budget of one device, what is spent, what is left, and for whom it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from privacy.budget import PrivacyUnit
from privacy.explain import in_words, nothing_yet
from privacy.reporting.amounts import counted, down, exact, percent_used, printable, short_key, up, whom
from privacy.reporting.ledger_view import Booking, LedgerView
from privacy.reporting.spending import (
    ceiling_of,
    epsilon_of_device_level,
    epsilon_so_far,
    epsilon_together,
    promise_unit,
    room_for_more,
    shares_of,
)
from privacy.reporting.tables import bar, pairs, paragraph, table


def status_text(view: LedgerView) -> str:
    """For a person, at most 80 columns wide."""
    parts = [_opening(view), _shares(view), _so_far(view), *_groups(view), _bookings(view), _room(view)]
    return "\n\n".join(part for part in parts if part)


def status_json(view: LedgerView) -> dict[str, Any]:
    """For a program; docs/commands.md lists the keys."""
    budget, last = view.budget, view.bookings[-1] if view.bookings else None
    return {
        "format": "covey-privacy-status-1",
        "ledger": view.id,
        "device_key": view.device_key,
        "sequence": view.status.sequence,
        "head": view.status.digest,
        "started_over": view.started_over,
        "faults": list(view.booking_faults),
        "budget": {
            "epsilon": budget.epsilon,
            "delta": budget.delta,
            "training": budget.training.value,
            "relation": budget.relation.value,
            "protects": promise_unit(view.status.limits).value,
        },
        "shares": [
            {
                "share": share.name,
                "epsilon": share.epsilon,
                "spent_epsilon": share.spent_epsilon,
                "left_epsilon": share.left_epsilon,
                "used": share.used,
                "spent": share.spent,
                "limit": share.limit,
            }
            for share in shares_of(view)
        ],
        "epsilon_so_far": exact(epsilon_so_far(view), ceiling_of(view)),
        "epsilon_whatever_is_asked": budget.epsilon,
        "epsilon_whole_device": None if _about_records(view) else exact(epsilon_of_device_level(view)),
        "epsilon_device_level_only": exact(epsilon_of_device_level(view)),
        "booked": len(view.bookings),
        "released": len(view.bookings) - len(view.unsettled),
        "unsettled": len(view.unsettled),
        "by_server": _groups_json(view, "server"),
        "by_mechanism": _groups_json(view, "mechanism"),
        "quotas_ppm": view.status.quotas,
        "last_mechanism": last.mechanism if last else None,
        "more_like_the_last": room_for_more(view, last) if last else None,
    }


def _opening(view: LedgerView) -> str:
    budget = view.budget
    lines = [
        ("Budget", f"ε={budget.epsilon:g} at δ={budget.delta:g}, for life, over all servers together"),
        ("Protects", f"{whom(promise_unit(view.status.limits), budget.relation)} (relation: {budget.relation})"),
    ]
    if view.started_over:
        reasons = "; ".join(printable(decision.reason) for decision in view.decisions[:1])
        lines.append(("Note", f"started over at entry {view.first} after its predecessor broke: {reasons}"))
    if view.booking_faults:
        lines.append(("Wrong", f"{'; '.join(view.booking_faults)}: do not rely on what it says is left"))
    return f"Privacy ledger of device {short_key(view.device_key)}\n\n{pairs(lines)}"


def _shares(view: LedgerView) -> str:
    rows = [
        [
            share.pays_for,
            down(share.epsilon, 3),
            up(share.spent_epsilon, 3),
            down(share.left_epsilon, 3),
            percent_used(share.used),
            bar(share.used),
        ]
        for share in shares_of(view)
    ]
    return table(["Share of the budget for", "ε", "spent", "left", "used", ""], rows, "lrrrrl")


def _so_far(view: LedgerView) -> str:
    unit, limit = promise_unit(view.status.limits), view.budget.epsilon
    lines = [
        ("so far", f"ε={up(epsilon_so_far(view))} about {_unit_words(unit)}, had all questions been fixed beforehand"),
        ("in the end", f"ε={limit:g} at most, even if every question depends on the answers before it"),
    ]
    if unit is PrivacyUnit.RECORD:
        lines.append(("as a device", _about_the_device(view)))
    return "What is revealed\n\n" + pairs(lines)


def _about_the_device(view: LedgerView) -> str:
    epsilon, about_records = epsilon_of_device_level(view), _about_records(view)
    if epsilon is None:
        return "unknown: a predecessor of this ledger spent what is known as a sum only"
    if not about_records:
        return f"ε={up(epsilon)} so far about everything the device holds: all releases are device-level"
    kinds = " and ".join(in_words(name)[1] for name in dict.fromkeys(about_records))
    others = f"; all device-level releases together come to ε={up(epsilon)}" if epsilon else ""
    return f"no figure: {kinds} hide single records, not the device as a whole{others}"


def _about_records(view: LedgerView) -> list[str]:
    return [booking.mechanism for booking in view.bookings if booking.cost.unit is PrivacyUnit.RECORD]


def _groups(view: LedgerView) -> list[str]:
    if not view.bookings:
        return []
    by_server = [
        [printable(server), f"{len(group):,}", up(epsilon_together(view, group), 3), _quota(view, server)]
        for server, group in _grouped(view.bookings, lambda booking: booking.server)
    ]
    by_mechanism = [
        [printable(mechanism), f"{len(group):,}", up(epsilon_together(view, group), 3), _purposes(group)]
        for mechanism, group in _grouped(view.bookings, lambda booking: booking.mechanism)
    ]
    return [
        table(["By server", "booked", "ε alone", "may use"], by_server, "lrrr"),
        table(["By mechanism", "booked", "ε alone", "for"], by_mechanism, "lrrl"),
    ]


def _quota(view: LedgerView, server: str) -> str:
    share_ppm = view.status.quotas.get(server)
    return "all" if share_ppm is None else f"{share_ppm / 10_000:g} %"


def _purposes(group: Sequence[Booking]) -> str:
    return ", ".join(dict.fromkeys(printable(booking.purpose) for booking in group))


def _bookings(view: LedgerView) -> str:
    if not view.bookings:
        return paragraph(nothing_yet(view))
    unsettled = len(view.unsettled)
    text = f"{counted(len(view.bookings), 'release')} booked, {len(view.bookings) - unsettled:,} made."
    if unsettled:
        text += f" {counted(unsettled, 'booking')} never became a release (an interruption); what it cost stays spent."
    return paragraph(text)


def _room(view: LedgerView) -> str:
    if not view.bookings:
        return ""
    last = view.bookings[-1]
    room, (singular, plural) = room_for_more(view, last), in_words(last.mechanism)
    if room:
        return paragraph(f"There is room for {counted(room, 'more ' + singular, 'more ' + plural)} like the last.")
    return paragraph(f"There is no room for another {singular} like the last: the device will decline.")


def _groups_json(view: LedgerView, field: str) -> list[dict[str, Any]]:
    return [
        {field: name, "booked": len(group), "epsilon_alone": exact(epsilon_together(view, group))}
        for name, group in _grouped(view.bookings, lambda booking: str(getattr(booking, field)))
    ]


def _grouped(bookings: Sequence[Booking], key: Callable[[Booking], str]) -> list[tuple[str, list[Booking]]]:
    groups: dict[str, list[Booking]] = {}
    for booking in bookings:
        groups.setdefault(key(booking), []).append(booking)
    return sorted(groups.items())


def _unit_words(unit: PrivacyUnit) -> str:
    return "one record" if unit is PrivacyUnit.RECORD else "the whole device"
