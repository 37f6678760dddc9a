"""`covey privacy verify`: what was checked in a ledger, and whether its costs stand up to a second accountant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from privacy.accounting.limits import Spend
from privacy.accounting.second_opinion import Comparison, Verdict, compare
from privacy.budget import MICRO, NANO
from privacy.errors import InvalidTerms
from privacy.ledger.entries import Opened
from privacy.reporting.amounts import counted, short_key
from privacy.reporting.ledger_view import LedgerView
from privacy.reporting.tables import pairs, paragraph


@dataclass(frozen=True)
class Recomputation:
    """The costs of a ledger, computed anew."""

    faults: tuple[str, ...]
    """Where the ledger counts less than its releases cost."""
    comparison: Comparison | None
    """Our ε beside dp-accounting's; none where there is nothing to compare."""
    remark: str = ""
    """What could not be compared, and why."""

    @property
    def stands(self) -> bool:
        return not self.faults and (self.comparison is None or self.comparison.verdict is Verdict.AGREES)

    @property
    def fault(self) -> str:
        """One sentence for what does not stand."""
        if self.faults:
            return (
                f"{'; '.join(self.faults)}; treat the budget as exhausted and ask who wrote this ledger; "
                "nothing was changed"
            )
        if self.comparison is None or self.stands:
            return ""
        return (
            f"{self.comparison.verdict.value} (ours {self.comparison.ours:.5f}, dp-accounting "
            f"{self.comparison.theirs.optimistic:.5f} to {self.comparison.theirs.pessimistic:.5f}); "
            "do not rely on the ε shown for this ledger and report this; nothing was changed"
        )


def recompute(view: LedgerView) -> Recomputation:
    """Replay every booking: its spend through our filter, all costs through our accountant and dp-accounting."""
    faults = view.booking_faults
    costs = [booking.cost for booking in view.bookings]
    remark = "what a predecessor spent is a sum, which was not compared" if view.opened.carried != Spend() else ""
    if not costs:
        return Recomputation(faults, None, remark or "nothing was booked, so there is nothing to compare")
    try:
        return Recomputation(faults, compare(costs, view.budget.delta), remark)
    except InvalidTerms as error:
        return Recomputation(faults, None, str(error))


def verify_text(view: LedgerView, recomputation: Recomputation | None) -> str:
    """What was checked and found right; of a recomputation, whatever was found."""
    checked = view.verification
    if checked is None:
        raise TypeError("only a ledger that was read in full can be shown as verified")
    entries = counted(checked.num_entries, "entry", "entries")
    servers = counted(checked.num_countersignatures, "server")
    lines = [
        ("chain", f"{entries}, numbered {view.first} to {checked.sequence}, each tied to the one before"),
        ("signatures", f"budget and last entry signed by device {short_key(view.device_key)}"),
        ("sums", "every total follows from the entries and is within the budget"),
        ("anchor", "torn by an interruption; the next spend mends it" if checked.torn_anchor else "agrees"),
        ("answers", f"{counted(checked.num_answers, 'stored answer')} unchanged"),
        (
            "seen by",
            f"{servers}; nothing they signed for is missing" if checked.num_countersignatures else "no server yet",
        ),
    ]
    if recomputation is not None:
        lines.append(("recomputed", _recomputed_words(recomputation)))
    return f"The ledger is intact; its head is {checked.digest:.16}\n\n{pairs(lines)}"


def verify_json(
    view: LedgerView | None, recomputation: Recomputation | None = None, problem: str | None = None
) -> dict[str, Any]:
    """For a program; docs/commands.md lists the keys."""
    checked = view.verification if view else None
    return {
        "format": "covey-privacy-verify-1",
        "intact": problem is None,
        "problem": problem,
        "ledger": view.id if view else None,
        "device_key": view.device_key if view else None,
        "first": view.first if view else None,
        "sequence": checked.sequence if checked else None,
        "head": checked.digest if checked else None,
        "entries": checked.num_entries if checked else None,
        "answers": checked.num_answers if checked else None,
        "countersignatures": checked.num_countersignatures if checked else None,
        "torn_anchor": checked.torn_anchor if checked else None,
        "recomputed": None if recomputation is None else _recomputed_json(recomputation),
    }


def started_over_text(opened: Opened, reason: str) -> str:
    """What a new chain took over from the broken one."""
    budget, carried = opened.budget, opened.carried
    return paragraph(
        f"Started over: ledger {opened.ledger:.12} goes on with ε={budget.epsilon:g} at δ={budget.delta:g}. Of it "
        f"{carried.pure_micro_epsilon / MICRO:g} pure ε, {carried.mu_squared_nano / NANO:g} of Σμ² and "
        f"{carried.renyi_nano / NANO:g} of Rényi divergence count as spent already. The broken files were set aside in "
        f"the same directory (ledger.broken-…); their hashes and your reason ({reason!r}) stand in its first entries."
    )


def _recomputed_words(recomputation: Recomputation) -> str:
    if recomputation.fault:
        return recomputation.fault
    comparison = recomputation.comparison
    if comparison is None:
        return recomputation.remark
    remark = f"; {recomputation.remark}" if recomputation.remark else ""
    kind = "exact" if comparison.exact else "an upper bound"
    return (
        f"ε={comparison.ours:.5f} by ours ({kind}); dp-accounting says {comparison.theirs.optimistic:.5f} to "
        f"{comparison.theirs.pessimistic:.5f}; every booking covers its cost{remark}"
    )


def _recomputed_json(recomputation: Recomputation) -> dict[str, Any]:
    comparison = recomputation.comparison
    return {
        "stands": recomputation.stands,
        "faults": list(recomputation.faults),
        "epsilon_ours": comparison.ours if comparison else None,
        "epsilon_theirs_low": comparison.theirs.optimistic if comparison else None,
        "epsilon_theirs_high": comparison.theirs.pessimistic if comparison else None,
        "exact": comparison.exact if comparison else None,
        "remark": recomputation.remark or None,
    }
