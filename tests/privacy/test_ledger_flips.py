"""Whatever byte of the database file changes: it is noticed, or the ledger says exactly what it said before."""

import shutil
from itertools import cycle

import pytest

from privacy.errors import LedgerError
from privacy.ledger import Ledger
from privacy.receipt_desk import MemoryShelf, ReceiptDesk
from privacy.receipts import issue_receipt
from tests.privacy.ledger_helpers import BUDGET, dump, flipped, release, rows


@pytest.fixture(scope="module")
def small_ledger(tmp_path_factory, ledger_keys, server_key):
    directory = tmp_path_factory.mktemp("small")
    desk = ReceiptDesk("hospital", server_key, MemoryShelf())
    with Ledger.open(directory, ledger_keys, BUDGET) as ledger:
        for number in range(5):
            sent = release(ledger, f"epoch {number}", payload=b"noised" * (1 + 300 * number))
            accepted = desk.accept(issue_receipt(ledger, sent), sent.payload_hash, ledger.device_key)
            ledger.keep(accepted.countersignature)
        ledger.forget_answer(sent.request)
    return directory


def undetected_changes(directory, scratch, flips):
    """The flips of (offset, mask) that changed what the ledger says without anyone noticing."""
    original, expected = (directory / "ledger.db").read_bytes(), dump(directory)
    undetected = []
    for offset, mask in flips(len(original)):
        shutil.copytree(directory, scratch)
        (scratch / "ledger.db").write_bytes(flipped(original, offset, mask))
        try:
            with Ledger.read(scratch) as reader:
                reader.verify()
            if dump(scratch) != expected:
                undetected.append((offset, mask))
        except LedgerError:
            pass
        shutil.rmtree(scratch)
    return undetected


def test_flipped_bytes_of_the_file_are_noticed_or_harmless(small_ledger, tmp_path):
    def all_over_the_header_then_here_and_there(size):
        return zip([*range(100), *range(100, size, size // 150)], cycle([0x01, 0x80, 0xFF, 0x10, 0x04]))

    assert undetected_changes(small_ledger, tmp_path / "flip", all_over_the_header_then_here_and_there) == []


def test_harness_notices_an_unnoticed_change(small_ledger, tmp_path, monkeypatch):
    """The broken twin: a ledger that verifies nothing lets the changed bytes of an answer pass."""
    answer = rows(small_ledger, "SELECT sealed FROM answer")[0][0]
    offset = (small_ledger / "ledger.db").read_bytes().index(answer[:16])
    monkeypatch.setattr(Ledger, "verify", lambda self: None)
    assert undetected_changes(small_ledger, tmp_path / "flip", lambda size: [(offset, 1)]) == [(offset, 1)]


@pytest.mark.stress
def test_any_flipped_byte_of_the_file_is_noticed_or_harmless(small_ledger, tmp_path):
    def everywhere(size):
        return zip(range(size), cycle([0x01, 0x80, 0xFF, 0x10, 0x04]))

    assert undetected_changes(small_ledger, tmp_path / "flip", everywhere) == []
