"""Someone who holds a device's files and none of its keys: SQLite, an editor, and whatever lies on the disk now."""

from __future__ import annotations

import json
import shutil
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

from privacy.accounting.limits import Spend
from privacy.ledger.anchor import PAGE_BYTES, Note
from privacy.ledger.entries import Entry, Head, Released, Reserved
from privacy.receipts import Countersignature

_LOG_HEADER_BYTES, _FRAME_HEADER_BYTES = 32, 24


def delete(state: Path, pattern: str) -> None:
    for path in state.glob(pattern):
        if path.is_file():
            path.unlink()


def put_back(old: Path, state: Path, *names: str) -> None:
    """Older copies of these files in the place of the newest."""
    for name in names:
        for leftover in state.glob(f"{name}-*"):
            leftover.unlink()
        shutil.copy(old / name, state / name)


def countersigned_head(state: Path, server: str) -> Head:
    """An entry that the device once signed for a server, as the server handed it back."""
    with closing(sqlite3.connect(state / "ledger.db")) as database:
        row = database.execute("SELECT body FROM countersignature WHERE server = ?", (server.encode(),)).fetchone()
    seen = json.loads(row[0])
    return Head(seen["ledger"], seen["sequence"], bytes.fromhex(seen["head"]), bytes.fromhex(seen["head_signature"]))


def insert_countersignature(state: Path, given: Countersignature) -> None:
    with closing(sqlite3.connect(state / "ledger.db")) as database:
        database.execute("INSERT INTO countersignature VALUES (?, ?)", (given.server.encode(), given.to_json()))
        database.commit()


def older_note(state: Path) -> Head:
    """The end before the last, which the anchor's other page still holds."""
    content = (state / "ledger.anchor").read_bytes()
    notes = [Note.from_page(content[:PAGE_BYTES]), Note.from_page(content[PAGE_BYTES:])]
    return min((note.head for note in notes), key=lambda head: head.sequence)


def cut(state: Path, end: Head) -> None:
    """Let the ledger end at an entry, under a signature of it, and let the anchor say the same."""
    with closing(sqlite3.connect(state / "ledger.db", isolation_level=None)) as database:
        database.execute("DELETE FROM countersignature")
        database.execute("DELETE FROM head")
        database.execute("DELETE FROM entry WHERE seq > ?", (end.sequence,))
        entries = [Entry.from_body(body) for (body,) in database.execute("SELECT body FROM entry")]
        answered = {entry.event.reserve for entry in entries if isinstance(entry.event, Released)}
        for (reserve,) in database.execute("SELECT reserve FROM answer").fetchall():
            if reserve not in answered:
                database.execute("DELETE FROM answer WHERE reserve = ?", (reserve,))
        database.execute("INSERT INTO head VALUES (1, ?, ?, ?)", (end.sequence, end.digest, end.signature))
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    rebuild_anchor(state)


def rebuild_anchor(state: Path) -> None:
    """An anchor that says what the database says."""
    with closing(sqlite3.connect(state / "ledger.db")) as database:
        sequence, digest, signature = database.execute("SELECT seq, hash, signature FROM head").fetchone()
        entries = [Entry.from_body(body) for (body,) in database.execute("SELECT body FROM entry ORDER BY seq")]
    spent = [entry.event.spent for entry in entries if isinstance(entry.event, Reserved)] or [Spend()]
    opened = entries[0].event
    note = Note(Head(opened.ledger, sequence, digest, signature), spent[-1])  # type: ignore[union-attr]
    (state / "ledger.anchor").write_bytes(note.page() * 2)


def earlier_logs(log: Path) -> list[bytes]:
    """The log of a database cut after each of its commits but the last: what it held before."""
    content = log.read_bytes()
    (page_bytes,) = struct.unpack(">I", content[8:12])
    salts, step = content[16:24], _FRAME_HEADER_BYTES + page_bytes
    frames = range(_LOG_HEADER_BYTES, len(content) - step + 1, step)
    # The second word of a frame is the database's size where it ends a commit; the salts say that it is of this log.
    ends = [at + step for at in frames if content[at + 8 : at + 16] == salts and content[at + 4 : at + 8] != bytes(4)]
    return [content[:end] for end in ends[:-1]]


def with_log(live: Path, to: Path, name: str, log: bytes) -> Path:
    """A copy of a state as a kill would leave it, with another log."""
    shutil.copytree(live, to)
    (to / f"{name}-wal").write_bytes(log)
    (to / f"{name}-shm").unlink(missing_ok=True)
    return to
