"""The policy: as many rounds as a device's own ledger would book, and none at all where one is too many."""

from __future__ import annotations

import pytest

from privacy.accounting import BudgetLimits, Spend, spend_of
from privacy.budget import NeighbouringRelation, PrivacyBudget, PrivacyUnit
from privacy.errors import BudgetExhausted
from privacy.keys import LedgerKeys
from privacy.ledger import Ledger
from privacy.mechanisms.dp_sgd import DpSgd
from server_kit.config import ServerConfig, check_policy
from server_kit.errors import InvalidSetting, PolicyExceeded
from tests.privacy.ledger_helpers import ask

DEVICE = "[privacy]\nlevel = 'device'\nnoise_multiplier = 6\n"
ONE_MODEL = "[federation]\npreset = 'fedavg'\n[evaluation]\nevery = 0\n"


def config(text: str = "") -> ServerConfig:
    return ServerConfig.of_text(text)


def rounds_that_fit(found: ServerConfig) -> int:
    """One after the other, as a ledger adds them up."""
    relation = NeighbouringRelation(found.privacy.relation.value)
    policy = found.policy
    budget = PrivacyBudget(policy.epsilon, policy.delta, found.privacy.unit, relation, policy.pure_epsilon)
    limits, spent, rounds = BudgetLimits.of(budget), Spend(), 0
    each = spend_of(found.privacy.round_cost(found.training), limits)
    while (spent + each).fits(limits):
        spent, rounds = spent + each, rounds + 1
    return rounds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[privacy]\nnoise_multiplier = 1.5\nsampling_rate = '1/50'\n",
        "[privacy]\nrelation = 'add_remove'\n",
        DEVICE,
        DEVICE + "relation = 'add_remove'\n",
        "[policy]\nepsilon = 4\ndelta = 1e-7\npure_epsilon = 2\n",
        "[training]\nsteps = 25\n",
    ],
)
def test_the_rounds_are_those_that_a_budget_has_room_for(text):
    found = config(text)
    assert check_policy(found).rounds == rounds_that_fit(found) >= 1


def test_a_real_ledger_books_so_many_rounds_and_not_one_more(tmp_path):
    found = config("[privacy]\nnoise_multiplier = 1\n")
    rounds, terms = check_policy(found).rounds, found.privacy
    budget = PrivacyBudget(found.policy.epsilon, found.policy.delta, PrivacyUnit.RECORD)
    mechanism = DpSgd(
        {"w": (1,)},
        sampling_rate=terms.sampling_rate,
        noise_multiplier=terms.noise_multiplier,
        clip_norm=terms.clip_norm,
        steps=found.training.steps or 0,
        expected_batch_size=terms.expected_batch_size,
        learning_rate=found.training.learning_rate,
        grid_bits=terms.grid,
    )
    with Ledger.open(tmp_path / "state", LedgerKeys.generate(), budget) as ledger:
        for number in range(rounds):
            ledger.reserve(mechanism.name, mechanism.terms, mechanism.cost, ask(f"round {number}"))
        with pytest.raises(BudgetExhausted):
            ledger.reserve(mechanism.name, mechanism.terms, mechanism.cost, ask("one more"))


@pytest.mark.parametrize(
    "text", ["[privacy]\nnoise_multiplier = 0.3\n", DEVICE.replace("6", "0.5"), "[policy]\nepsilon = 0.01\n"]
)
def test_terms_of_which_one_round_is_too_many_are_refused(text):
    with pytest.raises(PolicyExceeded, match=r"one round .* costs a device more than \[policy\] promises"):
        check_policy(config(ONE_MODEL + text))


def test_a_histogram_that_does_not_fit_is_refused():
    with pytest.raises(PolicyExceeded, match="the histogram"):
        check_policy(config("[policy]\npure_epsilon = 0.5\n"))


def test_answers_that_do_not_fit_beside_the_histogram_are_refused():
    with pytest.raises(PolicyExceeded, match="one answer"):
        check_policy(config("[policy]\npure_epsilon = 1.1\n"))


def test_answers_are_counted_only_where_somebody_asks():
    assert check_policy(config(ONE_MODEL)).answers == 0
    assert check_policy(config("[federation]\npreset = 'fedavg'\n")).answers == 8
    assert check_policy(config()).answers == 4  # the histogram took half


def test_with_a_histogram_the_promise_is_about_records():
    haccs = "[federation]\npreset = 'haccs'\n" + DEVICE + "histogram = { epsilon = 0.1 }\n"
    assert check_policy(config(haccs)).protects is PrivacyUnit.RECORD
    assert check_policy(config(ONE_MODEL + DEVICE)).protects is PrivacyUnit.DEVICE


def test_covey_asks_for_no_histogram_where_all_of_a_device_is_to_be_hidden():
    allowed = check_policy(config(DEVICE))
    assert (allowed.histogram, allowed.protects) == (False, PrivacyUnit.DEVICE)


def test_a_histogram_with_other_noise_than_the_server_corrects_for_is_refused():
    with pytest.raises(InvalidSetting, match=r"histogram.epsilon is 0\.5, but the preset covey reckons with 1"):
        check_policy(config("[privacy]\nhistogram = { epsilon = 0.5 }\n"))


def test_dp_sgd_without_steps_is_refused():
    with pytest.raises(InvalidSetting, match=r"needs \[training\] steps"):
        check_policy(config("[training]\nepochs = 1\n"))


def test_an_unknown_preset_is_refused_with_the_nearest():
    with pytest.raises(InvalidSetting, match=r"server.toml \[federation\]: unknown preset .* did you mean 'covey'"):
        check_policy(config("[federation]\npreset = 'cove'\n"))
