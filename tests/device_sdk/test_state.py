"""A round's journal takes one step after the other, and no step twice."""

from __future__ import annotations

import pytest

from device_sdk import state as state_module
from device_sdk.errors import DeviceBusy, OutOfOrder
from device_sdk.identity import ledger_keys
from device_sdk.round_record import Kind, Phase
from device_sdk.run_lock import running
from device_sdk.state import RoundJournal
from privacy.ledger import Ledger
from privacy.randomness import NoiseSource
from privacy.release import Request
from tests.device_sdk.conftest import SERVER
from tests.device_sdk.rounds import BUDGET, Coin
from tests.device_sdk.vault import raw


@pytest.fixture
def ledger(vault, state):
    with Ledger.open(state, ledger_keys(vault), BUDGET) as ledger:
        yield ledger


@pytest.fixture
def journal(vault):
    return RoundJournal(vault, SERVER, clock=lambda: 1_800_000_000.0)


def release(journal, ledger, task, subject=""):
    request = Request("covey-abc", "training", subject or task)
    return journal.release(task, ledger, Coin(), None, request=request, noise=NoiseSource())


def only(journal):
    (entry,) = journal.rounds()
    return entry


def test_a_round_goes_through_every_phase(journal, ledger):
    journal.accept("task", Kind.TRAINING, b"the order")
    assert (only(journal).phase, only(journal).order) == (Phase.ACCEPTED, b"the order")
    assert journal.attempt("task").attempts == 1
    assert journal.resume("task", ledger) is None
    released = release(journal, ledger, "task")
    assert (only(journal).phase, only(journal).release) == (Phase.RELEASED, released.sequence)
    assert journal.resume("task", ledger) == released
    journal.uploaded("task", ledger)
    journal.uploaded("task", ledger)
    assert only(journal).phase is Phase.UPLOADED
    journal.finish("task", ledger)
    assert journal.rounds() == []
    assert journal.knows("task")


def test_a_task_is_taken_once(journal, ledger):
    journal.accept("task", Kind.TRAINING, b"")
    with pytest.raises(OutOfOrder, match="taken before"):
        journal.accept("task", Kind.TRAINING, b"")
    journal.give_up("task", ledger)
    with pytest.raises(OutOfOrder, match="taken before"):
        journal.accept("task", Kind.TRAINING, b"")


def test_without_its_memory_a_task_would_be_taken_twice(journal, ledger, monkeypatch):
    """The broken twin of the test above."""
    monkeypatch.setattr(journal, "_remember", lambda task: None)
    for _ in range(2):
        journal.accept("task", Kind.TRAINING, b"")
        journal.give_up("task", ledger)


def test_no_step_is_taken_out_of_order(journal, ledger):
    def steps():
        return {
            "attempt": lambda: journal.attempt("task"),
            "release": lambda: release(journal, ledger, "task"),
            "resume": lambda: journal.resume("task", ledger),
            "uploaded": lambda: journal.uploaded("task", ledger),
            "finish": lambda: journal.finish("task", ledger),
            "give_up": lambda: journal.give_up("task", ledger),
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
    journal.accept("task", Kind.TRAINING, b"")
    allowed = {"attempt", "release", "resume", "give_up"}
    assert refused() == {"uploaded", "finish"}
    release(journal, ledger, "task")
    allowed = {"resume", "uploaded", "give_up"}
    assert refused() == {"attempt", "release", "finish"}
    journal.uploaded("task", ledger)
    allowed = {"uploaded", "finish"}
    assert refused() == {"attempt", "release", "resume", "give_up"}


def test_a_second_request_in_one_round_is_refused_before_it_is_booked(journal, ledger):
    class Breaks(Coin):
        def answer(self, data, noise):
            raise MemoryError

    journal.accept("task", Kind.TRAINING, b"")
    with pytest.raises(MemoryError):
        journal.release("task", ledger, Breaks(), None, request=Request("covey-abc", "t", "task"), noise=NoiseSource())
    assert only(journal).phase is Phase.BOOKED
    spent = ledger.status().spent
    with pytest.raises(OutOfOrder, match="another request"):
        release(journal, ledger, "task", subject="another")
    assert ledger.status().spent == spent
    journal.release("task", ledger, Coin(), None, request=Request("covey-abc", "t", "task"), noise=NoiseSource())
    assert ledger.status().spent == spent


def test_releases_are_sent_in_the_order_of_the_ledger(journal, ledger):
    for task in ("first", "second"):
        journal.accept(task, Kind.TRAINING, b"")
        release(journal, ledger, task)
    assert [entry.task for entry in journal.rounds()] == ["first", "second"]
    with pytest.raises(OutOfOrder, match="earlier release"):
        journal.uploaded("second", ledger)
    journal.give_up("first", ledger)
    journal.uploaded("second", ledger)


def test_giving_up_drops_the_bytes_and_refunds_nothing(journal, ledger):
    journal.accept("task", Kind.SUMMARY, b"")
    release(journal, ledger, "task")
    spent = ledger.status().spent
    journal.give_up("task", ledger)
    assert ledger._storage.answered() == []
    assert ledger.status().spent == spent
    assert journal.rounds() == []


def test_a_release_whose_giving_up_was_interrupted_is_not_noised_again(journal, ledger):
    journal.accept("task", Kind.TRAINING, b"")
    released = release(journal, ledger, "task")
    ledger.forget_answer(released.request)
    with pytest.raises(OutOfOrder, match="give it up"):
        journal.resume("task", ledger)
    journal.give_up("task", ledger)
    assert journal.rounds() == []


def test_an_unreadable_round_is_given_up_aloud(journal, state, events):
    journal.accept("task", Kind.TRAINING, b"")
    raw.overwrite_record(state, max(raw.sealed_records(state)), b"altered")
    assert journal.rounds() == []
    assert "round_unreadable" in events()
    assert journal.knows("task")


def test_unreadable_memories_are_forgotten_aloud(journal, ledger, state, events):
    journal.accept("task", Kind.TRAINING, b"")
    journal.give_up("task", ledger)
    raw.overwrite_record(state, max(raw.sealed_records(state)), b"altered")
    assert not journal.knows("task")
    assert "round_unreadable" in events()


def test_the_memory_of_tasks_is_bounded(journal, ledger, monkeypatch):
    monkeypatch.setattr(state_module, "MOST_REMEMBERED", 3)
    for number in range(5):
        journal.accept(f"task-{number}", Kind.TRAINING, b"")
        journal.give_up(f"task-{number}", ledger)
    assert [journal.knows(f"task-{number}") for number in range(5)] == [False, False, True, True, True]


def test_servers_have_journals_of_their_own(vault, journal):
    journal.accept("task", Kind.TRAINING, b"")
    other = RoundJournal(vault, "other.example.com:8443")
    assert other.rounds() == []
    other.accept("task", Kind.TRAINING, b"")


def test_one_process_runs_a_device(state):
    with running(state), pytest.raises(DeviceBusy), running(state):
        pass
    with running(state):
        pass
