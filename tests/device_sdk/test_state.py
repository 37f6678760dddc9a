"""A round's journal takes one step after the other, and no step twice."""

from __future__ import annotations

import pytest

from device_sdk import state as state_module
from device_sdk.errors import DeviceBusy, OutOfOrder
from device_sdk.identity import ledger_keys
from device_sdk.round_record import Kind, Phase
from device_sdk.run_lock import running
from device_sdk.state import RoundJournal
from privacy.ledger import Ledger, start_over
from privacy.randomness import NoiseSource
from privacy.receipt_desk import MemoryShelf, ReceiptDesk
from privacy.receipts import issue_receipt
from tests.device_sdk.conftest import SERVER
from tests.device_sdk.rounds import BUDGET, SERVER_KEY, Coin, request_for
from tests.device_sdk.vault import raw


@pytest.fixture
def ledger(vault, state):
    with Ledger.open(state, ledger_keys(vault), BUDGET) as ledger:
        yield ledger


@pytest.fixture
def journal(vault, ledger):
    return RoundJournal(vault, ledger, SERVER, clock=lambda: 1_800_000_000.0)


def accept(journal, task, kind=Kind.TRAINING, order=b""):
    return journal.accept(task, kind, order, Coin(), request_for(task))


def release(journal, task, subject=""):
    return journal.release(task, Coin(), None, request=request_for(subject or task), noise=NoiseSource())


def only(journal):
    (entry,) = journal.rounds()
    return entry


def test_a_round_goes_through_every_phase(journal, ledger):
    accept(journal, "task", order=b"the order")
    assert (only(journal).phase, only(journal).order) == (Phase.ACCEPTED, b"the order")
    assert journal.attempt("task").attempts == 1
    assert journal.resume("task") is None
    released = release(journal, "task")
    assert (only(journal).phase, only(journal).release) == (Phase.RELEASED, released.sequence)
    assert journal.resume("task") == released
    journal.uploaded("task")
    journal.uploaded("task")
    assert only(journal).phase is Phase.UPLOADED
    journal.finish("task")
    assert journal.rounds() == []
    assert journal.knows("task")


def test_a_task_is_taken_once(journal, ledger):
    accept(journal, "task")
    with pytest.raises(OutOfOrder, match="taken before"):
        accept(journal, "task")
    journal.give_up("task")
    with pytest.raises(OutOfOrder, match="taken before"):
        accept(journal, "task")


def test_without_its_memory_a_task_would_be_taken_twice(journal, ledger, monkeypatch):
    """The broken twin of the test above."""
    monkeypatch.setattr(journal, "_remember", lambda task: None)
    for _ in range(2):
        accept(journal, "task")
        journal.give_up("task")


def test_no_step_is_taken_out_of_order(journal, ledger):
    def steps():
        return {
            "attempt": lambda: journal.attempt("task"),
            "release": lambda: release(journal, "task"),
            "resume": lambda: journal.resume("task"),
            "uploaded": lambda: journal.uploaded("task"),
            "finish": lambda: journal.finish("task"),
            "give_up": lambda: journal.give_up("task"),
        }

    def refused():
        names = set()
        for name in ("finish", "uploaded", "attempt", "release", "resume", "give_up"):
            if name in allowed:
                continue
            with pytest.raises(OutOfOrder):
                steps()[name]()
            names.add(name)
        return names

    allowed: set[str] = set()
    assert refused() == set(steps())
    accept(journal, "task")
    allowed = {"attempt", "release", "resume", "give_up"}
    assert refused() == {"uploaded", "finish"}
    release(journal, "task")
    allowed = {"resume", "uploaded", "give_up"}
    assert refused() == {"attempt", "release", "finish"}
    journal.uploaded("task")
    allowed = {"uploaded", "finish"}
    assert refused() == {"attempt", "release", "resume", "give_up"}


def test_a_second_request_in_one_round_is_refused_before_it_is_booked(journal, ledger):
    class Breaks(Coin):
        def answer(self, data, noise):
            raise MemoryError

    accept(journal, "task")
    with pytest.raises(MemoryError):
        journal.release("task", Breaks(), None, request=request_for("task"), noise=NoiseSource())
    assert only(journal).phase is Phase.BOOKED
    spent = ledger.status().spent
    with pytest.raises(OutOfOrder, match="another request"):
        release(journal, "task", subject="another")
    assert ledger.status().spent == spent
    release(journal, "task")
    assert ledger.status().spent == spent


def test_releases_are_sent_in_the_order_of_the_ledger(journal, ledger):
    for task in ("first", "second"):
        accept(journal, task)
        release(journal, task)
    assert [entry.task for entry in journal.rounds()] == ["first", "second"]
    with pytest.raises(OutOfOrder, match="earlier release"):
        journal.uploaded("second")
    journal.give_up("first")
    journal.uploaded("second")


def test_giving_up_drops_the_bytes_and_refunds_nothing(journal, ledger):
    accept(journal, "task", Kind.SUMMARY)
    release(journal, "task")
    spent = ledger.status().spent
    journal.give_up("task")
    assert ledger._storage.answered() == []
    assert ledger.status().spent == spent
    assert journal.rounds() == []


def test_a_release_whose_giving_up_was_interrupted_is_not_noised_again(journal, ledger):
    accept(journal, "task")
    released = release(journal, "task")
    ledger.forget_answer(released.request)
    with pytest.raises(OutOfOrder, match="at uploaded"):
        journal.resume("task")
    with pytest.raises(OutOfOrder, match="at uploaded"):
        release(journal, "task")
    journal.finish("task")
    assert journal.rounds() == []


def test_an_unreadable_round_is_given_up_aloud(journal, state, events):
    accept(journal, "task")
    raw.overwrite_record(state, max(raw.sealed_records(state)), b"altered")
    assert journal.rounds() == []
    assert "round_unreadable" in events()
    assert journal.knows("task")


def test_unreadable_memories_are_forgotten_aloud(journal, ledger, state, events):
    accept(journal, "task")
    journal.give_up("task")
    raw.overwrite_record(state, max(raw.sealed_records(state)), b"altered")
    assert not journal.knows("task")
    assert "round_unreadable" in events()


def test_the_memory_of_tasks_is_bounded(journal, ledger, monkeypatch):
    monkeypatch.setattr(state_module, "MOST_REMEMBERED", 3)
    for number in range(5):
        accept(journal, f"task-{number}")
        journal.give_up(f"task-{number}")
    assert [journal.knows(f"task-{number}") for number in range(5)] == [False, False, True, True, True]


def test_what_the_journal_has_forgotten_the_ledger_still_knows(journal, ledger, monkeypatch):
    monkeypatch.setattr(state_module, "MOST_REMEMBERED", 1)
    for task in ("first", "second"):
        accept(journal, task)
        release(journal, task)
        journal.uploaded(task)
        journal.finish(task)
    assert not journal.knows("first")
    with pytest.raises(OutOfOrder, match="taken before"):
        accept(journal, "first")


def test_a_round_that_nobody_judges_takes_one_write_to_the_vault_and_two_to_the_ledger(journal, vault, ledger):
    written = {"vault": 0, "ledger": 0}
    for name, connection in (("vault", vault._storage._connection), ("ledger", ledger._storage._connection)):
        connection.set_trace_callback(lambda sql, name=name: written.update({name: written[name] + (sql == "COMMIT")}))
    desk = ReceiptDesk("covey-abc", SERVER_KEY, MemoryShelf())
    for number in range(5):
        accept(journal, f"task-{number}")
        receipt = issue_receipt(ledger, release(journal, f"task-{number}"))
        journal.uploaded(f"task-{number}", desk.countersign(receipt), final=True)
    assert written == {"vault": 5, "ledger": 10}
    assert [entry.task for entry in journal.rounds()] == ["task-3", "task-4"]
    ledger.write_acknowledged()
    accept(journal, "task-5")
    assert [entry.task for entry in journal.rounds()] == ["task-5"]


def test_a_round_that_was_judged_is_ended_after_its_acknowledgement_is_on_disk(journal, ledger):
    desk = ReceiptDesk("covey-abc", SERVER_KEY, MemoryShelf())
    accept(journal, "task")
    journal.uploaded("task", desk.countersign(issue_receipt(ledger, release(journal, "task"))))
    assert len(ledger._storage.answered()) == 1
    journal.finish("task")
    assert ledger._storage.answered() == []


def test_few_rounds_wait_for_feedback_and_the_oldest_are_ended(journal, monkeypatch):
    monkeypatch.setattr(state_module, "MOST_AWAITING_FEEDBACK", 2)
    for number in range(4):
        accept(journal, f"task-{number}")
        release(journal, f"task-{number}")
        journal.uploaded(f"task-{number}")
    accept(journal, "summary", Kind.SUMMARY)
    assert [entry.task for entry in journal.rounds()] == ["task-2", "task-3", "summary"]
    assert journal.knows("task-0")


def test_what_nobody_will_judge_ends_with_the_next_acceptance(journal):
    for task in ("final", "judged"):
        accept(journal, task)
        release(journal, task)
        journal.uploaded(task, final=task == "final")
    assert [entry.task for entry in journal.rounds()] == ["judged"]
    assert journal.knows("final")
    accept(journal, "next")
    assert [entry.task for entry in journal.rounds()] == ["judged", "next"]


def test_an_acceptance_that_fails_ends_nothing(journal):
    accept(journal, "final")
    release(journal, "final")
    journal.uploaded("final", final=True)
    with pytest.raises(OutOfOrder, match="taken before"):
        accept(journal, "final")
    assert only(journal).phase is Phase.UPLOADED


def test_after_a_kill_what_nobody_will_judge_waits_as_others_do(journal, vault, ledger):
    accept(journal, "final")
    release(journal, "final")
    journal.uploaded("final", final=True)
    again = RoundJournal(vault, ledger, SERVER)
    accept(again, "next")
    assert [entry.task for entry in again.rounds()] == ["final", "next"]


def test_what_a_kill_leaves_is_found_by_another_journal(journal, vault, ledger):
    """Nothing of where a round stands is kept in memory alone."""

    def phase():
        return only(RoundJournal(vault, ledger, SERVER)).phase

    accept(journal, "task")
    assert phase() is Phase.ACCEPTED
    reservation = ledger.reserve(Coin.name, Coin.terms, Coin.cost, request_for("task"))
    assert phase() is only(journal).phase is Phase.BOOKED
    released = ledger.settle(reservation, Coin().answer(None, None))
    assert phase() is only(journal).phase is Phase.RELEASED
    assert RoundJournal(vault, ledger, SERVER).resume("task") == journal.resume("task") == released
    ledger.forget_answer(released.request)
    assert phase() is only(journal).phase is Phase.UPLOADED


def test_rounds_of_a_ledger_that_was_started_over_are_given_up_aloud(journal, vault, state, ledger, events):
    for task in ("accepted", "uploaded"):
        accept(journal, task)
    release(journal, "uploaded")
    journal.uploaded("uploaded")
    ledger.close()
    (state / "ledger.anchor").unlink()
    start_over(state, ledger_keys(vault), reason="the anchor was lost")
    with Ledger.open(state, ledger_keys(vault)) as again:
        journal = RoundJournal(vault, again, SERVER)
        assert journal.rounds() == []
        assert events().count("round_unreadable") == 2
        assert journal.knows("accepted")
        assert journal.knows("uploaded")


def test_a_record_of_another_format_is_given_up_aloud(journal, vault, events):
    vault.table(SERVER, "rounds").put("task", b'{"task":"task"}')
    assert journal.rounds() == []
    assert "round_unreadable" in events()
    assert journal.knows("task")


def test_servers_have_journals_of_their_own(vault, ledger, journal):
    accept(journal, "task")
    other = RoundJournal(vault, ledger, "other.example.com:8443")
    assert other.rounds() == []
    accept(other, "task")


def test_one_process_runs_a_device(state):
    with running(state), pytest.raises(DeviceBusy), running(state):
        pass
    with running(state):
        pass
