"""`covey privacy plan`: the noise it finds is enough, and barely; the ε it states is what a ledger would charge."""

from __future__ import annotations

import pytest

from covey import ExitCode
from privacy.budget import PrivacyBudget
from privacy.errors import BudgetExhausted
from privacy.keys import LedgerKeys
from privacy.ledger import Ledger
from privacy.mechanisms import ClippedUpdate
from tests.privacy.cli_helpers import GRADIENT, ask, run

DEVICE = ("--delta", "1e-6", "--rounds", "6")
RECORD = (*DEVICE, "--unit", "record", "--sampling-rate", "0.04", "--steps-per-round", "25")


@pytest.mark.parametrize("work", [DEVICE, RECORD, (*DEVICE, "--histogram-epsilon", "0.5", "--relation", "add_remove")])
def test_the_noise_found_keeps_the_budget_and_a_hundredth_less_does_not(capsys, work):
    noise = run(capsys, "plan", "--epsilon", 4, *work, "--json").document["noise_multiplier"]
    enough = run(capsys, "plan", "--epsilon", 4, *work, "--noise-multiplier", noise, "--json")
    assert (enough.code, enough.document["fits"]) == (ExitCode.DONE, True)
    short = run(capsys, "plan", "--epsilon", 4, *work, "--noise-multiplier", 0.99 * noise, "--json")
    assert (short.code, short.document["fits"]) == (ExitCode.FOUND_WRONG, False)
    assert "more than ε=4" in short.err


def test_a_ledger_has_room_for_the_plan_and_for_no_more(tmp_path, capsys):
    noise = run(capsys, "plan", "--epsilon", 4, *DEVICE, "--json").document["noise_multiplier"]
    update = ClippedUpdate({"w": (3,)}, 1, noise)
    budget = PrivacyBudget(4, 1e-6, pure_epsilon=0)
    with Ledger.open(tmp_path / "state", LedgerKeys.generate(), budget) as ledger:
        for number in range(6):
            ask(ledger, update, GRADIENT, f"round {number}")
        with pytest.raises(BudgetExhausted):
            ask(ledger, update, GRADIENT, "one too many")


def test_epsilon_is_found_for_a_given_noise(capsys):
    document = run(capsys, "plan", *DEVICE, "--noise-multiplier", 8, "--json").document
    assert document["fits"] is None
    assert document["epsilon_if_fixed"] <= document["epsilon"]


@pytest.mark.parametrize("work", [DEVICE, RECORD])
def test_alternatives_cost_more_with_more_rounds_and_less_with_more_noise(capsys, work):
    document = run(capsys, "plan", "--epsilon", 4, *work, "--json").document
    table = {(row["rounds"], row["noise_multiplier"]): row["epsilon"] for row in document["alternatives"]}
    assert table[document["rounds"], document["noise_multiplier"]] == document["epsilon"]
    for (rounds, noise), epsilon in table.items():
        assert all(epsilon < other for (r, n), other in table.items() if n == noise and r > rounds)
        assert all(epsilon > other for (r, n), other in table.items() if r == rounds and n > noise)


def test_the_text_marks_what_exceeds_the_budget(capsys):
    told = run(capsys, "plan", "--epsilon", 4, *DEVICE, "--histogram-epsilon", "0.5")
    assert "* exceeds ε=4" in told.out
    assert "a histogram hides single records only" in told.out
    assert max(map(len, told.out.splitlines())) <= 80


@pytest.mark.parametrize(
    "words",
    [
        DEVICE,
        ("--epsilon", 4, "--delta", "1e-6"),
        ("--epsilon", 4, "--rounds", 3),
        ("--epsilon", -1, *DEVICE),
        ("--epsilon", "nan", *DEVICE),
        ("--epsilon", 4, "--delta", 2, "--rounds", 3),
        ("--epsilon", 4, "--delta", "1e-6", "--rounds", 0),
        ("--epsilon", 4, *DEVICE, "--unit", "record"),
        ("--epsilon", 4, *DEVICE, "--sampling-rate", "0.1"),
        ("--epsilon", 4, *DEVICE, "--noise-multiplier", 0),
        ("--epsilon", 1, *DEVICE, "--histogram-epsilon", 1),
        ("--epsilon", 4, *DEVICE, "--unit", "planet"),
        ("--epsilon", 4, *RECORD, "--sampling-rate", "1.5"),
    ],
    ids=lambda words: " ".join(map(str, words)),
)
def test_terms_that_make_no_sense_are_wrong_usage(capsys, words):
    told = run(capsys, "plan", *words)
    assert (told.code, told.out) == (ExitCode.USED_WRONGLY, "")
    assert "Error: " in told.err
