"""Whatever happens to rounds, in whatever order, the journal, the ledger and the server agree."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import Phase as Generation
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from device_sdk.errors import OutOfOrder
from device_sdk.round_record import Phase
from privacy.ledger.entries import Reserved
from privacy.randomness import NoiseSource
from tests.device_sdk.rounds import Coin, Device, request_for

ACCEPTED, BOOKED, RELEASED, UPLOADED = Phase
ALLOWED = {
    "attempt": {ACCEPTED, BOOKED},
    "release": {ACCEPTED, BOOKED},
    "resume": {ACCEPTED, BOOKED, RELEASED},
    "uploaded": {RELEASED, UPLOADED},
    "finish": {UPLOADED},
    "give_up": {ACCEPTED, BOOKED, RELEASED},
}


class Dying(Coin):
    def answer(self, data, noise):
        raise KeyboardInterrupt


def when(*phases):
    """The rule applies while some round is in one of these phases."""
    return precondition(lambda self: self.at(*phases))


class JournalAgainstModel(RuleBasedStateMachine):
    """The model: a phase for each round, the bytes released for it, and what the server has received."""

    @initialize()
    def create(self):
        self.home = Path(tempfile.mkdtemp(prefix="journal-model-"))
        self.device = Device.open(self.home)
        self.phase: dict[str, Phase] = {}
        self.bytes: dict[str, bytes] = {}
        self.over: list[str] = []
        self.released: list[str] = []
        self.num_spends = 0
        self.received: dict[str, set[bytes]] = {}

    def teardown(self):
        self.device.close()
        shutil.rmtree(self.home)

    @precondition(lambda self: len(self.phase) < 3)
    @rule()
    def accept(self):
        task = f"task-{len(self.phase) + len(self.over)}"
        self.device.accept(task)
        self.phase[task] = ACCEPTED

    @rule(data=st.data())
    @precondition(lambda self: self.phase or self.over)
    def accept_again(self, data):
        with pytest.raises(OutOfOrder):
            self.device.accept(data.draw(st.sampled_from([*self.phase, *self.over])))

    @rule(data=st.data(), step=st.sampled_from(sorted(ALLOWED)))
    def take_a_step_out_of_order(self, data, step):
        wrong = [task for task, phase in self.phase.items() if phase not in ALLOWED[step]]
        task = data.draw(st.sampled_from([*wrong, *self.over, "unheard of"]))
        with pytest.raises(OutOfOrder):
            self.take(step, task)

    @when(ACCEPTED, BOOKED)
    @rule(data=st.data())
    def release(self, data):
        task = self.draw(data, ACCEPTED, BOOKED)
        self.device.journal.attempt(task)
        self.note_release(task, self.take("release", task).payload)

    @when(ACCEPTED, BOOKED)
    @rule(data=st.data())
    def die_while_noising(self, data):
        task = self.draw(data, ACCEPTED, BOOKED)
        self.note_booking(task)
        with pytest.raises(KeyboardInterrupt):
            self.perform(task, Dying())
        self.restart()

    @when(BOOKED)
    @rule(data=st.data())
    def die_before_the_release_is_noted(self, data):
        task = self.draw(data, BOOKED)
        booking = self.device.ledger.reserve(Coin.name, Coin.terms, Coin.cost, request_for(task))
        payload = self.device.ledger.settle(booking, Coin().answer(None, None)).payload
        self.restart()
        found = self.take("resume", task)
        assert found.payload == payload
        self.note_release(task, payload)

    @when(ACCEPTED, BOOKED, RELEASED)
    @rule(data=st.data())
    def resume(self, data):
        task = self.draw(data, ACCEPTED, BOOKED, RELEASED)
        found = self.take("resume", task)
        assert (None if found is None else found.payload) == self.bytes.get(task)

    @when(RELEASED)
    @rule(data=st.data(), acknowledged=st.booleans())
    def upload(self, data, acknowledged):
        task = self.draw(data, RELEASED)
        self.received.setdefault(task, set()).add(self.to_be_sent(task))
        if not acknowledged:
            self.restart()
        elif task == next(other for other in self.released if self.phase.get(other) is RELEASED):
            self.take("uploaded", task)
            self.phase[task] = UPLOADED
        else:
            with pytest.raises(OutOfOrder, match="earlier"):
                self.take("uploaded", task)

    @when(UPLOADED)
    @rule(data=st.data())
    def finish(self, data):
        self.end("finish", self.draw(data, UPLOADED))

    @when(ACCEPTED, BOOKED, RELEASED)
    @rule(data=st.data())
    def give_up(self, data):
        self.end("give_up", self.draw(data, ACCEPTED, BOOKED, RELEASED))

    @rule()
    def restart(self):
        self.device.close()
        self.device = Device.open(self.home)

    @rule()
    def rotate_keys(self):
        self.device.vault.rotate()

    @invariant()
    def all_agree(self):
        if not hasattr(self, "device"):
            return
        assert {entry.task: entry.phase for entry in self.device.journal.rounds()} == self.phase
        entries = [entry.event for entry in self.device.ledger.entries()]
        assert len([event for event in entries if isinstance(event, Reserved)]) == self.num_spends
        assert all(payloads == {self.bytes[task]} for task, payloads in self.received.items())

    def at(self, *phases):
        return [task for task, phase in self.phase.items() if phase in phases]

    def draw(self, data, *phases):
        return data.draw(st.sampled_from(self.at(*phases)))

    def take(self, step, task):
        if step == "attempt":
            return self.device.journal.attempt(task)
        if step == "release":
            return self.perform(task, Coin())
        return getattr(self.device.journal, step)(task)

    def perform(self, task, mechanism):
        return self.device.journal.release(task, mechanism, None, request=request_for(task), noise=NoiseSource())

    def to_be_sent(self, task):
        return self.take("resume", task).for_sending()

    def note_booking(self, task):
        self.num_spends += self.phase[task] is ACCEPTED
        self.phase[task] = BOOKED

    def note_release(self, task, payload):
        self.note_booking(task)
        self.phase[task], self.bytes[task] = RELEASED, payload
        self.released.append(task)

    def end(self, step, task):
        self.take(step, task)
        del self.phase[task]
        self.over.append(task)


class NoisesAgainBeforeItSends(JournalAgainstModel):
    """A broken twin: what is sent after a lost acknowledgement is noised anew."""

    def to_be_sent(self, task):
        return Coin().answer(None, None).payload


class BooksEveryAttempt(JournalAgainstModel):
    """A broken twin: another attempt is another request."""

    def perform(self, task, mechanism):
        self.device.ledger.reserve(Coin.name, Coin.terms, Coin.cost, request_for(f"{task} {self.num_spends}"))
        return super().perform(task, mechanism)


FEW = settings(max_examples=15, stateful_step_count=30, deadline=None)


def test_the_journal_agrees_with_the_model():
    run_state_machine_as_test(JournalAgainstModel, settings=FEW)


@pytest.mark.stress
def test_the_journal_agrees_with_the_model_for_long():
    long = settings(max_examples=300, stateful_step_count=60, deadline=None)
    run_state_machine_as_test(JournalAgainstModel, settings=long)


@pytest.mark.parametrize("twin", [NoisesAgainBeforeItSends, BooksEveryAttempt])
def test_the_model_catches_a_broken_device(twin):
    once = settings(FEW, max_examples=100, derandomize=True, database=None, phases=[Generation.generate])
    with pytest.raises(AssertionError):
        run_state_machine_as_test(twin, settings=once)
