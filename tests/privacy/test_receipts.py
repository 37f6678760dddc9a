"""A server counts each release once and in order, and a ledger that was set back is found out at contact."""

import threading
from dataclasses import replace
from fractions import Fraction

import pytest

from privacy.budget import NeighbouringRelation, PrivacyCost, PrivacyUnit, SampledGaussian
from privacy.errors import LedgerTampered, ReceiptRefused, ReleaseRefused
from privacy.keys import LedgerKeys, SigningKey
from privacy.ledger import Ledger
from privacy.receipt_desk import MemoryShelf, ReceiptDesk
from privacy.receipts import (
    Countersignature,
    Receipt,
    Refusal,
    check_contact,
    issue_receipt,
    receipts_from_lines,
    receipts_to_lines,
    verify_countersignature,
)
from privacy.release import Answer
from tests.privacy.ledger_helpers import BUDGET, change, copy_of, flipped, release, reserve, rows

SERVER = "hospital"


@pytest.fixture
def desk(server_key):
    return ReceiptDesk(SERVER, server_key, MemoryShelf())


def deliver(desk, ledger, sent):
    """Send a release to the desk and keep what comes back."""
    accepted = desk.accept(issue_receipt(ledger, sent), sent.payload_hash, ledger.device_key)
    ledger.keep(accepted.countersignature)
    return accepted


def assert_refused(reason, desk, receipt, payload_hash, device_key):
    with pytest.raises(ReceiptRefused) as caught:
        desk.accept(receipt, payload_hash, device_key)
    assert caught.value.reason == reason


def test_receipt_is_countersigned_and_kept(ledger, desk, server_key, tmp_path):
    accepted = deliver(desk, ledger, release(ledger, "epoch 1"))
    assert not accepted.repeated
    verify_countersignature(accepted.countersignature, SERVER, server_key.public_key)
    assert ledger.verify().num_countersignatures == 1
    with Ledger.read(tmp_path / "state") as reader:
        assert reader.verify().num_countersignatures == 1


def test_receipt_says_what_the_ledger_says(ledger):
    sent = release(ledger, "epoch 1")
    receipt = issue_receipt(ledger, sent)
    assert (receipt.sequence, receipt.mechanism, receipt.cost) == (sent.sequence, sent.mechanism, sent.cost)
    assert (receipt.payload_hash, receipt.request, receipt.head.hex()) == (sent.payload_hash, sent.request, sent.head)
    assert (receipt.ledger, receipt.device_key) == (ledger.id, ledger.device_key)


def test_retry_after_a_lost_acknowledgement_is_answered_alike_and_counted_once(ledger, desk):
    sent = release(ledger, "epoch 1")
    answers = [deliver(desk, ledger, sent) for _ in range(5)]
    assert [answer.repeated for answer in answers] == [False, True, True, True, True]
    assert len({answer.countersignature for answer in answers}) == 1


def test_same_release_has_the_same_receipt_after_reopening(tmp_path, ledger_keys):
    with Ledger.open(tmp_path, ledger_keys, BUDGET) as ledger:
        before = issue_receipt(ledger, release(ledger, "epoch 1"))
    with Ledger.open(tmp_path, ledger_keys) as ledger:
        release(ledger, "epoch 2")
        again = ledger.stored(reserve(ledger, "epoch 1"))
        assert again is not None
        assert issue_receipt(ledger, again).to_json() == before.to_json()


def test_replayed_and_reordered_receipts_are_refused(ledger, desk):
    first, second, third = (release(ledger, f"epoch {number}") for number in range(3))
    deliver(desk, ledger, first)
    deliver(desk, ledger, third)
    assert_refused(Refusal.REPLAYED, desk, issue_receipt(ledger, first), first.payload_hash, ledger.device_key)
    assert_refused(Refusal.REORDERED, desk, issue_receipt(ledger, second), second.payload_hash, ledger.device_key)


def test_receipt_for_another_server_is_refused(ledger, desk):
    sent = release(ledger, "epoch 1", server="clinic")
    assert_refused(Refusal.FOREIGN, desk, issue_receipt(ledger, sent), sent.payload_hash, ledger.device_key)


def test_receipt_of_another_device_is_refused(ledger, desk):
    sent = release(ledger, "epoch 1")
    enrolled = LedgerKeys.generate().public_key
    assert_refused(Refusal.FOREIGN, desk, issue_receipt(ledger, sent), sent.payload_hash, enrolled)


def test_receipt_for_other_bytes_is_refused(ledger, desk):
    receipt = issue_receipt(ledger, release(ledger, "epoch 1"))
    assert_refused(Refusal.OTHER_PAYLOAD, desk, receipt, "0" * 64, ledger.device_key)


def test_second_ledger_under_the_same_key_is_refused(ledger, desk, tmp_path, ledger_keys):
    """Deleting everything does not give a device a fresh budget towards a server that knows it."""
    deliver(desk, ledger, release(ledger, "epoch 1"))
    with Ledger.open(tmp_path / "fresh", ledger_keys, BUDGET) as fresh:
        for number in range(3):
            sent = release(fresh, f"epoch {number}")
        assert_refused(Refusal.FOREIGN, desk, issue_receipt(fresh, sent), sent.payload_hash, fresh.device_key)


def test_altered_receipts_are_forged(ledger, desk):
    sent = release(ledger, "epoch 1")
    receipt = issue_receipt(ledger, sent)
    cheaper = PrivacyCost(PrivacyUnit.RECORD, NeighbouringRelation.REPLACE, pure_micro_epsilon=(1,))
    altered = [
        replace(receipt, ledger="0" * 32),
        replace(receipt, sequence=receipt.sequence + 1),
        replace(receipt, mechanism="clipped_update"),
        replace(receipt, cost=cheaper),
        replace(receipt, request="0" * 64),
        replace(receipt, head=bytes(32)),
        replace(receipt, head_signature=bytes(64)),
        replace(receipt, signature=b""),
        replace(receipt, signature=flipped(receipt.signature, 3)),
    ]
    for forgery in altered:
        assert_refused(Refusal.FORGED, desk, forgery, sent.payload_hash, ledger.device_key)
    assert desk.latest(ledger.device_key) is None


def test_every_changed_byte_of_a_receipt_is_refused(ledger, desk):
    sent = release(ledger, "epoch 1")
    line = issue_receipt(ledger, sent).to_json()
    for offset in range(len(line)):
        with pytest.raises(ReceiptRefused):
            desk.accept(Receipt.from_json(flipped(line, offset)), sent.payload_hash, ledger.device_key)


def test_two_histories_of_one_device_are_found_out_by_the_server(tmp_path, ledger_keys, desk):
    """The whole state is set back, and the device goes on as if nothing had been sent."""
    state = tmp_path / "state"
    Ledger.open(state, ledger_keys, BUDGET).close()
    old = copy_of(state, tmp_path / "old")
    with Ledger.open(state, ledger_keys) as ledger:
        deliver(desk, ledger, release(ledger, "epoch 1"))
    with Ledger.open(old, ledger_keys) as ledger:
        sent = release(ledger, "epoch 1 once more")
        assert_refused(Refusal.FORKED, desk, issue_receipt(ledger, sent), sent.payload_hash, ledger.device_key)


def test_restored_copy_of_everything_is_found_out_at_contact_and_stays_so(tmp_path, ledger_keys, desk, server_key):
    state = tmp_path / "state"
    with Ledger.open(state, ledger_keys, BUDGET) as ledger:
        deliver(desk, ledger, release(ledger, "epoch 1"))
    old = copy_of(state, tmp_path / "old")
    with Ledger.open(state, ledger_keys) as ledger:
        deliver(desk, ledger, release(ledger, "epoch 2"))
        latest = desk.latest(ledger.device_key)
        check_contact(ledger, latest, SERVER, server_key.public_key)
    with Ledger.open(old, ledger_keys) as ledger:
        with pytest.raises(LedgerTampered, match="server 'hospital' has seen entry 4, which is not in it"):
            check_contact(ledger, latest, SERVER, server_key.public_key)
        with pytest.raises(LedgerTampered):
            reserve(ledger, "epoch 3")
    with pytest.raises(LedgerTampered, match="rolled back"):
        Ledger.open(old, ledger_keys)


def test_restored_copy_that_has_grown_past_the_servers_entry_is_found_out_too(tmp_path, ledger_keys, desk, server_key):
    state = tmp_path / "state"
    Ledger.open(state, ledger_keys, BUDGET).close()
    old = copy_of(state, tmp_path / "old")
    with Ledger.open(state, ledger_keys) as ledger:
        deliver(desk, ledger, release(ledger, "epoch 1"))
    with Ledger.open(old, ledger_keys) as ledger:
        for number in range(5):
            release(ledger, f"other {number}")
        with pytest.raises(LedgerTampered, match="has seen entry 2"):
            check_contact(ledger, desk.latest(ledger.device_key), SERVER, server_key.public_key)


def test_first_contact_is_fine(ledger, desk, server_key):
    check_contact(ledger, desk.latest(ledger.device_key), SERVER, server_key.public_key)


def test_countersignature_of_another_server_or_key_is_not_kept(ledger, desk, server_key):
    sent = release(ledger, "epoch 1")
    given = desk.accept(issue_receipt(ledger, sent), sent.payload_hash, ledger.device_key).countersignature
    forged = replace(given, signature=flipped(given.signature, 0))
    for countersignature, server, key, reason in [
        (given, "clinic", server_key.public_key, Refusal.FOREIGN),
        (given, SERVER, SigningKey.generate().public_key, Refusal.FOREIGN),
        (forged, SERVER, server_key.public_key, Refusal.FORGED),
        (replace(given, sequence=99), SERVER, server_key.public_key, Refusal.FORGED),
    ]:
        with pytest.raises(ReceiptRefused) as caught:
            check_contact(ledger, countersignature, server, key)
        assert caught.value.reason == reason
    assert ledger.verify().num_countersignatures == 0


def test_server_cannot_claim_a_rollback_that_never_was(ledger, server_key):
    """Only the device's own signature of an entry proves that the entry was there."""
    release(ledger, "epoch 1")
    unsigned = Countersignature(SERVER, server_key.public_key, ledger.id, 1000, bytes(32), bytes(64))
    lie = replace(unsigned, signature=server_key.sign(unsigned.statement))
    verify_countersignature(lie, SERVER, server_key.public_key)
    with pytest.raises(ReceiptRefused, match="never signed"):
        check_contact(ledger, lie, SERVER, server_key.public_key)
    reserve(ledger, "epoch 2")


def test_countersignature_that_nobody_signed_is_not_kept(ledger, desk):
    """It would otherwise stand in the ledger as a changed one and end its life."""
    sent = release(ledger, "epoch 1")
    given = desk.accept(issue_receipt(ledger, sent), sent.payload_hash, ledger.device_key).countersignature
    with pytest.raises(ReceiptRefused, match="not signed by its server"):
        ledger.keep(replace(given, signature=bytes(64)))
    assert ledger.verify().num_countersignatures == 0


def test_countersignature_about_another_ledger_is_not_kept(ledger, desk, tmp_path, ledger_keys):
    with Ledger.open(tmp_path / "other", ledger_keys, BUDGET) as other:
        foreign = deliver(desk, other, release(other, "epoch 1")).countersignature
    with pytest.raises(ReceiptRefused, match="another ledger"):
        ledger.keep(foreign)


def test_older_countersignature_does_not_replace_a_newer_one(ledger, desk, tmp_path):
    first = deliver(desk, ledger, release(ledger, "epoch 1")).countersignature
    second = deliver(desk, ledger, release(ledger, "epoch 2")).countersignature
    ledger.keep(first)
    ((kept,),) = rows(tmp_path / "state", "SELECT body FROM countersignature")
    assert Countersignature.from_json(kept) == second


def test_an_acknowledged_answer_is_forgotten_with_what_proves_it(ledger, desk):
    sent, other = release(ledger, "epoch 1"), release(ledger, "epoch 2")
    accepted = desk.accept(issue_receipt(ledger, sent), sent.payload_hash, ledger.device_key)
    lie = replace(accepted.countersignature, signature=bytes(64))
    with pytest.raises(ReceiptRefused):
        ledger.keep(lie, sent.request)
    assert len(ledger._storage.answered()) == 2
    ledger.keep(accepted.countersignature, sent.request)
    assert ledger._storage.countersignatures() == {SERVER: accepted.countersignature.to_json()}
    assert [bool(booking and booking.is_kept) for booking in ledger.bookings([sent.request, other.request])] == [
        False,
        True,
    ]
    with pytest.raises(ReleaseRefused):
        ledger.keep(accepted.countersignature, "a request that was never answered")
    assert ledger.verify().num_answers == 1


def test_an_acknowledgement_may_wait_until_another_answer_is_stored(ledger, desk, tmp_path):
    sent = release(ledger, "epoch 1")
    given = desk.accept(issue_receipt(ledger, sent), sent.payload_hash, ledger.device_key).countersignature
    ledger.keep(given, sent.request, later=True)
    assert [booking.is_kept for booking in ledger.bookings([sent.request])] == [False]
    assert ledger.is_to_be_written(sent.request)
    assert len(rows(tmp_path / "state", "SELECT reserve FROM answer")) == 1
    assert rows(tmp_path / "state", "SELECT body FROM countersignature") == []
    booked = reserve(ledger, "epoch 2")
    assert ledger.is_to_be_written(sent.request)
    assert len(rows(tmp_path / "state", "SELECT reserve FROM answer")) == 1
    release(ledger, "epoch 2")
    assert rows(tmp_path / "state", "SELECT reserve FROM answer") == [(booked.sequence,)]
    assert rows(tmp_path / "state", "SELECT body FROM countersignature") == [(given.to_json(),)]
    assert not ledger.is_to_be_written(sent.request)
    ledger.verify()


def test_an_answer_takes_the_place_of_the_one_that_is_forgotten_with_it(ledger, desk, tmp_path):
    """A place that was freed in a transaction of its own would be overwritten twice."""
    for number in range(3):
        booked = reserve(ledger, f"epoch {number}")
        assert rows(tmp_path / "state", "PRAGMA freelist_count") == [(0,)]
        sent = ledger.settle(booked, Answer(bytes(30_000)))
        given = desk.accept(issue_receipt(ledger, sent), sent.payload_hash, ledger.device_key).countersignature
        ledger.keep(given, sent.request, later=True)
    assert rows(tmp_path / "state", "SELECT reserve FROM answer") == [(booked.sequence,)]


def test_what_waits_while_another_is_booked_is_sent_again_after_a_kill(ledger, desk, ledger_keys, tmp_path):
    sent = release(ledger, "epoch 1")
    given = desk.accept(issue_receipt(ledger, sent), sent.payload_hash, ledger.device_key).countersignature
    ledger.keep(given, sent.request, later=True)
    reserve(ledger, "epoch 2")
    with Ledger.open(tmp_path / "state", ledger_keys) as other:  # as it is after a kill
        (booking,) = other.bookings([sent.request])
        assert booking is not None
        assert other.stored(booking.reservation) == sent


@pytest.mark.parametrize("ending", [Ledger.write_acknowledged, Ledger.close])
def test_an_acknowledgement_that_waits_is_written_when_asked_for_and_at_the_end(ledger, desk, tmp_path, ending):
    sent = release(ledger, "epoch 1")
    given = desk.accept(issue_receipt(ledger, sent), sent.payload_hash, ledger.device_key).countersignature
    ledger.keep(given, sent.request, later=True)
    ending(ledger)
    assert rows(tmp_path / "state", "SELECT reserve FROM answer") == []
    assert rows(tmp_path / "state", "SELECT body FROM countersignature") == [(given.to_json(),)]


def test_only_the_last_release_may_wait_and_a_lie_about_it_may_not(ledger, desk, tmp_path):
    first, second = release(ledger, "epoch 1"), release(ledger, "epoch 2")
    seen = [desk.accept(issue_receipt(ledger, each), each.payload_hash, ledger.device_key) for each in (first, second)]
    ledger.keep(seen[0].countersignature, first.request, later=True)
    assert len(rows(tmp_path / "state", "SELECT reserve FROM answer")) == 1
    with pytest.raises(ReceiptRefused):
        ledger.keep(replace(seen[1].countersignature, signature=bytes(64)), second.request, later=True)
    with pytest.raises(ReleaseRefused):
        ledger.keep(seen[1].countersignature, "a request that was never answered", later=True)
    assert [booking.is_kept for booking in ledger.bookings([first.request, second.request])] == [False, True]


def test_what_waits_survives_another_process_that_writes(ledger, desk, ledger_keys, tmp_path):
    sent = release(ledger, "epoch 1")
    given = desk.accept(issue_receipt(ledger, sent), sent.payload_hash, ledger.device_key).countersignature
    ledger.keep(given, sent.request, later=True)
    with Ledger.open(tmp_path / "state", ledger_keys) as other:
        assert [bool(booking and booking.is_kept) for booking in other.bookings([sent.request])] == [True]
        reserve(other, "epoch 2")
    assert [booking.is_kept for booking in ledger.bookings([sent.request])] == [False]
    ledger.write_acknowledged()
    assert rows(tmp_path / "state", "SELECT reserve FROM answer") == []
    ledger.verify()


def test_a_signature_of_ones_own_last_entry_is_believed_only_whole(ledger, desk):
    """The ledger does not verify what it signed itself; anything else it does."""
    sent = release(ledger, "epoch 1")
    given = desk.accept(issue_receipt(ledger, sent), sent.payload_hash, ledger.device_key).countersignature
    assert given.entry == ledger._session.signed
    for altered in (
        replace(given, head_signature=bytes(64)),
        replace(given, sequence=given.sequence + 1),
        replace(given, head=bytes(32)),
    ):
        signed = replace(altered, signature=desk._key.sign(altered.statement))
        with pytest.raises(ReceiptRefused, match="never signed"):
            ledger.keep(signed)
    ledger.keep(given)


@pytest.mark.parametrize("offset", [10, 100, 300, -70, -3])
def test_changed_countersignature_on_disk_is_noticed(tmp_path, ledger_keys, desk, offset):
    with Ledger.open(tmp_path, ledger_keys, BUDGET) as ledger:
        kept = deliver(desk, ledger, release(ledger, "epoch 1")).countersignature.to_json()
    change(tmp_path, "UPDATE countersignature SET body = ?", (flipped(kept, offset % len(kept)),))
    with pytest.raises(LedgerTampered, match="countersign"):
        Ledger.open(tmp_path, ledger_keys)


def test_seeded_release_gets_no_receipt(ledger):
    sent = ledger.settle(reserve(ledger, "epoch 1"), Answer(b"predictable", seeded=True))
    with pytest.raises(ReleaseRefused, match="seed"):
        issue_receipt(ledger, sent)


def test_release_that_the_ledger_did_not_make_gets_no_receipt(ledger):
    sent = release(ledger, "epoch 1")
    for forged in (
        replace(sent, payload=b"un-noised"),
        replace(sent, sequence=1),
        replace(sent, sequence=77),
        replace(sent, server="clinic"),
        replace(sent, head="0" * 64),
    ):
        with pytest.raises(ReleaseRefused, match="stays on the device"):
            issue_receipt(ledger, forged)


def test_receipts_travel_as_json_lines(ledger):
    receipts = [issue_receipt(ledger, release(ledger, f"epoch {number}")) for number in range(3)]
    lines = list(receipts_to_lines(receipts))
    assert list(receipts_from_lines(lines)) == receipts
    assert list(receipts_from_lines(["\n", *lines, "\n"])) == receipts
    with pytest.raises(ReceiptRefused, match=r"^line 2: .*not signed"):
        list(receipts_from_lines([lines[0], lines[1].replace('"pure":[1000]', '"pure":[1]')]))
    with pytest.raises(ReceiptRefused, match=r"^line 1: .*not a receipt"):
        list(receipts_from_lines(["{}"]))


def test_dp_sgd_costs_travel_exactly():
    sampled = SampledGaussian(Fraction(0.04), Fraction(11, 10), steps=25)
    cost = PrivacyCost(PrivacyUnit.RECORD, NeighbouringRelation.REPLACE, (1, 2, 3), 4, 5, sampled)
    receipt = Receipt(
        "0" * 32, bytes(32), SERVER, 7, "dp_sgd", cost, "1" * 64, "2" * 64, bytes(32), bytes(64), bytes(64)
    )
    assert Receipt.from_json(receipt.to_json()) == receipt


def test_two_gateways_count_one_delivery_once(ledger, server_key):
    shelf, sent = MemoryShelf(), release(ledger, "epoch 1")
    receipt, answers = issue_receipt(ledger, sent), []

    def gateway():
        desk = ReceiptDesk(SERVER, server_key, shelf)
        answers.append(desk.accept(receipt, sent.payload_hash, ledger.device_key))

    threads = [threading.Thread(target=gateway) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer.repeated for answer in answers) == [False] + [True] * 7


class ForgetfulShelf(MemoryShelf):
    """The broken twin: remembers nothing, so every replay looks new."""

    def add(self, receipt, after):
        return True


def test_replay_is_caught_by_the_shelf_and_not_by_luck(ledger, server_key):
    desk, sent = ReceiptDesk(SERVER, server_key, ForgetfulShelf()), release(ledger, "epoch 1")
    assert [deliver(desk, ledger, sent).repeated for _ in range(2)] == [False, False]
