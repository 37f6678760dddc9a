"""A ledger from before there were marks is taken as it is, once; afterwards it is as hard to set back as any other."""

from dataclasses import replace

import pytest

from privacy.accounting.limits import Spend
from privacy.errors import LedgerTampered
from privacy.ledger import Ledger
from privacy.ledger.anchor import Anchor
from privacy.ledger.entries import FIRST_VERSION, Head, Opened
from privacy.ledger.mark import Mark, Reached
from privacy.ledger.state import check_opening
from privacy.ledger.storage import LedgerStorage
from privacy.receipt_desk import MemoryShelf, ReceiptDesk
from privacy.receipts import issue_receipt
from tests.hostile.ledger import thief
from tests.privacy.ledger_helpers import BUDGET, as_before_marks, copy_of, release, reserve, rows

NUM_RELEASES = 4


@pytest.fixture
def state(tmp_path, ledger_keys, server_key):
    """A closed ledger as the version before marks left it, seen by a server at its second entry."""
    directory, desk = tmp_path / "state", ReceiptDesk("hospital", server_key, MemoryShelf())
    with Ledger.open(directory, ledger_keys, BUDGET) as ledger:
        for number in range(NUM_RELEASES):
            release(ledger, f"epoch {number}", server="clinic" if number else "hospital")
    as_before_marks(directory, ledger_keys)
    with Ledger.open(copy_of(directory, tmp_path / "copy"), ledger_keys) as ledger:
        sent = ledger.stored(reserve(ledger, "epoch 0"))
        assert sent is not None
        seen = desk.accept(issue_receipt(ledger, sent), sent.payload_hash, ledger.device_key).countersignature
    thief.insert_countersignature(directory, seen)
    return directory


def test_it_is_what_the_version_before_wrote(state, ledger_keys):
    opened = Ledger.read(state).entries()[0].event
    assert isinstance(opened, Opened)
    assert (opened.version, b"lost" in opened.statement) == (FIRST_VERSION, False)
    assert not (state / "ledger.mark").exists()
    ((signature, digest),) = rows(state, "SELECT signature, hash FROM head")
    end = Head(opened.ledger, 2 * NUM_RELEASES, digest, signature)
    assert signature == ledger_keys.signing.sign(end.statement)


def test_it_opens_gets_its_mark_and_goes_on(state, ledger_keys):
    for number in range(2):
        with Ledger.open(state, ledger_keys, BUDGET) as ledger:
            assert ledger.status().spent == Spend((NUM_RELEASES + number) * 1_000)
            release(ledger, f"more {number}")
            assert ledger.verify().num_countersignatures == 1
    assert (state / "ledger.mark").exists()
    with Ledger.read(state) as reader:
        assert reader.verify().sequence == 2 * NUM_RELEASES + 4


def test_once_it_has_its_mark_an_old_end_is_not_taken_any_more(state, ledger_keys):
    Ledger.open(state, ledger_keys).close()
    thief.cut(state, thief.countersigned_head(state, "hospital"))
    with pytest.raises(LedgerTampered, match="its end is not signed by its device"):
        Ledger.open(state, ledger_keys)


def test_whoever_keeps_the_keys_and_knows_of_the_mark_notices_that_it_was_taken_away(state, ledger_keys):
    Ledger.open(state, ledger_keys).close()
    thief.cut(state, thief.countersigned_head(state, "hospital"))
    (state / "ledger.mark").unlink()
    with pytest.raises(LedgerTampered, match="its mark is missing"):
        Ledger.open(state, ledger_keys, is_known=True)


def test_a_key_file_does_not_know_and_then_an_old_ledger_can_be_cut(state, ledger_keys):
    """The limit that the threat model states: only for ledgers this old, and only without a vault."""
    Ledger.open(state, ledger_keys).close()
    thief.cut(state, thief.countersigned_head(state, "hospital"))
    (state / "ledger.mark").unlink()
    with Ledger.open(state, ledger_keys) as ledger:
        assert ledger.status().spent == Spend(1_000)


def test_a_ledger_that_was_opened_with_a_mark_is_never_believed_without(tmp_path, ledger_keys):
    with Ledger.open(tmp_path, ledger_keys, BUDGET) as ledger:
        release(ledger, "epoch 1")
    (tmp_path / "ledger.mark").unlink()
    with pytest.raises(LedgerTampered, match="its mark is missing"):
        Ledger.open(tmp_path, ledger_keys)


STEPS = [(LedgerStorage, "sign_end"), (Anchor, "sign_anew"), (Mark, "create")]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", STEPS, ids=[step for _, step in STEPS])
def test_interrupted_it_is_completed_by_the_next_opening(state, ledger_keys, monkeypatch, at, when):
    owner, step = at
    real = getattr(owner, step)

    def interrupted(*arguments):
        if when == "after":
            real(*arguments[isinstance(owner.__dict__[step], classmethod) :])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(owner, step, classmethod(interrupted) if owner is Mark else interrupted)
        with pytest.raises(KeyboardInterrupt):
            Ledger.open(state, ledger_keys)
    with Ledger.open(state, ledger_keys) as ledger:
        assert ledger.status().spent == Spend(NUM_RELEASES * 1_000)
        ledger.verify()


def test_an_upgrade_that_marks_first_loses_the_ledger_to_a_kill(state, ledger_keys, monkeypatch):
    """The broken twin: as soon as the mark is there, an end that was not signed anew is not believed."""

    def marks_first(files, keys, parts):
        Mark.create(files.mark, keys.marking, Reached.of(parts.state))
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("privacy.ledger.book.upgrade", marks_first)
        with pytest.raises(KeyboardInterrupt):
            Ledger.open(state, ledger_keys)
    with pytest.raises(LedgerTampered, match="not signed"):
        Ledger.open(state, ledger_keys)


def test_an_old_opening_cannot_be_passed_off_as_a_new_one(state, ledger_keys):
    """The version is part of what the device signed."""
    with Ledger.read(state) as reader:
        opened = reader.entries()[0].event
    assert isinstance(opened, Opened)
    check_opening(opened)
    with pytest.raises(LedgerTampered, match="its budget is not signed"):
        check_opening(replace(opened, version=FIRST_VERSION + 1))
