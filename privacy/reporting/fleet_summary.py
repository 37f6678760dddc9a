"""`covey privacy report` on the terminal and as JSON: what does not reconcile first, then who has spent what."""

from __future__ import annotations

import statistics
from itertools import groupby
from typing import Any

from privacy.reporting.amounts import counted, exact, moment, percent_left, printable, up
from privacy.reporting.fleet import Fleet
from privacy.reporting.fleet_figures import DeviceFigures, GroupFigures, Moment, by_device, by_group, over_time
from privacy.reporting.tables import paragraph, table

_SHOWN_FINDINGS = 5
_SHOWN_DEVICES = 10
_SHOWN_NOTICES = 5
_FIELDS = ("mechanism", "purpose", "server")
_SHARE_NAMES = ("pure", "gaussian", "renyi")


def fleet_text(fleet: Fleet) -> str:
    """For a person: short enough for a screen, whatever the number of devices."""
    parts = [_opening(fleet), *_findings(fleet), *_notices(fleet)]
    devices = by_device(fleet.views)
    if devices:
        parts += [_spread(devices), _devices(devices)]
        parts += [_group_table(field, by_group(fleet.views, field)) for field in _FIELDS]
    return "\n\n".join(part for part in parts if part)


def fleet_json(fleet: Fleet) -> dict[str, Any]:
    """For a program; docs/commands.md lists the keys."""
    groups = {f"by_{field}": [_group_json(field, group) for group in by_group(fleet.views, field)] for field in _FIELDS}
    return {
        "format": "covey-privacy-report-1",
        "made_at": fleet.made_at,
        "reconciles": not fleet.findings,
        "ledgers_given": fleet.given,
        "ledgers_counted": len(fleet.views),
        "receipts": None
        if fleet.receipts_name is None
        else {
            "file": fleet.receipts_name,
            "read": fleet.num_receipts,
            "matched": fleet.matched,
            "unchecked_by_server": fleet.unchecked,
        },
        "findings": [
            {"kind": finding.kind.value, "place": finding.place, "sentence": finding.sentence, "count": finding.count}
            for finding in fleet.findings
        ],
        "notices": [{"place": notice.place, "sentence": notice.sentence} for notice in fleet.notices],
        "devices": [_device_json(device) for device in by_device(fleet.views)],
        **groups,
        "timeline": [_moment_json(when) for when in over_time(fleet.views, fleet.made_at)],
    }


def _opening(fleet: Fleet) -> str:
    received = ""
    if fleet.receipts_name is not None:
        received = f", against {counted(fleet.num_receipts, 'receipt')} in {printable(fleet.receipts_name)}"
    title = f"Privacy of {counted(fleet.given, 'device')}{received}, {moment(fleet.made_at)} UTC"
    return f"{paragraph(title)}\n\n{paragraph('Verdict: ' + fleet.verdict + '.')}"


def _findings(fleet: Fleet) -> list[str]:
    parts = []
    for kind, group in groupby(fleet.findings, key=lambda finding: finding.kind):
        found = list(group)
        lines = [
            paragraph(f"{printable(finding.place)}: {finding.sentence}", "    ", "  - ")
            for finding in found[:_SHOWN_FINDINGS]
        ]
        if len(found) > _SHOWN_FINDINGS:
            lines.append(f"  - and {len(found) - _SHOWN_FINDINGS:,} more")
        parts.append("\n".join([f"! {kind.heading} ({len(found):,})", paragraph(kind.meaning, "  "), *lines]))
    return parts


def _notices(fleet: Fleet) -> list[str]:
    lines = [paragraph(f"{printable(notice.place)}: {notice.sentence}", "    ", "  - ") for notice in fleet.notices]
    lines += [
        paragraph(
            f"{counted(count, 'release')} to {printable(server)} not checked: none of its receipts were given",
            "    ",
            "  - ",
        )
        for server, count in fleet.unchecked.items()
    ]
    if len(lines) > _SHOWN_NOTICES:
        lines = [*lines[:_SHOWN_NOTICES], f"  - and {len(lines) - _SHOWN_NOTICES:,} more"]
    return ["\n".join(["Good to know", *lines])] if lines else []


def _spread(devices: list[DeviceFigures]) -> str:
    epsilons = sorted(device.epsilon for device in devices)
    low = sum(device.least_left < 0.1 for device in devices)
    words = f"ε so far: {up(epsilons[0])}."
    if len(devices) > 1:
        words = (
            f"ε so far: median {up(statistics.median(epsilons))}, from {up(epsilons[0])} to {up(epsilons[-1])}, "
            "each device for itself."
        )
    return paragraph(f"{words} With less than 10 % of a share left: {counted(low, 'device')}.")


def _devices(devices: list[DeviceFigures]) -> str:
    rows = [
        [
            printable(device.name),
            f"{len(device.view.bookings):,}",
            up(device.epsilon, 3),
            f"{device.view.budget.epsilon:g}",
            *(_left(device, share) for share in _SHARE_NAMES),
        ]
        for device in devices[:_SHOWN_DEVICES]
    ]
    heads = ["Device", "booked", "ε so far", "of", "left: pure", "Gaussian", "Rényi"]
    shown = table(heads, rows, "lrrrrrr")
    hidden = len(devices) - _SHOWN_DEVICES
    return f"{shown}\n\n{hidden:,} devices with more left are in the report and in --json." if hidden > 0 else shown


def _left(device: DeviceFigures, name: str) -> str:
    return next((percent_left(1 - share.used) for share in device.shares if share.name == name), "-")


def _group_table(field: str, groups: list[GroupFigures]) -> str:
    rows = [
        [
            printable(group.name),
            f"{group.devices:,}",
            f"{group.booked:,}",
            up(group.median_epsilon, 3),
            up(group.most_epsilon, 3),
        ]
        for group in groups
    ]
    return table([f"By {field}", "devices", "booked", "ε median", "ε most"], rows, "lrrrr")


def _device_json(device: DeviceFigures) -> dict[str, Any]:
    view = device.view
    return {
        "place": view.place,
        "ledger": view.id,
        "device_key": view.device_key,
        "budget_epsilon": view.budget.epsilon,
        "budget_delta": view.budget.delta,
        "relation": view.budget.relation.value,
        "epsilon_so_far": exact(device.epsilon, view.budget.epsilon),
        "left": {share.name: 1 - share.used for share in device.shares},
        "booked": len(view.bookings),
        "unsettled": len(view.unsettled),
        "record_level": device.record_level,
        "started_over": view.started_over,
    }


def _group_json(field: str, group: GroupFigures) -> dict[str, Any]:
    return {
        field: group.name,
        "devices": group.devices,
        "booked": group.booked,
        "unsettled": group.unsettled,
        "epsilon_median": exact(group.median_epsilon),
        "epsilon_most": exact(group.most_epsilon),
    }


def _moment_json(when: Moment) -> dict[str, Any]:
    return {
        "at": when.at,
        "epsilon_least": exact(when.low),
        "epsilon_tenth": exact(when.tenth),
        "epsilon_median": exact(when.median),
        "epsilon_ninetieth": exact(when.ninetieth),
        "epsilon_most": exact(when.high),
    }
