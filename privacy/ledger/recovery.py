"""Starting over: what a person may decide when a ledger cannot be believed any more.

The broken files are set aside as evidence, never deleted. The new chain takes over whatever can still be
believed: the budget's terms, the quotas, and the highest spend that any surviving record shows. Its numbers
go on after the highest known one, so no server mistakes it for the past. Nothing is reset in silence: the
first two entries name the broken files and give the person's reason. Where nothing is left, not even the mark,
nobody can say what was spent, and there is nothing to go on with.

    write down the new opening (ledger.restart)  ->  set the old files aside  ->  create the new ones
      ->  mark them  ->  remove ledger.restart

Until the last step the ledger cannot be opened; what a crash leaves is completed by deciding again. A plan from
an earlier start, put back, is told by the mark and made anew.
"""

from __future__ import annotations

import secrets
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from privacy.accounting.limits import BudgetLimits
from privacy.canonical import canonical, parse, take_text
from privacy.durable import sync_directory, write_durably
from privacy.errors import InvalidTerms, LedgerTampered
from privacy.ledger.checks import open_checked
from privacy.ledger.entries import BEFORE_GENESIS, Decided, Entry, Opened, link
from privacy.ledger.files import LOCK_TIMEOUT_SECONDS, LedgerFiles, create, signed_opening, unavailable
from privacy.ledger.mark import BLANK
from privacy.ledger.remains import fingerprints, mark_left, salvage
from privacy.ledger.state import check_opening
from privacy.ledger.storage import tampered
from privacy.ledger.terms import check_name, same_terms

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from privacy.budget import PrivacyBudget
    from privacy.keys import LedgerKeys


@dataclass(frozen=True)
class _Plan:
    """The new opening entry, and the name under which the old files are set aside."""

    opening: Entry
    evidence: str


def start_over(
    directory: Path,
    keys: LedgerKeys,
    reason: str,
    budget: PrivacyBudget | None = None,
    *,
    clock: Callable[[], float] = time.time,
) -> Opened:
    """Begin a new chain in place of a broken one, because a person says so; returns what it takes over.

    `budget` is needed only where the old terms cannot be read any more. An intact ledger is left alone.
    """
    check_name(reason)
    files = LedgerFiles(directory, LOCK_TIMEOUT_SECONDS)
    with closing(files), files.locked(), unavailable("started over"):
        if not files.restart.exists() or _is_outdated(_written_plan(files, keys), files, keys):
            # First of all: to look at a database with SQLite may add an empty log beside it.
            predecessor = fingerprints(files)
            _check_broken(files, keys)
            write_durably(files.restart, _to_bytes(_new_plan(files, keys, budget, predecessor, int(clock()))))
        plan = _written_plan(files, keys)
        _set_aside(files, plan.evidence)
        at = max(int(clock()), plan.opening.at)
        create(files, keys, [plan.opening, Entry(plan.opening.sequence + 1, at, Decided(reason))])
        files.restart.unlink()
        sync_directory(directory)
    return _opened(plan.opening)


def _check_broken(files: LedgerFiles, keys: LedgerKeys) -> None:
    try:
        # Read-only: closing a writable database would change the evidence.
        intact = open_checked(files, keys.public_key, read_only=True, marking=keys.marking)
    except LedgerTampered:
        return
    if intact is None:
        raise InvalidTerms("there is no ledger in this directory; nothing was changed")
    intact.close()
    raise InvalidTerms("this ledger is intact, so there is nothing to start over; nothing was changed")


def _new_plan(
    files: LedgerFiles,
    keys: LedgerKeys,
    budget: PrivacyBudget | None,
    predecessor: tuple[tuple[str, str], ...],
    at: int,
) -> _Plan:
    remains = salvage(files, keys)
    terms, limits = _terms(remains.opened, budget)
    opened = Opened(
        ledger=remains.ledger or secrets.token_hex(16),
        device_key=keys.public_key.hex(),
        budget=terms,
        limits=limits,
        carried=remains.spent,
        carried_by_server=tuple(sorted(remains.by_server.items())),
        quotas=tuple(sorted(remains.quotas.items())),
        predecessor=predecessor,
        shown=remains.excerpts.going_on(remains.unread),
        lost=remains.excerpts.lost + remains.unread,
    )
    sequence = remains.highest + 1
    evidence = f"ledger.broken-{sequence}-{secrets.token_hex(4)}"
    return _Plan(Entry(sequence, max(at, remains.at), signed_opening(opened, keys)), evidence)


def _terms(old: Opened | None, budget: PrivacyBudget | None) -> tuple[PrivacyBudget, BudgetLimits]:
    if old is None:
        if budget is None:
            raise InvalidTerms(
                "the old budget cannot be read any more; give one to start over with; nothing was changed"
            )
        return budget, BudgetLimits.of(budget)
    if budget is not None and not same_terms(old.budget, budget):
        raise InvalidTerms(
            f"the old ledger had ε={old.budget.epsilon:g}, δ={old.budget.delta:g}, and starting over keeps its "
            "budget; give that one or none; nothing was changed"
        )
    return old.budget, old.limits


def _set_aside(files: LedgerFiles, name: str) -> None:
    """Move the old files into a folder of their own, where `Ledger.read` can still look at them."""
    evidence = files.directory / name
    if evidence.exists():
        # Set aside before the crash; what lies here now is the beginning of the new ledger.
        for path in files.all():
            path.unlink(missing_ok=True)
        return
    unfinished = files.directory / f"{name}.part"
    unfinished.mkdir(mode=0o700, exist_ok=True)
    for path in files.all():
        if path.exists():
            path.replace(unfinished / path.name)
    sync_directory(unfinished)
    unfinished.rename(evidence)
    sync_directory(files.directory)


def _written_plan(files: LedgerFiles, keys: LedgerKeys) -> _Plan:
    """What was decided, now or before a crash; by then it may be the only record of what was spent."""
    try:
        fields = parse(files.restart.read_bytes())
        plan = _Plan(Entry.from_body(take_text(fields, "opening").encode()), take_text(fields, "evidence"))
        opened = _opened(plan.opening)
        check_opening(opened)
    except (ValueError, TypeError, LedgerTampered) as error:
        raise tampered("the record of an interrupted start (ledger.restart) was changed") from error
    if opened.device_key != keys.public_key.hex():
        raise tampered("another device's keys began to start it over")
    return plan


def _is_outdated(plan: _Plan, files: LedgerFiles, keys: LedgerKeys) -> bool:
    """Whether the ledger has come further since this plan was made: then it was put back."""
    reached = mark_left(files, keys)
    if reached is BLANK:
        return False
    is_own = reached.opening == link(BEFORE_GENESIS, plan.opening.body()).hex()
    return reached.sequence > plan.opening.sequence + (1 if is_own else -1)


def _to_bytes(plan: _Plan) -> bytes:
    return canonical({"opening": plan.opening.body().decode("ascii"), "evidence": plan.evidence})


def _opened(entry: Entry) -> Opened:
    if not isinstance(entry.event, Opened):
        raise TypeError("not an opening entry")
    return entry.event
