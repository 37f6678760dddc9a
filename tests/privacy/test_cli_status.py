"""`covey privacy status`: what is shown is what the ledger will do, and never more privacy than there is."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey import ExitCode
from privacy.accounting import epsilon_spent
from privacy.accounting.limits import Spend
from privacy.budget import NeighbouringRelation, PrivacyBudget
from privacy.errors import BudgetExhausted
from privacy.ledger import book as ledger_module
from privacy.mechanisms import BoundedScalar
from privacy.release import Request
from privacy.reporting.amounts import down, percent_left, percent_used, printable, up
from privacy.reporting.ledger_view import read_ledger
from privacy.reporting.spending import epsilon_about_a_record, shares_of
from tests.privacy.cli_helpers import GRADIENT, HISTOGRAM, UPDATE, ask, device, opened, run


def test_epsilon_so_far_is_the_accountants_and_rounded_up(tmp_path, capsys):
    state = device(tmp_path / "state", updates=5)
    shown = run(capsys, "status", state, "--json").document["epsilon_so_far"]
    truth = epsilon_spent([HISTOGRAM.cost] + [UPDATE.cost] * 5, 1e-6)
    assert truth <= shown <= truth + 2e-5


def test_the_room_that_is_shown_is_exactly_what_the_ledger_admits(tmp_path, capsys):
    state = device(tmp_path / "state", updates=3)
    room = run(capsys, "status", state, "--json").document["more_like_the_last"]
    with opened(state) as ledger:
        for number in range(room):
            ask(ledger, UPDATE, GRADIENT, f"later {number}")
        with pytest.raises(BudgetExhausted):
            ask(ledger, UPDATE, GRADIENT, "one too many")
    told = run(capsys, "status", state)
    assert told.code == ExitCode.DONE
    assert "no room for another model update" in told.out


def test_a_quota_leaves_less_room(tmp_path, capsys):
    state = device(tmp_path / "state")
    before = run(capsys, "status", state, "--json").document["more_like_the_last"]
    with opened(state) as ledger:
        ledger.set_quota("fl.example.com", 300_000)
    after = run(capsys, "status", state, "--json").document
    assert after["more_like_the_last"] < before
    assert after["quotas_ppm"] == {"fl.example.com": 300_000}


def test_a_record_level_release_is_not_sold_as_privacy_of_the_device(tmp_path, capsys):
    mixed = run(capsys, "status", device(tmp_path / "mixed"), "--json").document
    whole = run(capsys, "status", device(tmp_path / "whole", histogram=False), "--json").document
    assert mixed["epsilon_whole_device"] is None
    assert whole["epsilon_whole_device"] == pytest.approx(mixed["epsilon_device_level_only"])
    text = run(capsys, "status", tmp_path / "mixed").out
    assert "no figure: label histograms hide single records, not the device as a whole" in " ".join(text.split())


def test_under_add_remove_a_record_is_worth_twice_the_distance_of_a_device(tmp_path):
    budget = PrivacyBudget(8, 1e-6, relation=NeighbouringRelation.ADD_REMOVE)
    view = read_ledger(device(tmp_path / "state", histogram=False, budget=budget))
    costs = [booking.cost for booking in view.bookings]
    assert epsilon_about_a_record(costs, 1e-6) > 1.5 * epsilon_spent(costs, 1e-6)


def test_a_budget_of_device_level_shares_alone_protects_the_device(tmp_path, capsys):
    budget = PrivacyBudget(8, 1e-6, pure_epsilon=0)
    told = run(capsys, "status", device(tmp_path / "state", histogram=False, budget=budget), "--json").document
    assert told["budget"]["protects"] == "device"
    assert [share["share"] for share in told["shares"]] == ["gaussian"]


def test_a_spend_without_a_release_is_counted_and_named(tmp_path, capsys):
    state = device(tmp_path / "state", updates=1)
    with opened(state) as ledger:
        ledger.reserve(UPDATE.name, UPDATE.terms, UPDATE.cost, Request("fl.example.com", "training", "lost"))
    told = run(capsys, "status", state, "--json").document
    assert (told["booked"], told["released"], told["unsettled"]) == (3, 2, 1)
    assert "1 booking never became a release" in run(capsys, "status", state).out


def test_servers_and_mechanisms_stand_apart(tmp_path, capsys):
    state = device(tmp_path / "state", updates=2)
    with opened(state) as ledger:
        ask(ledger, BoundedScalar(0.0, 1.0, "0.25"), 0.5, "loss", server="other.example.org", purpose="selection")
    told = run(capsys, "status", state, "--json").document
    assert {group["server"]: group["booked"] for group in told["by_server"]} == {
        "fl.example.com": 3,
        "other.example.org": 1,
    }
    assert [group["mechanism"] for group in told["by_mechanism"]] == [
        "bounded_scalar",
        "clipped_update",
        "label_histogram",
    ]


def test_a_ledger_that_books_too_little_is_not_shown_as_within_its_budget(tmp_path, capsys, monkeypatch):
    """A device with changed software, whose chain, sums and signatures are all right."""
    state = device(tmp_path / "state")
    monkeypatch.setattr(ledger_module, "spend_of", lambda cost, limits: Spend(pure_micro_epsilon=1))
    with opened(state) as ledger:
        for number in range(60):
            ask(ledger, UPDATE, GRADIENT, f"unpaid {number}")
    told = run(capsys, "status", state, "--json").document
    assert told["faults"]
    assert told["epsilon_so_far"] > told["budget"]["epsilon"]
    assert "60 entries booked less" in " ".join(run(capsys, "status", state).out.split())


def test_an_unused_ledger_is_wholly_left(tmp_path, capsys):
    state = device(tmp_path / "state", updates=0, histogram=False)
    told = run(capsys, "status", state, "--json").document
    assert told["epsilon_so_far"] == 0
    assert all(share["used"] == 0 for share in told["shares"])
    assert told["more_like_the_last"] is None
    assert "whole budget is left" in run(capsys, "status", state).out


def test_the_shares_are_those_of_the_ledger_and_add_up_to_the_budget(tmp_path):
    view = read_ledger(device(tmp_path / "state"))
    shares = shares_of(view)
    assert sum(share.epsilon for share in shares) == pytest.approx(view.budget.epsilon)
    assert [share.spent for share in shares] == [
        view.status.spent.pure_micro_epsilon,
        view.status.spent.mu_squared_nano,
    ]


@pytest.mark.parametrize("named", ["directory", "database"])
def test_a_ledger_is_named_by_its_directory_or_its_database(tmp_path, capsys, named):
    state = device(tmp_path / "state")
    assert run(capsys, "status", state if named == "directory" else state / "ledger.db").code == ExitCode.DONE


def test_text_fits_a_narrow_terminal_and_a_pipe(tmp_path, capsys):
    text = run(capsys, "status", device(tmp_path / "state")).out
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text


@pytest.mark.parametrize("command", ["status", "verify", "explain"])
def test_a_path_that_holds_no_ledger_is_told_apart_from_one_that_is_not_there(tmp_path, capsys, command):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").touch()
    nothing = run(capsys, command, tmp_path / "empty")
    assert nothing.code == ExitCode.FOUND_WRONG
    assert nothing.err.startswith("covey: there is no ledger in this directory")
    assert run(capsys, command, tmp_path / "nowhere").code == ExitCode.USED_WRONGLY
    assert run(capsys, command, tmp_path / "file.txt").code == ExitCode.USED_WRONGLY


@given(st.floats(min_value=0, max_value=1e6))
def test_what_is_spent_never_looks_smaller_and_what_is_left_never_larger(epsilon):
    assert float(up(epsilon)) >= epsilon - 1e-8
    assert float(down(epsilon)) <= epsilon + 1e-8
    assert abs(float(up(epsilon)) - epsilon) <= 0.001 + 1e-8


def test_plain_rounding_would_have_understated_a_spend():
    assert float(f"{0.5001:.3f}") < 0.5001 <= float(up(0.5001))


@given(st.floats(min_value=0, max_value=1))
def test_only_nothing_is_shown_as_0_percent_and_only_all_as_100(share):
    assert (percent_left(share) == "0 %") == (share == 0)
    assert (percent_used(share) == "100 %") == (share == 1)


@given(st.text())
def test_no_name_can_steer_a_terminal(name):
    assert printable(name).isprintable()
    assert len(printable(name)) == len(name)


def test_an_endless_epsilon_is_shown_as_such():
    assert up(math.inf) == "∞"
