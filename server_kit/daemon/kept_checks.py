"""Checks of what a server keeps: whether all of it can still be read, and if not, what is lost and what to do.

A start would meet the damage too, but one file at a time, and perhaps weeks later, when a cohort needs it.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from server_kit.checkpoints import OF_FEDERATION, of_cohort
from server_kit.daemon.check import Found, Verdict
from server_kit.daemon.cohort_worker import report_line
from server_kit.errors import CheckpointError, NoCheckpoint
from server_kit.store.examining import damaged_pages
from server_kit.store.opening import backend_of, open_store
from server_kit.store.protocol import CohortState, FoldState

if TYPE_CHECKING:
    from server_kit.checkpoints import Checkpoints
    from server_kit.daemon.federation_home import Home
    from server_kit.store.protocol import Store

_MEANINGS = {
    "receipts": "receipts of devices: what they have released can no longer be shown",
    "payloads": "updates that wait to be folded: their rounds go on without them",
    "summaries": "answers of devices: they are asked again, if they have budget left",
    "views": "what is known about devices: they are learned about anew",
    "feedback": "feedback that devices have not had: they explore again",
}


def check_pages(home: Home) -> Found:
    """The database finds nothing wrong with its own pages."""
    found = damaged_pages(backend_of(home.store_url))
    if found:
        more = f" and {len(found) - 1} more faults" if len(found) > 1 else ""
        lost = "devices, receipts or rounds may be lost; stop the server and restore a backup"
        yield Verdict.FAIL, f"the database is damaged ({found[0]}{more}): {lost}"
    else:
        yield Verdict.OK, "all pages of the database are whole"


def check_kept(home: Home) -> Found:
    """Everything that is sealed opens, and every update that waits has its bytes."""
    with closing(open_store(home.store_url, home.store_keys(), home.open_blobs())) as store:
        examined = store.examine()
    for table, count in examined.unreadable.items():
        meaning = _MEANINGS.get(table, "restore a backup")
        yield Verdict.FAIL, f"{count} values in {table} cannot be read ({meaning}); restore a backup"
    if examined.lost:
        todo = "restore the blobs from your backup; without them their rounds go on without these devices"
        yield Verdict.FAIL, f"the bytes of {len(examined.lost)} updates are missing or damaged in blobs/updates; {todo}"
    if not examined.unreadable and not examined.lost:
        yield Verdict.OK, "everything that is stored can be read"


def check_checkpoints(home: Home) -> Found:
    """Every checkpoint that the store names is there and whole."""
    checkpoints, faults = home.open_checkpoints(), 0
    with closing(home.open_store()) as store:
        named = _named(store)
        for line, name in named:
            if (sentence := _fault(checkpoints, store, line, name)) is not None:
                faults += 1
                yield Verdict.FAIL, sentence
    if not faults:
        yield Verdict.OK, f"all {len(named)} checkpoints that are needed can be read" if named else "no checkpoint yet"


def _named(store: Store) -> list[tuple[str, str]]:
    """What a start would read: by line, the name that the store has for it."""
    mine = store.federation()
    living = [each for each in store.all_cohorts() if each.state is not CohortState.MERGED]
    return [
        *([] if mine is None else [(OF_FEDERATION, mine)]),
        *((of_cohort(each.cohort), each.checkpoint) for each in living),
        *((report_line(each.cohort), each.report) for each in store.folds(FoldState.DONE)),
    ]


def _fault(checkpoints: Checkpoints, store: Store, line: str, name: str) -> str | None:
    try:
        checkpoints.read(name)
    except CheckpointError as error:
        if (line, name) not in _named(store):
            return None  # replaced while we looked
        reason = str(error).partition(";")[0]
    else:
        return None
    try:
        earlier = checkpoints.latest(line, name)
    except NoCheckpoint:
        return f"{reason}, and {line} has no other: its model is lost and the server cannot start; restore a backup"
    return (
        f"{reason}; the server would fall back to checkpoint {earlier.number} of {line} and lose the steps since; "
        "restore a backup if it is newer"
    )
