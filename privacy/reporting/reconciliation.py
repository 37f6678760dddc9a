"""Ledgers against receipts: what devices say they released, and what a server says it received.

A release that left a device stands in its ledger and, once received, on the server's list of receipts, with the same
number, hash and cost. Whatever has no counterpart is a finding. Servers of which no receipt was given cannot be
checked; their releases are counted as unchecked, not as wrong.

A server knows a ledger by a name, a key and numbers of its own (`privacy.ledger.excerpts`). The ledger says which entry
each of them stands for; findings name entries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from privacy.receipts import Receipt
from privacy.reporting.amounts import counted, printable, short_key
from privacy.reporting.findings import Finding, FindingKind, Notice
from privacy.reporting.ledger_view import Booking, LedgerView
from privacy.reporting.receipts_file import ReceiptsFile

_MOST_LISTED = 5


@dataclass(frozen=True)
class Reconciliation:
    """What matched, what did not, and what could not be checked."""

    matched: int
    findings: tuple[Finding, ...]
    notices: tuple[Notice, ...]
    unchecked: dict[str, int]
    """By server, releases of which no receipt could be expected in the file."""


def reconcile(views: Sequence[LedgerView], received: ReceiptsFile) -> Reconciliation:
    """Match every receipt with its ledger entry, and every release with its receipt."""
    known = {name: view for view in views for name in (view.id, *view.excerpts)}
    findings: list[Finding] = []
    spoken_for: set[tuple[str, int]] = set()
    strangers: Counter[tuple[str, str]] = Counter()
    older: Counter[str] = Counter()
    matched = 0
    for receipt in received.receipts:
        view = known.get(receipt.ledger)
        if view is None:
            strangers[receipt.ledger, receipt.device_key.hex()] += 1
        elif _is_older(view, receipt):
            older[view.place] += 1
        else:
            spoken_for.add((view.id, _entry_of(view, receipt)))
            finding = _judge(view, receipt)
            matched += finding is None
            findings += [finding] if finding else []
    findings += _strangers(strangers) + _never_received(views, received.servers, spoken_for)
    notices = tuple(
        Notice(place, f"{counted(count, 'receipt')} from before the ledger was started over, which it cannot confirm")
        for place, count in older.items()
    )
    return Reconciliation(matched, tuple(findings), notices, _unchecked(views, received.servers))


def _is_older(view: LedgerView, receipt: Receipt) -> bool:
    """Whether a receipt is from before the ledger was started over."""
    excerpt = view.excerpts.get(receipt.ledger)
    return receipt.sequence < view.first if excerpt is None else receipt.sequence <= excerpt.before


def _entry_of(view: LedgerView, receipt: Receipt) -> int:
    """The entry that a receipt is about; one beyond the ledger's end where it has none."""
    excerpt = view.excerpts.get(receipt.ledger)
    if excerpt is None:
        return receipt.sequence
    entry = excerpt.entry_at(receipt.sequence)
    return view.status.sequence + receipt.sequence - excerpt.number if entry is None else entry


def _judge(view: LedgerView, receipt: Receipt) -> Finding | None:
    """What is wrong with a receipt of this ledger, if anything."""
    number, server = _entry_of(view, receipt), printable(receipt.server)
    excerpt = view.excerpts.get(receipt.ledger)
    device_key, head = (
        (view.device_key, view.digest_at(number))
        if excerpt is None
        else (excerpt.device_key, excerpt.head_at(receipt.sequence))
    )
    kind, sentence = FindingKind.DIFFERS, ""
    booking = view.releases.get(number)
    if receipt.device_key.hex() != device_key:
        sentence = f"entry {number} was received under the key of another device"
    elif number > view.status.sequence:
        kind = FindingKind.ROLLED_BACK
        last, received = (
            (f"entry {view.status.sequence}", f"entry {number}")
            if excerpt is None
            else (f"release {excerpt.number} to it", f"release {receipt.sequence}")
        )
        sentence = f"it ends at {last}, but server {server!r} has received {received}"
    elif booking is None:
        kind = FindingKind.NOT_IN_LEDGER
        sentence = f"server {server!r} has received entry {number}, which is not a release here"
    elif booking.seeded:
        sentence = f"entry {number} was noised from a seed and should never have left, but server {server!r} has it"
    elif differing := _differing(booking, receipt):
        sentence = f"entry {number} differs from its receipt by server {server!r} in: {', '.join(differing)}"
    elif head != receipt.head:
        kind = FindingKind.ROLLED_BACK
        sentence = f"server {server!r} has received entry {number} after other entries than these"
    return Finding(kind, view.place, sentence) if sentence else None


def _differing(booking: Booking, receipt: Receipt) -> list[str]:
    compared = {
        "payload hash": (booking.payload_hash, receipt.payload_hash),
        "cost": (booking.cost, receipt.cost),
        "mechanism": (booking.mechanism, receipt.mechanism),
        "server": (booking.server, receipt.server),
        "request": (booking.request, receipt.request),
    }
    return [name for name, (ours, theirs) in compared.items() if ours != theirs]


def _strangers(receipts: Counter[tuple[str, str]]) -> list[Finding]:
    return [
        Finding(
            FindingKind.UNKNOWN_LEDGER,
            f"ledger {printable(ledger)[:12]}",
            f"{counted(count, 'receipt')} of device {short_key(device_key)}",
            count,
        )
        for (ledger, device_key), count in receipts.items()
    ]


def _never_received(
    views: Sequence[LedgerView], servers: frozenset[str], spoken_for: set[tuple[str, int]]
) -> list[Finding]:
    findings = []
    for view in views:
        missing: dict[str, list[int]] = {}
        for number, booking in view.releases.items():
            if booking.server in servers and not booking.seeded and (view.id, number) not in spoken_for:
                missing.setdefault(booking.server, []).append(number)
        findings += [
            Finding(
                FindingKind.NEVER_RECEIVED,
                view.place,
                f"server {printable(server)!r} has no receipt of {_entries(numbers)}",
                len(numbers),
            )
            for server, numbers in missing.items()
        ]
    return findings


def _entries(numbers: Sequence[int]) -> str:
    listed = ", ".join(map(str, numbers[:_MOST_LISTED]))
    more = len(numbers) - _MOST_LISTED
    return f"{'entry' if len(numbers) == 1 else 'entries'} {listed}" + (f" and {more:,} more" if more > 0 else "")


def _unchecked(views: Iterable[LedgerView], servers: frozenset[str]) -> dict[str, int]:
    """Releases to servers of which the file holds no receipt at all."""
    others = Counter(
        booking.server
        for view in views
        for booking in view.releases.values()
        if booking.server not in servers and not booking.seeded
    )
    return dict(sorted(others.items()))
