"""A server is shown its own releases: a small ledger in itself, in which forks, replays and set-backs show."""

import shutil

import pytest

from privacy.errors import LedgerTampered, ReceiptRefused, ReleaseRefused
from privacy.keys import LedgerKeys
from privacy.ledger import Ledger, start_over
from privacy.receipt_desk import MemoryShelf, ReceiptDesk
from privacy.receipts import Refusal, check_contact, issue_receipt
from privacy.reporting.ledger_view import read_ledger
from privacy.reporting.receipts_file import ReceiptsFile
from privacy.reporting.reconciliation import reconcile
from tests.privacy.ledger_helpers import BUDGET, copy_of, release, reserve

PLACES = {"hospital": "fl.hospital.example:8443", "clinic": "fl.clinic.example:8443"}


@pytest.fixture
def desks(server_key):
    return {server: ReceiptDesk(server, server_key, MemoryShelf()) for server in PLACES}


def opened(directory, keys, budget=None):
    """The ledger as each server is shown it."""
    whole = Ledger.open(directory, keys, budget)
    return whole, {server: whole.shown_at(place) for server, place in PLACES.items()}


def deliver(desk, ledger, subject, server):
    sent = release(ledger, subject, server=server)
    receipt = issue_receipt(ledger, sent)
    ledger.keep(desk.accept(receipt, sent.payload_hash, ledger.device_key).countersignature)
    return receipt


@pytest.fixture
def state(tmp_path, ledger_keys, desks):
    """A closed ledger of three releases to the hospital and two to the clinic, in turns."""
    whole, shown = opened(tmp_path / "state", ledger_keys, BUDGET)
    with whole:
        for number, server in enumerate(["hospital", "clinic", "hospital", "clinic", "hospital"]):
            deliver(desks[server], shown[server], f"epoch {number}", server)
    return tmp_path / "state"


def test_keys_and_names_are_of_one_server_and_always_the_same(ledger_keys):
    shown = [ledger_keys.shown_at(place) for place in (*PLACES.values(), *PLACES.values())]
    assert [key.ledger for key in shown[:2]] == [key.ledger for key in shown[2:]]
    assert len({key.ledger for key in shown} | {key.signing.public_key for key in shown}) == 4
    assert ledger_keys.public_key not in {key.signing.public_key for key in shown}
    other = LedgerKeys.generate().shown_at(PLACES["clinic"])
    assert other.ledger not in {key.ledger for key in shown}


def test_a_server_counts_only_its_own(state, ledger_keys, desks):
    whole, shown = opened(state, ledger_keys)
    with whole:
        receipts = [deliver(desks[server], shown[server], "more", server) for server in PLACES]
        assert [receipt.sequence for receipt in receipts] == [4, 3]
        for receipt, server in zip(receipts, PLACES, strict=True):
            assert receipt.ledger == ledger_keys.shown_at(PLACES[server]).ledger != whole.id
        assert whole.verify().num_countersignatures == 2


def test_a_receipt_is_the_same_after_reopening_and_for_no_other_server(state, ledger_keys):
    whole, shown = opened(state, ledger_keys)
    with whole:
        sent = shown["clinic"].stored(reserve(shown["clinic"], "epoch 1", server="clinic"))
        first = issue_receipt(shown["clinic"], sent)
        for other in (whole, shown["hospital"]):
            with pytest.raises(ReleaseRefused, match="another excerpt"):
                issue_receipt(other, sent)
    whole, shown = opened(state, ledger_keys)
    with whole:
        assert issue_receipt(shown["clinic"], sent) == first


def test_the_ledger_reads_the_same_without_keys(state, ledger_keys):
    with Ledger.read(state) as reader:
        reader.verify()
        numbers = {excerpt.ledger: (excerpt.number, excerpt.entries) for excerpt in reader.excerpts.values()}
    hospital, clinic = (ledger_keys.shown_at(place).ledger for place in PLACES.values())
    assert numbers == {hospital: (3, [2, 6, 10]), clinic: (2, [4, 8])}


def test_a_ledger_that_was_set_back_is_told_by_each_server_that_has_lost_something(
    state, tmp_path, ledger_keys, desks, server_key
):
    old = copy_of(state, tmp_path / "old")
    whole, shown = opened(state, ledger_keys)
    with whole:
        deliver(desks["clinic"], shown["clinic"], "more", "clinic")
    whole, shown = opened(old, ledger_keys)
    with whole:
        for server, ledger in shown.items():
            latest = desks[server].latest(ledger.device_key)
            if server == "hospital":
                check_contact(ledger, latest, server, server_key.public_key)
                continue
            with pytest.raises(LedgerTampered, match="server 'clinic' has seen release 3, which is not in it"):
                check_contact(ledger, latest, server, server_key.public_key)
    with pytest.raises(LedgerTampered, match="release 3"):
        Ledger.open(old, ledger_keys)


def test_a_ledger_in_which_an_excerpt_has_never_been_is_told_too(tmp_path, ledger_keys, desks, server_key):
    state = tmp_path / "state"
    Ledger.open(state, ledger_keys, BUDGET).close()
    old = copy_of(state, tmp_path / "old")
    whole, shown = opened(state, ledger_keys)
    with whole:
        deliver(desks["clinic"], shown["clinic"], "epoch 1", "clinic")
    whole, shown = opened(old, ledger_keys)
    latest = desks["clinic"].latest(shown["clinic"].device_key)
    with whole, pytest.raises(LedgerTampered, match="has seen release 1"):
        check_contact(shown["clinic"], latest, "clinic", server_key.public_key)
    with pytest.raises(LedgerTampered, match="about what is not in it"):
        Ledger.open(old, ledger_keys)
    opened_anew = start_over(old, ledger_keys, "set back")
    whole, shown = opened(old, ledger_keys)
    with whole:
        assert opened_anew.lost >= 1
        assert deliver(desks["clinic"], shown["clinic"], "after", "clinic").sequence > 1


def test_two_histories_are_told_by_the_server(state, tmp_path, ledger_keys, desks):
    old = copy_of(state, tmp_path / "old")
    whole, shown = opened(state, ledger_keys)
    with whole:
        deliver(desks["clinic"], shown["clinic"], "more", "clinic")
    whole, shown = opened(old, ledger_keys)
    with whole, pytest.raises(ReceiptRefused) as caught:
        deliver(desks["clinic"], shown["clinic"], "something else", "clinic")
    assert caught.value.reason is Refusal.FORKED


def test_numbers_go_on_after_starting_over(state, ledger_keys, desks):
    """Exactly, where every entry can be read."""
    (state / "ledger.anchor").unlink()
    start_over(state, ledger_keys, "lost the anchor")
    whole, shown = opened(state, ledger_keys)
    with whole:
        numbers = [deliver(desks[server], shown[server], "after", server).sequence for server in PLACES]
        check_all(whole, shown, desks)
    assert numbers == [4, 3]


def test_numbers_go_on_after_all_that_a_server_can_have_seen(state, ledger_keys, desks):
    """Where nothing can be read, every entry may have been a release to that server; the second time as well."""
    for attempt in range(2):
        (state / "ledger.db").unlink()
        start_over(state, ledger_keys, "lost the database", BUDGET)
        whole, shown = opened(state, ledger_keys)
        with whole:
            for server in PLACES:
                last = desks[server].latest(shown[server].device_key).sequence
                assert deliver(desks[server], shown[server], f"after {attempt}", server).sequence > last
            check_all(whole, shown, desks)


def check_all(whole, shown, desks):
    whole.verify()
    for server, ledger in shown.items():
        latest = desks[server].latest(ledger.device_key)
        check_contact(ledger, latest, server, latest.server_key)


def received(desks, ledger_keys):
    found = []
    for server, desk in desks.items():
        key = ledger_keys.shown_at(PLACES[server]).signing.public_key
        found += [desk._shelf.find(key, number) for number in range(20)]
    return ReceiptsFile("receipts", tuple(receipt for receipt in found if receipt is not None), ())


def test_receipts_are_matched_with_entries_by_what_servers_were_shown(state, ledger_keys, desks):
    result = reconcile([read_ledger(state)], received(desks, ledger_keys))
    assert (result.matched, result.findings, result.unchecked) == (5, (), {})


def test_what_does_not_match_is_found_as_before(state, tmp_path, ledger_keys, desks):
    old = copy_of(state, tmp_path / "old")
    whole, shown = opened(state, ledger_keys)
    with whole:
        deliver(desks["clinic"], shown["clinic"], "more", "clinic")
        release(shown["hospital"], "never sent", server="hospital")
    (finding,) = reconcile([read_ledger(state)], received(desks, ledger_keys)).findings
    assert finding.sentence == "server 'hospital' has no receipt of entry 14"
    (finding,) = reconcile([read_ledger(old)], received(desks, ledger_keys)).findings
    assert finding.sentence == "it ends at release 2 to it, but server 'clinic' has received release 3"
    shutil.rmtree(old)


def test_receipts_from_before_starting_over_are_older(state, ledger_keys, desks):
    (state / "ledger.anchor").unlink()
    start_over(state, ledger_keys, "lost the anchor")
    result = reconcile([read_ledger(state)], received(desks, ledger_keys))
    assert (result.matched, result.findings) == (0, ())
    assert "5 receipts from before" in result.notices[0].sentence
