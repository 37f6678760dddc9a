"""History cannot be altered, cut, re-ordered or set back without being noticed, and then there is no budget."""

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from privacy.accounting.limits import Spend
from privacy.errors import LedgerTampered
from privacy.keys import LedgerKeys
from privacy.ledger import Ledger
from privacy.ledger import checks as ledger_checks
from privacy.ledger.entries import BEFORE_GENESIS, Entry, Reserved, link
from privacy.ledger.files import signed_end
from privacy.ledger.state import LedgerState
from privacy.ledger.storage import HeadRow, Row
from tests.privacy.ledger_helpers import BUDGET, change, copy_of, filled, flipped, release, reserve, rows

NUM_ENTRIES = 200


@pytest.fixture(scope="module")
def long_ledger(tmp_path_factory, ledger_keys):
    return filled(tmp_path_factory.mktemp("long"), ledger_keys, NUM_ENTRIES)


@pytest.fixture
def copied(long_ledger, tmp_path):
    return copy_of(long_ledger, tmp_path / "copy")


def assert_tampered(directory, keys, what=""):
    """Neither the device nor a reader believes it, and the sentence says what a person can do."""
    with pytest.raises(LedgerTampered, match=rf"{what}.*counts as exhausted until a person decides: covey privacy"):
        Ledger.open(directory, keys)
    with pytest.raises(LedgerTampered), Ledger.read(directory) as reader:
        reader.verify()


def stored_rows(directory):
    return [Row(*row) for row in rows(directory, "SELECT seq, body, hash FROM entry ORDER BY seq")]


def test_untouched_ledger_is_believed(copied, ledger_keys):
    with Ledger.open(copied, ledger_keys) as ledger:
        assert ledger.verify().num_entries == len(stored_rows(copied)) >= NUM_ENTRIES - 1


def test_every_changed_byte_of_every_entry_is_noticed(long_ledger):
    stored = stored_rows(long_ledger)
    state = LedgerState.begin(stored[0])
    for row in stored[1:]:
        for offset in range(len(row.body)):
            with pytest.raises(LedgerTampered):
                state.follow(Row(row.sequence, flipped(row.body, offset), row.digest))
        for offset in range(len(row.digest)):
            with pytest.raises(LedgerTampered):
                state.follow(Row(row.sequence, row.body, flipped(row.digest, offset)))
        state.follow(row)


def test_every_changed_byte_of_the_opening_is_noticed(long_ledger):
    opening = stored_rows(long_ledger)[0]
    time_digits = range(opening.body.index(b'"at":') + 5, opening.body.index(b","))
    for offset in range(len(opening.body)):
        altered = flipped(opening.body, offset)
        with pytest.raises(LedgerTampered):
            LedgerState.begin(Row(0, altered, opening.digest))
        # The terms are signed themselves, so a hash that fits does not help; the time is covered by the head.
        if offset not in time_digits:
            with pytest.raises(LedgerTampered):
                LedgerState.begin(Row(0, altered, link(BEFORE_GENESIS, altered)))


def test_changed_entries_are_noticed_on_disk(copied, ledger_keys):
    for row in stored_rows(copied)[::20]:
        for column, value in (("body", row.body), ("hash", row.digest)):
            middle = len(value) // 2
            change(copied, f"UPDATE entry SET {column} = ? WHERE seq = ?", (flipped(value, middle), row.sequence))
            assert_tampered(copied, ledger_keys, f"entry {row.sequence} was changed")
            change(copied, f"UPDATE entry SET {column} = ? WHERE seq = ?", (value, row.sequence))
    Ledger.open(copied, ledger_keys).close()


def test_every_changed_byte_of_the_head_is_noticed(long_ledger):
    first, *rest = stored_rows(long_ledger)
    state = LedgerState.begin(first)
    for row in rest:
        state.follow(row)
    ((sequence, digest, signature),) = rows(long_ledger, "SELECT seq, hash, signature FROM head")
    altered: list[HeadRow | None] = [
        HeadRow(sequence, flipped(digest, offset), signature) for offset in range(len(digest))
    ]
    altered += [HeadRow(sequence, digest, flipped(signature, offset)) for offset in range(len(signature))]
    altered += [HeadRow(sequence - 1, digest, signature), HeadRow(sequence, digest, b""), None]
    for head in altered:
        with pytest.raises(LedgerTampered):
            state.check_head(head)
    state.check_head(HeadRow(sequence, digest, signature))


@pytest.mark.parametrize("column", ["seq", "hash", "signature"])
def test_changed_head_is_noticed_on_disk(copied, ledger_keys, column):
    ((value,),) = rows(copied, f"SELECT {column} FROM head")
    change(copied, f"UPDATE head SET {column} = ?", (value - 1 if column == "seq" else flipped(value, 31),))
    assert_tampered(copied, ledger_keys, "its end")


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM head",
        "UPDATE head SET one = 2",
        "INSERT INTO head SELECT 2, seq, hash, signature FROM head",
        "UPDATE head SET seq = 'none'",
        "DELETE FROM entry",
        "DELETE FROM entry WHERE seq = 0",
        "DELETE FROM entry WHERE seq = 100",
        "DELETE FROM entry WHERE seq > 150",
        "DELETE FROM entry WHERE seq = (SELECT max(seq) FROM entry)",
        "INSERT INTO entry SELECT seq + 500, body, hash FROM entry WHERE seq = 100",
        "INSERT INTO entry SELECT max(seq) + 1, body, hash FROM entry",
        "UPDATE entry SET body = CAST(body AS TEXT) WHERE seq = 100",
        "UPDATE entry SET body = 5 WHERE seq = 100",
        "UPDATE entry SET hash = NULL WHERE seq = 100",
        "UPDATE entry SET seq = seq + 1 WHERE seq = (SELECT max(seq) FROM entry)",
        "INSERT INTO answer SELECT seq, hash FROM entry WHERE seq = 0",
        "CREATE TRIGGER quiet AFTER INSERT ON entry BEGIN DELETE FROM answer; END",
        "CREATE VIEW seen AS SELECT * FROM entry",
        "CREATE INDEX faster ON entry (hash)",
        "DROP TABLE countersignature",
    ],
)
def test_missing_added_and_misplaced_rows_are_noticed(copied, ledger_keys, damage):
    with closing(sqlite3.connect(copied / "ledger.db")) as connection:
        if damage == "UPDATE entry SET hash = NULL WHERE seq = 100":
            connection.execute("PRAGMA writable_schema = ON")
            connection.execute("UPDATE sqlite_master SET sql = replace(sql, 'hash BLOB NOT NULL', 'hash BLOB')")
            connection.commit()
    change(copied, damage)
    assert_tampered(copied, ledger_keys)


def test_entries_in_another_order_are_noticed(copied, ledger_keys):
    change(copied, "UPDATE entry SET seq = -seq WHERE seq IN (50, 51)")
    change(copied, "UPDATE entry SET seq = 101 + seq WHERE seq < 0")
    assert_tampered(copied, ledger_keys, "entry 50 was changed")


def test_changed_answer_is_noticed_without_keys(copied):
    ((reserve_, sealed),) = rows(copied, "SELECT reserve, sealed FROM answer LIMIT 1")
    change(copied, "UPDATE answer SET sealed = ? WHERE reserve = ?", (flipped(sealed, 20), reserve_))
    with Ledger.read(copied) as reader, pytest.raises(LedgerTampered, match="stored answer"):
        reader.verify()


def test_cut_chain_with_a_matching_older_head_is_noticed(tmp_path, ledger_keys):
    filled(tmp_path, ledger_keys, 9)
    ((digest,),) = rows(tmp_path, "SELECT hash FROM entry WHERE seq = 4")
    change(tmp_path, "DELETE FROM answer WHERE reserve >= 4")
    change(tmp_path, "DELETE FROM entry WHERE seq > 4")
    change(tmp_path, "UPDATE head SET seq = 4, hash = ?", (digest,))
    assert_tampered(tmp_path, ledger_keys, "its end is not signed")


def test_forged_history_under_the_forgers_key_is_noticed(copied, ledger_keys, tmp_path):
    forger = LedgerKeys.generate()
    forged = filled(tmp_path / "forged", forger, 9)
    with Ledger.read(forged) as reader:
        assert reader.verify().num_entries == 9
    with pytest.raises(LedgerTampered, match="other keys"):
        Ledger.open(forged, ledger_keys)
    with pytest.raises(LedgerTampered, match="other keys"):
        Ledger.read(forged, device_key=ledger_keys.public_key)


def test_restored_old_database_is_noticed(tmp_path, ledger_keys):
    state = filled(tmp_path / "state", ledger_keys, 9)
    old = copy_of(state, tmp_path / "old")
    with Ledger.open(state, ledger_keys) as ledger:
        release(ledger, "one more")
    shutil.copy(old / "ledger.db", state / "ledger.db")
    assert_tampered(state, ledger_keys, "rolled back: it ends at entry 8, but had come to entry 10")


def test_rollback_is_noticed_by_the_anchor_and_not_by_luck(tmp_path, ledger_keys, monkeypatch):
    """The broken twins: a ledger that looks at neither its anchor nor its mark takes an old copy for the newest."""
    state = filled(tmp_path / "state", ledger_keys, 9)
    old = copy_of(state, tmp_path / "old")
    with Ledger.open(state, ledger_keys) as ledger:
        release(ledger, "one more")
    shutil.copy(old / "ledger.db", state / "ledger.db")
    monkeypatch.setattr(ledger_checks, "check_anchor", lambda state, notes: False)
    with pytest.raises(LedgerTampered, match="it was cut: it ends at entry 8, but had come to entry 10"):
        Ledger.open(state, ledger_keys)
    monkeypatch.setattr(ledger_checks, "check_mark", lambda state, reached: None)
    with Ledger.open(state, ledger_keys) as ledger:
        assert ledger.status().sequence == 8


def test_restored_opening_is_noticed(tmp_path, ledger_keys):
    state = tmp_path / "state"
    Ledger.open(state, ledger_keys, BUDGET).close()
    old = copy_of(state, tmp_path / "old")
    with Ledger.open(state, ledger_keys) as ledger:
        reserve(ledger, "epoch 1")
    shutil.copy(old / "ledger.db", state / "ledger.db")
    assert_tampered(state, ledger_keys, "rolled back")


def test_restored_old_anchor_alone_changes_nothing(tmp_path, ledger_keys):
    state = filled(tmp_path / "state", ledger_keys, 9)
    old = copy_of(state, tmp_path / "old")
    with Ledger.open(state, ledger_keys) as ledger:
        release(ledger, "one more")
        before = ledger.status()
    shutil.copy(old / "ledger.anchor", state / "ledger.anchor")
    with Ledger.open(state, ledger_keys) as ledger:
        assert ledger.status() == before


@pytest.mark.parametrize("lost", ["ledger.anchor", "ledger.db"])
def test_lost_file_is_noticed_and_not_replaced_by_a_fresh_one(copied, ledger_keys, lost):
    (copied / lost).unlink()
    assert_tampered(copied, ledger_keys)
    with pytest.raises(LedgerTampered):
        Ledger.open(copied, ledger_keys, BUDGET)
    assert not (copied / lost).exists()


@pytest.mark.parametrize("content", [b"", b"\0" * 8192, b"not a database" * 1000], ids=["empty", "zeros", "garbage"])
@pytest.mark.parametrize("name", ["ledger.anchor", "ledger.db"])
def test_overwritten_file_is_noticed(copied, ledger_keys, name, content):
    (copied / name).write_bytes(content)
    assert_tampered(copied, ledger_keys)


def test_log_without_its_database_is_noticed(tmp_path, ledger_keys):
    (tmp_path / "ledger.db-wal").write_bytes(b"what is left of it")
    with pytest.raises(LedgerTampered):
        Ledger.open(tmp_path, ledger_keys, BUDGET)


def test_anchor_of_another_ledger_is_noticed(copied, ledger_keys, tmp_path):
    other = filled(tmp_path / "other", ledger_keys, 9)
    shutil.copy(other / "ledger.anchor", copied / "ledger.anchor")
    assert_tampered(copied, ledger_keys, "anchor is damaged")


def test_rollback_under_an_open_ledger_ends_its_spending_for_good(tmp_path, ledger_keys):
    with Ledger.open(tmp_path, ledger_keys, BUDGET) as ledger:
        release(ledger, "epoch 1")
        change(tmp_path, "DELETE FROM answer")
        change(tmp_path, "UPDATE head SET seq = 1")
        change(tmp_path, "DELETE FROM entry WHERE seq = 2")
        for attempt in (lambda: reserve(ledger, "epoch 2"), lambda: reserve(ledger, "epoch 1"), ledger.status):
            with pytest.raises(LedgerTampered, match="exhausted"):
                attempt()


def test_foreign_entries_written_meanwhile_are_not_believed(tmp_path, ledger_keys):
    with Ledger.open(tmp_path, ledger_keys, BUDGET) as ledger:
        reserve(ledger, "epoch 1")
        change(tmp_path, "INSERT INTO entry SELECT seq + 1, body, hash FROM entry WHERE seq = 1")
        change(tmp_path, "UPDATE head SET seq = 2")
        with pytest.raises(LedgerTampered, match="entry 2 was changed"):
            reserve(ledger, "epoch 2")


def rechained(directory, keys, alter):
    """The whole chain written anew by someone who holds the keys but whose entries do not add up."""
    previous = BEFORE_GENESIS
    for row in stored_rows(directory):
        entry = alter(Entry.from_body(row.body))
        previous = link(previous, entry.body())
        change(directory, "UPDATE entry SET body = ?, hash = ? WHERE seq = ?", (entry.body(), previous, row.sequence))
    ledger = LedgerState.begin(stored_rows(directory)[0]).opened.ledger
    head = signed_end(keys, ledger, entry.sequence, previous)
    change(directory, "UPDATE head SET hash = ?, signature = ?", (head.digest, head.signature))


def test_sums_that_do_not_add_up_are_noticed_even_if_signed(tmp_path, ledger_keys):
    def cheaper(entry):
        if isinstance(entry.event, Reserved) and entry.sequence > 3:
            return replace(entry, event=replace(entry.event, spent=Spend(1)))
        return entry

    filled(tmp_path, ledger_keys, 9)
    rechained(tmp_path, ledger_keys, cheaper)
    with pytest.raises(LedgerTampered, match="the sums of entry 5 are wrong"):
        Ledger.read(tmp_path)
