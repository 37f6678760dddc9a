"""`covey privacy explain`: the words of `privacy.explain` and a timeline, laid out for a terminal."""

from __future__ import annotations

from typing import Any

from privacy.explain import in_words, introduction, nothing_yet, paragraphs, together
from privacy.reporting.amounts import exact, moment, printable, short_key, up
from privacy.reporting.ledger_view import Booking, LedgerView
from privacy.reporting.spending import ceiling_of, epsilon_after, epsilon_so_far, epsilon_together
from privacy.reporting.tables import paragraph, table

RECENT = 20


def explain_text(view: LedgerView, *, whole: bool = False) -> str:
    """For the person whose device it is; the timeline shows the newest releases, or the `whole` of it."""
    parts = [f"What left device {short_key(view.device_key)}, and what it means"]
    parts += [paragraph(text) for text in introduction(view)]
    if not view.bookings:
        return "\n\n".join([*parts, paragraph(nothing_yet(view))])
    parts += [f"{title}\n{paragraph(text, '  ')}" for title, text in paragraphs(view)]
    parts += [paragraph(together(view)), _timeline(view, whole=whole)]
    return "\n\n".join(parts)


def explain_json(view: LedgerView) -> dict[str, Any]:
    """For a program; docs/commands.md lists the keys."""
    return {
        "format": "covey-privacy-explain-1",
        "ledger": view.id,
        "device_key": view.device_key,
        "introduction": introduction(view),
        "kinds": [{"title": title, "text": text} for title, text in paragraphs(view)],
        "together": together(view) if view.bookings else None,
        "epsilon_so_far": exact(epsilon_so_far(view), ceiling_of(view)),
        "timeline": [
            {
                "sequence": booking.sequence,
                "at": booking.at,
                "mechanism": booking.mechanism,
                "server": booking.server,
                "purpose": booking.purpose,
                "unit": booking.cost.unit.value,
                "epsilon_alone": exact(epsilon_together(view, [booking])),
                "epsilon_running": exact(running, ceiling_of(view)),
                "left_the_device": booking.release is not None and not booking.seeded,
            }
            for booking, running in zip(view.bookings, _running(view), strict=True)
        ],
    }


def _timeline(view: LedgerView, *, whole: bool) -> str:
    rows = [
        [
            moment(booking.at).split()[0],
            in_words(booking.mechanism)[0],
            printable(booking.server),
            printable(booking.purpose),
            up(epsilon_together(view, [booking]), 3),
            up(running, 3),
            _fate(booking),
        ]
        for booking, running in zip(view.bookings, _running(view), strict=True)
    ]
    hidden = 0 if whole else max(0, len(rows) - RECENT)
    headers = ["Day (UTC)", "What", "To", "For", "ε alone", "ε so far", ""]
    shown = table(headers, rows[hidden:], "flllrrf")
    return f"{shown}\n\n{hidden:,} earlier ones are not shown; --all shows them." if hidden else shown


def _fate(booking: Booking) -> str:
    if booking.release is None:
        return "not made"
    return "kept" if booking.seeded else ""


def _running(view: LedgerView) -> list[float]:
    """ε of everything up to each booking."""
    return [epsilon_after(view, index + 1) for index in range(len(view.bookings))]
