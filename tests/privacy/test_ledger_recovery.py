"""Starting over is a person's decision: it keeps the evidence, the budget and every spend that can be believed."""

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from privacy.accounting.limits import Spend
from privacy.budget import PrivacyBudget
from privacy.errors import BudgetExhausted, InvalidTerms, LedgerTampered, LedgerUnavailable
from privacy.keys import LedgerKeys
from privacy.ledger import Ledger
from privacy.ledger import recovery as ledger_recovery
from privacy.ledger.entries import Decided, Opened
from privacy.ledger.recovery import start_over
from privacy.receipt_desk import MemoryShelf, ReceiptDesk
from privacy.receipts import check_contact, issue_receipt
from tests.privacy.ledger_helpers import BUDGET, change, copy_of, flipped, release, reserve, rows

REASON = "disk failed; reviewed by the privacy officer"
NUM_RELEASES = 10
SPENT = NUM_RELEASES * 1_000


@pytest.fixture
def state(tmp_path, ledger_keys):
    """A closed ledger with ten releases, numbers 2 to 21, and a quota."""
    directory = tmp_path / "state"
    with Ledger.open(directory, ledger_keys, BUDGET) as ledger:
        ledger.set_quota("clinic", 100_000)
        for number in range(NUM_RELEASES):
            release(ledger, f"epoch {number}", server=("hospital", "clinic")[number % 2])
    return directory


def change_entry(directory, sequence):
    ((body,),) = rows(directory, f"SELECT body FROM entry WHERE seq = {sequence}")
    change(directory, "UPDATE entry SET body = ? WHERE seq = ?", (flipped(body, 30), sequence))


def lose_the_database(directory):
    (directory / "ledger.db").unlink()


def lose_the_anchor(directory):
    (directory / "ledger.anchor").unlink()


def overwrite_half_of_the_database(directory):
    size = (directory / "ledger.db").stat().st_size
    with (directory / "ledger.db").open("r+b") as file:
        file.seek(size // 2)
        file.write(os.urandom(size - size // 2))


BREAKAGES = {
    "changed entry in the middle": lambda directory: change_entry(directory, 9),
    "changed last entry": lambda directory: change_entry(directory, 21),
    "changed first spend": lambda directory: change_entry(directory, 2),
    "deleted entry": lambda directory: change(directory, "DELETE FROM entry WHERE seq = 9"),
    "deleted head": lambda directory: change(directory, "DELETE FROM head"),
    "lost database": lose_the_database,
    "lost anchor": lose_the_anchor,
    "overwritten database": overwrite_half_of_the_database,
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_starting_over_keeps_budget_spend_and_numbers(state, ledger_keys, breakage):
    BREAKAGES[breakage](state)
    with pytest.raises(LedgerTampered):
        Ledger.open(state, ledger_keys)
    budget = BUDGET if breakage in {"lost database", "overwritten database"} else None
    opened = start_over(state, ledger_keys, REASON, budget)
    with Ledger.open(state, ledger_keys, BUDGET) as ledger:
        status = ledger.status()
        assert status.spent.pure_micro_epsilon == SPENT
        assert status.sequence > 21
        assert ledger.verify().num_entries == 2
        first, second = ledger.entries()
        assert (first.event, second.event) == (opened, Decided(REASON))
        release(ledger, "epoch 0")
        assert ledger.status().spent.pure_micro_epsilon == SPENT + 1_000


@pytest.mark.parametrize("breakage", ["changed entry in the middle", "deleted head", "lost anchor"])
def test_quotas_and_servers_spends_are_taken_over(state, ledger_keys, breakage):
    BREAKAGES[breakage](state)
    start_over(state, ledger_keys, REASON)
    with Ledger.open(state, ledger_keys) as ledger:
        assert ledger.status().quotas == {"clinic": 100_000}
        assert ledger.status().spent_by_server["hospital"] == Spend(SPENT // 2)
        with pytest.raises(BudgetExhausted, match="quota"):
            reserve(ledger, "too much", 200_000, server="clinic")


def test_budget_is_needed_where_it_cannot_be_read_any_more(state, ledger_keys):
    change_entry(state, 0)
    with pytest.raises(InvalidTerms, match="give one to start over with"):
        start_over(state, ledger_keys, REASON)
    with pytest.raises(LedgerTampered):
        Ledger.open(state, ledger_keys)
    assert start_over(state, ledger_keys, REASON, BUDGET).carried == Spend(SPENT)


def test_another_budget_than_the_old_one_is_refused(state, ledger_keys):
    change_entry(state, 9)
    with pytest.raises(InvalidTerms, match="keeps its budget"):
        start_over(state, ledger_keys, REASON, PrivacyBudget(epsilon=80, delta=1e-6))


def test_forged_budget_is_not_taken_over(state, ledger_keys):
    """Terms count only under the device's own signature."""
    forger = LedgerKeys.generate()
    forged = state.with_name("forged")
    Ledger.open(forged, forger, PrivacyBudget(epsilon=1_000, delta=1e-6)).close()
    ((body, digest),) = rows(forged, "SELECT body, hash FROM entry")
    change(state, "UPDATE entry SET body = ?, hash = ? WHERE seq = 0", (body, digest))
    with pytest.raises(InvalidTerms, match="give one to start over with"):
        start_over(state, ledger_keys, REASON)


def test_restored_old_copy_does_not_refund_by_starting_over(state, ledger_keys, tmp_path):
    old = copy_of(state, tmp_path / "old")
    with Ledger.open(state, ledger_keys) as ledger:
        reserve(ledger, "one more", 500_000)
    shutil.copy(old / "ledger.db", state / "ledger.db")
    assert start_over(state, ledger_keys, REASON).carried == Spend(SPENT + 500_000)


def test_broken_files_are_kept_readable_and_named(state, ledger_keys):
    change_entry(state, 9)
    before = {name: (state / name).read_bytes() for name in ("ledger.anchor", "ledger.db")}
    opened = start_over(state, ledger_keys, REASON)
    (evidence,) = state.glob("ledger.broken-*")
    assert {name: (evidence / name).read_bytes() for name in before} == before
    assert dict(opened.predecessor) == {name: hashlib.sha256(content).hexdigest() for name, content in before.items()}
    with pytest.raises(LedgerTampered, match="entry 9 was changed"):
        Ledger.read(evidence)


def test_intact_ledger_is_not_started_over(state, ledger_keys, tmp_path):
    with pytest.raises(InvalidTerms, match="intact"):
        start_over(state, ledger_keys, REASON)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidTerms, match="no ledger"):
        start_over(tmp_path / "empty", ledger_keys, REASON, BUDGET)
    with Ledger.open(state, ledger_keys) as ledger:
        assert ledger.status().spent.pure_micro_epsilon == SPENT


@pytest.mark.parametrize("reason", ["", "two\nlines"])
def test_decision_needs_a_reason(state, ledger_keys, reason):
    change_entry(state, 9)
    with pytest.raises(InvalidTerms, match="reasons"):
        start_over(state, ledger_keys, reason)


def test_starting_over_twice_still_adds_up(state, ledger_keys):
    change_entry(state, 9)
    start_over(state, ledger_keys, REASON)
    with Ledger.open(state, ledger_keys) as ledger:
        reserve(ledger, "in between", 7)
        last = ledger.status().sequence
    change_entry(state, last)
    lose_the_anchor(state)
    opened = start_over(state, ledger_keys, "once more")
    # The changed entry itself cannot be believed any more, and the anchor that knew it is gone; the mark knows it too.
    assert opened.carried == Spend(SPENT + 7)
    assert len(list(state.glob("ledger.broken-*"))) == 2


def test_starting_over_with_new_keys_still_carries_the_spend(state):
    """A device that lost its keys enrols anew, but what it spent stays spent."""
    opened = start_over(state, LedgerKeys.generate(), REASON, BUDGET)
    assert opened.carried == Spend(SPENT)


def test_interrupted_while_setting_files_aside_nothing_is_lost(state, ledger_keys, monkeypatch):
    change_entry(state, 9)
    real, moved = Path.replace, []

    def interrupted(self, target):
        if "broken" in str(target):
            moved.append(self.name)
            if len(moved) == 2:
                raise KeyboardInterrupt
        return real(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            start_over(state, ledger_keys, REASON)
    with pytest.raises(LedgerTampered, match="interrupted"):
        Ledger.open(state, ledger_keys, BUDGET)
    assert start_over(state, ledger_keys, REASON).carried == Spend(SPENT)
    (evidence,) = state.glob("ledger.broken-*")
    with pytest.raises(LedgerTampered, match="entry 9 was changed"):
        Ledger.read(evidence)


STEPS = ["write_durably", "_set_aside", "create", "sync_directory"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_interrupted_start_is_completed_and_loses_nothing(state, ledger_keys, monkeypatch, step, when):
    change_entry(state, 9)
    real = getattr(ledger_recovery, step)

    def interrupted(*arguments):
        if when == "after":
            real(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ledger_recovery, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            start_over(state, ledger_keys, REASON)
    # Removing the record is the last step; the sync after it may be lost without harm.
    if (state / "ledger.restart").exists() or not (state / "ledger.db").exists() or step == "write_durably":
        with pytest.raises(LedgerTampered):
            Ledger.open(state, ledger_keys, BUDGET)
        start_over(state, ledger_keys, REASON)
    with Ledger.open(state, ledger_keys) as ledger:
        assert ledger.status().spent.pure_micro_epsilon == SPENT
        assert isinstance(ledger.entries()[0].event, Opened)
    (evidence,) = state.glob("ledger.broken-*")
    assert {path.name for path in evidence.iterdir()} >= {"ledger.db", "ledger.anchor"}
    assert not (state / "ledger.restart").exists()


def test_altered_record_of_an_interrupted_start_is_not_believed(state, ledger_keys, monkeypatch):
    change_entry(state, 9)
    with monkeypatch.context() as patched:
        patched.setattr(ledger_recovery, "create", None)
        with pytest.raises(TypeError):
            start_over(state, ledger_keys, REASON)
    record = (state / "ledger.restart").read_bytes()
    assert b'carried\\":[10000,0,0]' in record
    (state / "ledger.restart").write_bytes(record.replace(b'carried\\":[10000,0,0]', b'carried\\":[0,0,0]'))
    with pytest.raises(LedgerTampered, match=r"ledger\.restart"):
        start_over(state, ledger_keys, REASON)


def plan_of_a_start(state, ledger_keys, monkeypatch):
    """The record of a start, kept by someone before the start removed it."""
    with monkeypatch.context() as patched:
        patched.setattr(ledger_recovery, "create", None)
        with pytest.raises(TypeError):
            start_over(state, ledger_keys, REASON)
    kept = (state / "ledger.restart").read_bytes()
    start_over(state, ledger_keys, REASON)
    return kept


@pytest.mark.parametrize("starts_since", [0, 1])
def test_record_of_an_earlier_start_refunds_nothing(state, ledger_keys, monkeypatch, starts_since):
    """Put back, it would begin again with what had been spent then; the mark knows better."""
    change_entry(state, 9)
    kept = plan_of_a_start(state, ledger_keys, monkeypatch)
    with Ledger.open(state, ledger_keys) as ledger:
        reserve(ledger, "since", 500_000)
    if starts_since:
        (state / "ledger.anchor").unlink()
        start_over(state, ledger_keys, REASON)
    (state / "ledger.restart").write_bytes(kept)
    with pytest.raises(LedgerTampered, match="interrupted"):
        Ledger.open(state, ledger_keys)
    assert start_over(state, ledger_keys, REASON).carried == Spend(SPENT + 500_000)


def test_ledger_open_elsewhere_does_not_book_into_the_evidence(state, ledger_keys):
    with Ledger.open(state, ledger_keys) as running:
        change_entry(state, 9)
        start_over(state, ledger_keys, REASON)
        with pytest.raises(LedgerUnavailable, match="was replaced while it was open"):
            reserve(running, "too late")
    with Ledger.open(state, ledger_keys) as ledger:
        assert ledger.status().spent.pure_micro_epsilon == SPENT


def test_server_accepts_the_continued_ledger_and_contact_is_fine(state, ledger_keys, server_key):
    desk = ReceiptDesk("hospital", server_key, MemoryShelf())
    with Ledger.open(state, ledger_keys) as ledger:
        sent = release(ledger, "seen by the server")
        ledger.keep(desk.accept(issue_receipt(ledger, sent), sent.payload_hash, ledger.device_key).countersignature)
    change_entry(state, 9)
    start_over(state, ledger_keys, REASON)
    with Ledger.open(state, ledger_keys) as ledger:
        check_contact(ledger, desk.latest(ledger.device_key), "hospital", server_key.public_key)
        sent = release(ledger, "after starting over")
        accepted = desk.accept(issue_receipt(ledger, sent), sent.payload_hash, ledger.device_key)
        check_contact(ledger, accepted.countersignature, "hospital", server_key.public_key)


def test_rollback_found_at_contact_can_be_decided_and_numbers_go_on_after_the_servers(
    state, ledger_keys, server_key, tmp_path
):
    desk = ReceiptDesk("hospital", server_key, MemoryShelf())
    old = copy_of(state, tmp_path / "old")
    with Ledger.open(state, ledger_keys) as ledger:
        for number in range(3):
            sent = release(ledger, f"later {number}")
            desk.accept(issue_receipt(ledger, sent), sent.payload_hash, ledger.device_key)
    latest = desk.latest(ledger_keys.public_key)
    assert latest is not None
    with Ledger.open(old, ledger_keys) as ledger, pytest.raises(LedgerTampered):
        check_contact(ledger, latest, "hospital", server_key.public_key)
    start_over(old, ledger_keys, REASON)
    with Ledger.open(old, ledger_keys) as ledger:
        assert ledger.entries()[0].sequence == latest.sequence + 1
        check_contact(ledger, latest, "hospital", server_key.public_key)
        sent = release(ledger, "after starting over")
        assert not desk.accept(issue_receipt(ledger, sent), sent.payload_hash, ledger.device_key).repeated
