"""The ledger books before a release, once per request, within its limits, and never gives anything back."""

import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from privacy.budget import MICRO, NeighbouringRelation, PrivacyBudget, PrivacyCost, PrivacyUnit
from privacy.errors import BudgetExhausted, InvalidTerms, LedgerTampered, LedgerUnavailable, ReleaseRefused, SealBroken
from privacy.keys import LedgerKeys
from privacy.ledger import Ledger, Reservation
from privacy.ledger.entries import Entry, Opened, Released, Reserved
from privacy.ledger.storage import LedgerStorage
from privacy.randomness import NoiseSource
from privacy.receipts import issue_receipt
from privacy.release import Answer, Guarantee, Request, perform
from tests.privacy.ledger_helpers import BUDGET, MECHANISM, TERMS, ask, change, pure, release, reserve

NOISE = NoiseSource()
PURE_LIMIT = 2 * MICRO  # a quarter of ε=8


class Spy:
    """A mechanism that looks into the ledger at the moment it would read the data."""

    name, guarantee, cost = "spy", Guarantee("1", "none", "none"), pure(5)
    terms: ClassVar[dict[str, int | str]] = {"version": 1}

    def __init__(self, ledger):
        self.ledger = ledger
        self.spent_when_reading = []

    def check(self, data):
        pass

    def answer(self, data, noise):
        self.spent_when_reading.append(self.ledger.status().spent.pure_micro_epsilon)
        return Answer(f"answer {len(self.spent_when_reading)}".encode())


def test_spend_is_on_disk_before_the_data_are_read(ledger, tmp_path):
    spy = Spy(ledger)
    perform(ledger, spy, [1, 2, 3], ask("epoch 1"), NOISE)
    assert spy.spent_when_reading == [5]


def test_a_hundred_retries_cost_one_entry_and_send_the_same_bytes(ledger):
    spy = Spy(ledger)
    sent = {perform(ledger, spy, [1], ask("epoch 1"), NOISE).for_sending() for _ in range(100)}
    kinds = [type(entry.event) for entry in ledger.entries()]
    assert sent == {b"answer 1"}
    assert kinds == [Opened, Reserved, Released]
    assert ledger.status().spent.pure_micro_epsilon == 5


def test_retry_survives_reopening(tmp_path, ledger_keys):
    with Ledger.open(tmp_path, ledger_keys, BUDGET) as ledger:
        first = perform(ledger, Spy(ledger), [1], ask("epoch 1"), NOISE)
    with Ledger.open(tmp_path, ledger_keys) as ledger:
        spy = Spy(ledger)
        assert perform(ledger, spy, [9, 9], ask("epoch 1"), NOISE) == first
        assert spy.spent_when_reading == []


def test_reservation_left_by_a_crash_is_used_again_and_charged_once(tmp_path, ledger_keys):
    with Ledger.open(tmp_path, ledger_keys, BUDGET) as ledger:
        lost = reserve(ledger, "epoch 1")
    with Ledger.open(tmp_path, ledger_keys) as ledger:
        again = reserve(ledger, "epoch 1")
        assert again == lost
        assert ledger.stored(again) is None
        assert ledger.status().spent.pure_micro_epsilon == 1_000


def test_second_answer_to_a_reservation_is_never_stored(ledger):
    reservation = reserve(ledger, "epoch 1")
    first = ledger.settle(reservation, Answer(b"first"))
    assert ledger.settle(reservation, Answer(b"second")) == first
    assert ledger.stored(reservation) == first


@pytest.mark.parametrize(
    "other",
    [
        (MECHANISM, TERMS, ask("epoch 2")),
        (MECHANISM, TERMS, ask("epoch 1", server="clinic")),
        (MECHANISM, TERMS, ask("epoch 1", purpose="training")),
        ("other_histogram", TERMS, ask("epoch 1")),
        (MECHANISM, {**TERMS, "num_labels": 11}, ask("epoch 1")),
        (MECHANISM, {**TERMS, "num_labels": "10"}, ask("epoch 1")),
    ],
    ids=["subject", "server", "purpose", "mechanism", "term", "type of term"],
)
def test_requests_that_differ_in_anything_are_paid_for_apart(ledger, other):
    mechanism, terms, request = other
    first = reserve(ledger, "epoch 1")
    assert ledger.reserve(mechanism, terms, pure(), request) != first
    assert ledger.status().spent.pure_micro_epsilon == 2_000


def test_spend_beyond_the_budget_is_refused_with_its_numbers_and_books_nothing(ledger):
    reserve(ledger, "epoch 1", PURE_LIMIT - 250_000)
    before = ledger.status()
    with pytest.raises(BudgetExhausted, match=r"label_histogram costs ε=0\.5, but ε=0\.25 of 2 is left .*nothing"):
        reserve(ledger, "epoch 2", 500_000)
    assert ledger.status() == before
    reserve(ledger, "epoch 3", 250_000)
    assert ledger.status().left.pure_micro_epsilon == 0
    with pytest.raises(BudgetExhausted):
        reserve(ledger, "epoch 4", 1)


def test_each_share_has_its_own_limit(tmp_path, ledger_keys):
    budget = PrivacyBudget(epsilon=8, delta=1e-6, renyi_epsilon=2)
    with Ledger.open(tmp_path, ledger_keys, budget) as ledger:
        limits = ledger.status().limits
        terms = (PrivacyUnit.DEVICE, NeighbouringRelation.REPLACE)
        costs = {
            "Gaussian noise": PrivacyCost(*terms, mu_squared_nano=limits.mu_squared_nano + 1),
            "DP-SGD and zCDP": PrivacyCost(*terms, rho_nano=limits.renyi_nano + 1),
        }
        for share, cost in costs.items():
            with pytest.raises(BudgetExhausted, match=f"is left for {share}; nothing was booked"):
                ledger.reserve("update", {}, cost, ask(share))
        ledger.reserve("update", {}, PrivacyCost(*terms, mu_squared_nano=limits.mu_squared_nano), ask("all of it"))
        reserve(ledger, "another share", 1)


def test_quota_keeps_one_server_from_starving_the_others(ledger):
    ledger.set_quota("greedy", 250_000)
    reserve(ledger, "epoch 1", PURE_LIMIT // 4, server="greedy")
    with pytest.raises(BudgetExhausted, match=r"server 'greedy' has a quota, .* costs ε=1e-06, but ε=0 of 0\.5"):
        reserve(ledger, "epoch 2", 1, server="greedy")
    reserve(ledger, "epoch 2", 3 * PURE_LIMIT // 4, server="modest")


def test_quota_cannot_enlarge_the_budget_and_can_be_tightened(ledger):
    ledger.set_quota("hospital", 1_000_000)
    with pytest.raises(BudgetExhausted, match="is left for pure-ε"):
        reserve(ledger, "epoch 1", PURE_LIMIT + 1)
    reserve(ledger, "epoch 1", PURE_LIMIT // 2)
    ledger.set_quota("hospital", 1)
    with pytest.raises(BudgetExhausted, match="quota"):
        reserve(ledger, "epoch 2", 1)
    with pytest.raises(InvalidTerms, match="quota"):
        ledger.set_quota("hospital", 1_000_001)


def test_quota_survives_reopening(tmp_path, ledger_keys):
    with Ledger.open(tmp_path, ledger_keys, BUDGET) as ledger:
        ledger.set_quota("greedy", 0)
    with Ledger.open(tmp_path, ledger_keys) as ledger, pytest.raises(BudgetExhausted, match="quota"):
        reserve(ledger, "epoch 1", 1, server="greedy")


def test_cost_under_another_relation_is_refused(ledger):
    cost = PrivacyCost(PrivacyUnit.RECORD, NeighbouringRelation.ADD_REMOVE, pure_micro_epsilon=(1,))
    with pytest.raises(InvalidTerms, match="factor of two"):
        ledger.reserve(MECHANISM, TERMS, cost, ask("epoch 1"))
    assert ledger.status().sequence == 0


def test_same_request_at_another_cost_is_refused(ledger):
    reserve(ledger, "epoch 1", 1_000)
    with pytest.raises(InvalidTerms, match="another cost"):
        reserve(ledger, "epoch 1", 1)


def test_clock_set_back_changes_neither_budget_nor_order(tmp_path, ledger_keys):
    times = iter([1_000.9, 5_000.0, 10.0, 0.0, 6_000.0])
    with Ledger.open(tmp_path, ledger_keys, BUDGET, clock=lambda: next(times)) as ledger:
        for number in range(4):
            reserve(ledger, f"epoch {number}", PURE_LIMIT // 4)
        assert [entry.at for entry in ledger.entries()] == [1_000, 5_000, 5_000, 5_000, 6_000]
        with pytest.raises(BudgetExhausted):
            reserve(ledger, "epoch 4", 1)


def test_forgotten_answer_is_gone_but_never_noised_again(ledger):
    reservation = reserve(ledger, "epoch 1")
    sent = ledger.settle(reservation, Answer(b"noised"))
    ledger.forget_answer(sent.request)
    ledger.forget_answer(sent.request)
    assert reserve(ledger, "epoch 1") == reservation
    for attempt in (lambda: ledger.stored(reservation), lambda: ledger.settle(reservation, Answer(b"again"))):
        with pytest.raises(ReleaseRefused, match="not noised a second time"):
            attempt()
    assert ledger.status().spent.pure_micro_epsilon == 1_000
    assert ledger.verify().num_answers == 0


def test_only_answers_can_be_forgotten(ledger):
    reservation = reserve(ledger, "epoch 1")
    for request in (reservation.request, "unknown"):
        with pytest.raises(ReleaseRefused, match="no answer"):
            ledger.forget_answer(request)


def test_nothing_ever_lowers_a_spend(ledger):
    spent = []
    reservation = reserve(ledger, "epoch 1")
    steps = [
        lambda: ledger.settle(reservation, Answer(b"noised")),
        lambda: ledger.forget_answer(reservation.request),
        lambda: ledger.set_quota("hospital", 500_000),
        lambda: ledger.record_decision("a person looked at it"),
        lambda: reserve(ledger, "epoch 1"),
        ledger.verify,
    ]
    for step in steps:
        step()
        spent.append(ledger.status().spent)
    assert set(spent) == {ledger.status().spent}


def test_foreign_reservation_is_refused(ledger, tmp_path, ledger_keys):
    ours = reserve(ledger, "epoch 1")
    with Ledger.open(tmp_path / "other", ledger_keys, BUDGET) as other:
        theirs = reserve(other, "epoch 1")
    forged = Reservation(ours.ledger, ours.sequence, "0" * 64)
    for reservation in (theirs, forged, Reservation(ours.ledger, 99, ours.request)):
        for attempt in (ledger.stored, lambda it: ledger.settle(it, Answer(b"noised"))):
            with pytest.raises(ReleaseRefused, match="not made by this ledger"):
                attempt(reservation)


def test_answers_exchanged_on_disk_do_not_open(tmp_path, ledger_keys):
    with Ledger.open(tmp_path, ledger_keys, BUDGET) as ledger:
        release(ledger, "epoch 1", b"one")
        release(ledger, "epoch 2", b"two")
    change(tmp_path, "UPDATE answer SET reserve = -reserve")
    change(tmp_path, "UPDATE answer SET reserve = 4 + reserve")  # 1 <-> 3
    with Ledger.open(tmp_path, ledger_keys) as ledger, pytest.raises(SealBroken):
        ledger.stored(reserve(ledger, "epoch 1"))


def test_seeded_answer_is_stored_but_never_sent(ledger):
    reservation = reserve(ledger, "epoch 1")
    ledger.settle(reservation, Answer(b"predictable", seeded=True))
    stored = ledger.stored(reservation)
    assert stored is not None
    with pytest.raises(ReleaseRefused, match="seed"):
        stored.for_sending()


def test_another_budget_than_at_creation_is_refused(tmp_path, ledger_keys):
    Ledger.open(tmp_path, ledger_keys, BUDGET).close()
    for other in (PrivacyBudget(epsilon=9, delta=1e-6), PrivacyBudget(epsilon=8, delta=1e-6, pure_epsilon=3)):
        with pytest.raises(InvalidTerms, match=r"created with ε=8, δ=1e-06 .* a budget never changes"):
            Ledger.open(tmp_path, ledger_keys, other)
    # The default share and the same share in words are one budget.
    Ledger.open(tmp_path, ledger_keys, PrivacyBudget(epsilon=8.0, delta=1e-6, pure_epsilon=2)).close()


def test_ledger_without_a_budget_is_not_created(tmp_path, ledger_keys):
    with pytest.raises(LedgerUnavailable, match="No such file"):
        Ledger.open(tmp_path / "state", ledger_keys)
    with pytest.raises(LedgerUnavailable, match="give a budget"):
        Ledger.open(tmp_path, ledger_keys)
    with pytest.raises(LedgerUnavailable, match="no ledger"):
        Ledger.read(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_clock_before_its_epoch_makes_no_unreadable_entry(tmp_path, ledger_keys):
    with Ledger.open(tmp_path, ledger_keys, BUDGET, clock=lambda: -5.0) as ledger:
        reserve(ledger, "epoch 1")
        assert [entry.at for entry in ledger.entries()] == [0, 0]


def test_reader_without_keys_sees_everything_and_changes_nothing(ledger, tmp_path):
    sent = release(ledger, "epoch 1")
    with Ledger.read(tmp_path / "state", device_key=ledger.device_key) as reader:
        assert reader.status() == ledger.status()
        assert reader.entries() == ledger.entries()
        assert reader.verify() == ledger.verify()
        for attempt in (lambda: reserve(reader, "epoch 2"), lambda: issue_receipt(reader, sent)):
            with pytest.raises(LedgerUnavailable, match="without keys"):
                attempt()


def test_reader_follows_a_writer(ledger, tmp_path):
    with Ledger.read(tmp_path / "state") as reader:
        release(ledger, "epoch 1")
        assert reader.status() == ledger.status()


def kept(ledger, request):
    """Whether the answer to a request is still stored, as the ledger says from memory."""
    (booking,) = ledger.bookings([request])
    return booking is not None and booking.is_kept


def test_a_ledger_follows_what_others_write_between_its_own_entries(ledger, tmp_path, ledger_keys):
    with Ledger.open(tmp_path / "state", ledger_keys) as other:
        for number in range(3):
            ours, theirs = release(ledger, f"ours {number}"), release(other, f"theirs {number}")
            requests = [ours.request, theirs.request, "never asked"]
            assert ledger.bookings(requests) == other.bookings(requests)
            assert [kept(ledger, request) for request in requests] == [True, True, False]
            other.forget_answer(ours.request)
            assert [kept(ledger, request) for request in requests] == [False, True, False]
            assert ledger.status() == other.status()


def test_a_ledger_that_does_not_ask_who_has_written_misses_it(ledger, tmp_path, ledger_keys, monkeypatch):
    """The broken twin of the test above."""
    ours = release(ledger, "ours")
    with Ledger.open(tmp_path / "state", ledger_keys) as other:
        monkeypatch.setattr(LedgerStorage, "version", lambda self: 1)
        assert kept(ledger, ours.request)
        other.forget_answer(ours.request)
        assert kept(ledger, ours.request)


@pytest.mark.parametrize("name", ["", "x" * 201, "two\nlines", "\x1b[31mred"])
def test_names_that_a_terminal_would_stumble_over_are_refused(ledger, name):
    attempts = [
        lambda: reserve(ledger, "epoch 1", server=name),
        lambda: ledger.reserve(MECHANISM, TERMS, pure(), ask("epoch 1", purpose=name)),
        lambda: ledger.reserve(name, TERMS, pure(), ask("epoch 1")),
        lambda: ledger.record_decision(name),
        lambda: ledger.set_quota(name, 1),
    ]
    for attempt in attempts:
        with pytest.raises(InvalidTerms, match="printable"):
            attempt()
    assert ledger.status().sequence == 0


@pytest.mark.parametrize("value", [0.5, None, True, [0.5], b"bytes"])
def test_terms_are_whole_numbers_and_strings(ledger, value):
    with pytest.raises(InvalidTerms, match="whole numbers and strings"):
        ledger.reserve(MECHANISM, {"term": value}, pure(), ask("epoch 1"))


def test_names_in_any_language_are_kept(ledger, tmp_path):
    request = Request("Spital Zürich", "Kohorten bilden – 2026", "Woche 1")
    ledger.reserve(MECHANISM, TERMS, pure(), request)
    with Ledger.read(tmp_path / "state") as reader:
        event = reader.entries()[-1].event
    assert isinstance(event, Reserved)
    assert (event.server, event.purpose) == (request.server, request.purpose)


def test_every_entry_reads_back_as_it_was_written(ledger):
    ledger.set_quota("clinic", 5)
    ledger.record_decision("looked at it")
    release(ledger, "epoch 1")
    for entry in ledger.entries():
        assert Entry.from_body(entry.body()) == entry


def test_closed_ledger_says_so(ledger):
    ledger.close()
    ledger.close()
    with pytest.raises(LedgerUnavailable, match="closed"):
        reserve(ledger, "epoch 1")


def test_other_keys_do_not_open_it(tmp_path, ledger_keys):
    Ledger.open(tmp_path, ledger_keys, BUDGET).close()
    with pytest.raises(LedgerTampered, match="other keys than these"):
        Ledger.open(tmp_path, LedgerKeys.generate())


def test_files_are_private(ledger, tmp_path):
    release(ledger, "epoch 1")
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "state").iterdir()}
    assert set(modes) >= {"ledger.db", "ledger.anchor", "ledger.db-wal"}
    assert set(modes.values()) == {0o600}


def test_ledger_needs_no_numpy():
    code = "import sys, privacy.ledger, privacy.ledger.recovery, privacy.receipt_desk; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2]).returncode == 0


def test_undisturbed_others_are_not_asked_for_but_booking_knows_what_they_booked(tmp_path, ledger_keys):
    with Ledger.open(tmp_path, ledger_keys, BUDGET) as ledger, Ledger.open(tmp_path, ledger_keys) as other:
        before = ledger.status()
        with ledger.undisturbed():
            reserve(other, "theirs")
            assert ledger.status() == before
            assert reserve(ledger, "ours").sequence == 2
            reserve(other, "theirs again")
            assert ledger.status().sequence == 2
        assert ledger.status().sequence == 3
