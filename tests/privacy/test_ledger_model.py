"""Whatever is done to a ledger, in whatever order, it agrees with a dictionary and two sums."""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from privacy.budget import MICRO
from privacy.errors import BudgetExhausted, InvalidTerms, ReleaseRefused
from privacy.keys import LedgerKeys
from privacy.ledger import Ledger
from privacy.ledger import book as ledger_module
from privacy.ledger.admission import admit
from privacy.release import Answer
from tests.privacy.ledger_helpers import BUDGET, MECHANISM, TERMS, ask, pure

LIMIT = 2 * MICRO
KEYS = LedgerKeys.generate()
servers = st.sampled_from(["hospital", "clinic"])
subjects = st.sampled_from([f"epoch {number}" for number in range(6)])
costs = st.sampled_from([1, 250_000, 400_000, 700_000, LIMIT])
payloads = st.binary(max_size=40)
FORGOTTEN = object()


class LedgerAgainstModel(RuleBasedStateMachine):
    """The model: cost and answer by request, spend by server, quota by server."""

    @initialize()
    def create(self):
        self.home = Path(tempfile.mkdtemp(prefix="ledger-model-"))
        self.ledger = Ledger.open(self.home / "state", KEYS, BUDGET)
        self.cost, self.answer, self.reservation = {}, {}, {}
        self.spent = {"hospital": 0, "clinic": 0}
        self.quota = {}
        self.num_entries = 1

    def teardown(self):
        self.ledger.close()
        shutil.rmtree(self.home)

    def allowed(self, server, cost):
        share = self.quota.get(server, MICRO)
        return sum(self.spent.values()) + cost <= LIMIT and self.spent[server] + cost <= LIMIT * share // MICRO

    @rule(server=servers, subject=subjects, cost=costs)
    def reserve(self, server, subject, cost):
        key = server, subject

        def attempt():
            return self.ledger.reserve(MECHANISM, TERMS, pure(cost), ask(subject, server))

        if key in self.cost and self.cost[key] != cost:
            with pytest.raises(InvalidTerms):
                attempt()
        elif key in self.cost:
            assert attempt() == self.reservation[key]
        elif self.allowed(server, cost):
            self.reservation[key] = attempt()
            self.cost[key] = cost
            self.spent[server] += cost
            self.num_entries += 1
        else:
            with pytest.raises(BudgetExhausted):
                attempt()

    @precondition(lambda self: self.reservation)
    @rule(payload=payloads, data=st.data())
    def settle(self, payload, data):
        key = data.draw(st.sampled_from(sorted(self.reservation)))
        if self.answer.get(key) is FORGOTTEN:
            with pytest.raises(ReleaseRefused):
                self.ledger.settle(self.reservation[key], Answer(payload))
            return
        if key not in self.answer:
            self.answer[key] = payload
            self.num_entries += 1
        release = self.ledger.settle(self.reservation[key], Answer(payload))
        assert (release.payload, release.server) == (self.answer[key], key[0])

    @precondition(lambda self: self.reservation)
    @rule(data=st.data())
    def look_up(self, data):
        key = data.draw(st.sampled_from(sorted(self.reservation)))
        if self.answer.get(key) is FORGOTTEN:
            with pytest.raises(ReleaseRefused):
                self.ledger.stored(self.reservation[key])
        else:
            stored = self.ledger.stored(self.reservation[key])
            assert (stored and stored.payload) == self.answer.get(key)

    @precondition(lambda self: self.answer)
    @rule(data=st.data())
    def forget(self, data):
        key = data.draw(st.sampled_from(sorted(self.answer)))
        self.ledger.forget_answer(self.reservation[key].request)
        self.answer[key] = FORGOTTEN

    @rule(server=servers, share_ppm=st.sampled_from([0, 300_000, 1_000_000]))
    def set_quota(self, server, share_ppm):
        self.ledger.set_quota(server, share_ppm)
        if self.quota.get(server) != share_ppm:
            self.quota[server] = share_ppm
            self.num_entries += 1

    @rule()
    def reopen(self):
        self.ledger.close()
        self.ledger = Ledger.open(self.home / "state", KEYS)
        self.ledger.verify()

    @rule()
    def look_on_without_keys(self):
        with Ledger.read(self.home / "state") as reader:
            assert reader.status() == self.ledger.status()

    @invariant()
    def sums_agree(self):
        status = self.ledger.status()
        assert status.spent.pure_micro_epsilon == sum(self.spent.values()) <= LIMIT
        assert status.left.pure_micro_epsilon == LIMIT - sum(self.spent.values())
        assert {server: spend.pure_micro_epsilon for server, spend in status.spent_by_server.items()} == {
            server: spend for server, spend in self.spent.items() if spend
        }
        assert status.quotas == self.quota
        assert status.sequence == self.num_entries - 1

    @invariant()
    def bookings_agree(self):
        requests = {key: reservation.request for key, reservation in self.reservation.items()}
        found = dict(zip(requests, self.ledger.bookings([*requests.values()]), strict=True))
        assert {key: booking.reservation for key, booking in found.items()} == self.reservation
        assert {key for key, booking in found.items() if booking.release is not None} == set(self.answer)
        kept = {key for key, answer in self.answer.items() if answer is not FORGOTTEN}
        assert {key for key, booking in found.items() if booking.is_kept} == kept
        assert self.ledger.bookings(["never asked"]) == [None]


TestLedgerAgainstModel = LedgerAgainstModel.TestCase
TestLedgerAgainstModel.settings = settings(max_examples=25, stateful_step_count=25)


def test_model_catches_a_ledger_that_ignores_quotas(monkeypatch):
    """The broken twin: only the device's budget is looked at."""
    monkeypatch.setattr(ledger_module, "admit", lambda state, *rest: admit(replace(state, quotas={}), *rest))
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        run_state_machine_as_test(
            LedgerAgainstModel, settings=settings(max_examples=50, phases=[Phase.generate], database=None)
        )
