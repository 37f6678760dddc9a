"""The report of a fleet as one HTML page that needs nothing else: no script, no font, no network.

What does not reconcile stands first. Figures show distributions, so that a thousand devices are as legible as ten, and
each has its numbers below it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import groupby

from privacy.reporting import plots
from privacy.reporting.amounts import counted, moment, percent_left, short_key, up, whom
from privacy.reporting.fleet import Fleet
from privacy.reporting.fleet_figures import DeviceFigures, GroupFigures, Moment, by_device, by_group, over_time
from privacy.reporting.page_parts import (
    Cell,
    Raw,
    bar,
    figure,
    glossary,
    long_table,
    paragraph,
    section,
    table,
    text,
    tiles,
    whole_page,
)
from privacy.reporting.spending import promise_unit

_SHARES = ("pure", "gaussian", "renyi")
_SHOWN_ROWS = 25


def page_of(fleet: Fleet) -> str:
    """The whole page."""
    devices = by_device(fleet.views)
    parts = [_header(fleet), _verdict(fleet), _notices(fleet)]
    if devices:
        parts += [_tiles(fleet, devices), _figures(devices, over_time(fleet.views, fleet.made_at))]
        parts += [_group(field, title, by_group(fleet.views, field)) for field, title in _GROUPS.items()]
        parts.append(_devices(devices))
    parts += [
        section(
            "How to read this", glossary([(word, " ".join(meaning.split())) for word, meaning in _GLOSSARY.items()])
        ),
        _footer(),
    ]
    body = "\n".join(part for part in parts if part)
    return whole_page("Privacy report", body)


_GROUPS = {"mechanism": "Spend by mechanism", "purpose": "Spend by purpose", "server": "Spend by server"}

_GLOSSARY = {
    "ε (epsilon)": """How much can be learnt, in the worst case. Somebody who thought a claim as likely as not can be
        at most 73 % sure after ε=1, 95 % after ε=3, 99.97 % after ε=8. ε is one person's: it is never added up over
        devices.""",
    "δ (delta)": """The probability with which the promise of ε may fail; it belongs to the budget and is stated
        with it.""",
    "ε so far": """What the releases reveal together, had all questions been fixed beforehand. A server may choose its
        questions by earlier answers; against that the budget itself holds, through limits on each share.""",
    "Shares": """A budget is divided once: pure ε for histograms, choices and scalars, a Gaussian share for noised
        updates, a Rényi share for training on single records. Each can run out by itself.""",
    "Records and devices": """A release hides either single records or everything a device holds. A device with
        record-level releases has no promise about the device as a whole.""",
    "Ledger and receipt": """A device books every release before it is made; a server signs for what it received.
        Where the two differ, this report says so first.""",
}


def _header(fleet: Fleet) -> str:
    received = "no receipts were given"
    if fleet.receipts_name is not None:
        received = f"{counted(fleet.num_receipts, 'receipt')} from {fleet.receipts_name}"
    words = f"{counted(fleet.given, 'ledger')}, {received}; {moment(fleet.made_at)} UTC"
    return f"<header><h1>Privacy report</h1>{paragraph(words, 'meta')}</header>"


def _verdict(fleet: Fleet) -> str:
    if not fleet.findings:
        words = fleet.verdict[0].upper() + fleet.verdict[1:] + "."
        return f'<section class="verdict right"><h2>✓ Nothing amiss was found</h2>{paragraph(words)}</section>'
    parts = [f"<h2>! {counted(len(fleet.findings), 'thing does', 'things do')} not reconcile</h2>"]
    for kind, group in groupby(fleet.findings, key=lambda finding: finding.kind):
        found = list(group)
        rows = [[finding.place, finding.sentence] for finding in found]
        title = kind.heading
        parts.append(f"<h3>{text(title)} ({len(found):,})</h3>{paragraph(kind.meaning)}")
        parts.append(long_table(title, ["Where", "What was found"], rows, ["where", ""], _SHOWN_ROWS))
    return '<section class="verdict wrong">' + "\n".join(parts) + "</section>"


def _notices(fleet: Fleet) -> str:
    rows = [[notice.place, notice.sentence] for notice in fleet.notices]
    rows += [
        [server, f"{counted(count, 'release')} not checked: none of this server's receipts were given"]
        for server, count in fleet.unchecked.items()
    ]
    if not rows:
        return ""
    heads = ["Where", "What"]
    return section("Good to know", long_table("Not wrong, but worth knowing", heads, rows, ["where", ""], _SHOWN_ROWS))


def _tiles(fleet: Fleet, devices: Sequence[DeviceFigures]) -> str:
    epsilons = [device.epsilon for device in devices]
    low = sum(device.least_left < 0.1 for device in devices)
    pairs = [
        ("Ledgers that stand", f"{len(devices):,} of {fleet.given:,}"),
        ("Releases booked", f"{sum(len(device.view.bookings) for device in devices):,}"),
        ("Median ε so far", up(statistics.median(epsilons))),
        ("Most ε so far", up(max(epsilons))),
        ("Under 10 % of a share left", f"{low:,}"),
    ]
    if fleet.receipts_name is not None:
        pairs.append(("Receipts that match", f"{fleet.matched:,} of {fleet.num_receipts:,}"))
    promises = {whom(promise_unit(device.view.status.limits), device.view.budget.relation) for device in devices}
    deltas = {f"{device.view.budget.delta:g}" for device in devices}
    note = f"Protected: {'; or '.join(sorted(promises))}. Stated at δ={', '.join(sorted(deltas))}."
    return section("At a glance", tiles(pairs), paragraph(note, "note"))


def _figures(devices: Sequence[DeviceFigures], moments: Sequence[Moment]) -> str:
    budgets = {device.view.budget.epsilon for device in devices}
    budget = budgets.pop() if len(budgets) == 1 else None
    names = [name for name in _SHARES if any(share.name == name for device in devices for share in device.shares)]
    drawn = [
        figure(
            "Remaining budget",
            plots.remaining(devices, names),
            "How many devices have how much of each share left; the leftmost bar is nearly exhausted.",
            _remaining_numbers(devices, names),
        )
    ]
    if moments:
        drawn.append(
            figure(
                "ε over time",
                plots.timeline(moments, budget),
                "What devices have revealed, each for itself, by their own clocks.",
                _timeline_numbers(moments),
            )
        )
    drawn.append(
        figure(
            "ε by device",
            plots.ranked(devices, budget),
            "One dot a device, those that revealed most on the left.",
            paragraph("The table of devices below holds these numbers."),
        )
    )
    return section("Spend", f'<div class="figures">{"".join(drawn)}</div>')


def _remaining_numbers(devices: Sequence[DeviceFigures], names: Sequence[str]) -> str:
    counts = [plots.left_counts(devices, name) for name in names]
    rows: list[list[Cell]] = [
        [f"{10 * index} to {10 * index + 10} %", *(f"{column[index]:,}" for column in counts)]
        for index in range(plots.BINS)
    ]
    heads = ["Left", *(plots.share_words(name) for name in names)]
    return table("Devices by what is left", heads, rows, ["", *["n"] * len(names)])


def _timeline_numbers(moments: Sequence[Moment]) -> str:
    rows = [[moment(m.at), up(m.tenth, 3), up(m.median, 3), up(m.ninetieth, 3), up(m.high, 3)] for m in moments]
    heads = ["By (UTC)", "10 % below", "median", "90 % below", "most"]
    return table("ε so far over the devices", heads, rows, ["", "n", "n", "n", "n"])


def _group(field: str, title: str, groups: Sequence[GroupFigures]) -> str:
    largest = max((group.most_epsilon for group in groups), default=0.0) or 1.0
    rows: list[list[Cell]] = [
        [
            group.name,
            f"{group.devices:,}",
            f"{group.booked:,}",
            up(group.median_epsilon, 3),
            up(group.most_epsilon, 3),
            bar(group.most_epsilon / largest),
        ]
        for group in groups
    ]
    caption = f"By {field}: what one device revealed by it, as if it had released nothing else"
    heads = [field.capitalize(), "Devices", "Booked", "ε median", "ε most", ""]
    return section(title, long_table(caption, heads, rows, ["", "n", "n", "n", "n", "bar"], _SHOWN_ROWS))


def _devices(devices: Sequence[DeviceFigures]) -> str:
    rows: list[list[Cell]] = [
        [
            device.name,
            up(device.epsilon, 3),
            f"{device.view.budget.epsilon:g}",
            *(_left(device, name) for name in _SHARES),
            f"{len(device.view.bookings):,}",
            f"{device.record_level:,}",
            Raw(f"<code>{short_key(device.view.device_key)}</code>"),
        ]
        for device in devices
    ]
    heads = ["Device", "ε so far", "of", "Pure left", "Gaussian left", "Rényi left", "Booked", "Record-level", "Key"]
    caption = "Those with the least left of a share first"
    return section("Spend by device", long_table(caption, heads, rows, ["", *["n"] * 8], _SHOWN_ROWS))


def _left(device: DeviceFigures, name: str) -> str:
    return next((percent_left(1 - share.used) for share in device.shares if share.name == name), "–")


def _footer() -> str:
    words = "Made by covey privacy report from signed ledgers. No figure here is derived from what devices hold."
    return f"<footer>{text(words)}</footer>"
