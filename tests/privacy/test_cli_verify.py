"""`covey privacy verify`: only an intact ledger is called intact, and a person may decide about the others."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

import privacy.accounting.second_opinion
from covey import ExitCode
from privacy.accounting import epsilon_spent
from privacy.accounting.limits import Spend
from privacy.errors import LedgerTampered
from privacy.ledger import Ledger
from privacy.reporting.ledger_view import read_ledger
from privacy.reporting.verification import recompute
from tests.privacy.cli_helpers import GRADIENT, UPDATE, Server, ask, device, opened, run
from tests.privacy.ledger_helpers import change, copy_of, flipped


def change_an_entry(state):
    change(state, "UPDATE entry SET body = replace(body, '250000', '125000') WHERE seq = 1")


def drop_the_last_entry(state):
    change(state, "DELETE FROM entry WHERE seq = (SELECT max(seq) FROM entry)")


def swap_two_answers(state):
    change(state, "UPDATE answer SET sealed = (SELECT sealed FROM answer WHERE reserve = 3) WHERE reserve = 1")


def forge_the_head(state):
    change(state, "UPDATE head SET signature = zeroblob(64)")


def change_a_countersignature(state):
    change(state, "UPDATE countersignature SET body = replace(body, '\"sequence\":8', '\"sequence\":6')")


def lose_the_entries(state):
    for path in state.glob("ledger.db*"):
        path.unlink()


def lose_the_anchor(state):
    (state / "ledger.anchor").unlink()


def damage_the_anchor(state):
    anchor = state / "ledger.anchor"
    anchor.write_bytes(flipped(flipped(anchor.read_bytes(), 20), 4096 + 20))


def restore_an_old_database(state):
    old = copy_of(state, state.with_name("old"))
    with opened(state) as ledger:
        ask(ledger, UPDATE, GRADIENT, "after the backup")
    lose_the_entries(state)
    for path in old.glob("ledger.db*"):
        shutil.copy(path, state)


DAMAGES = [
    change_an_entry,
    drop_the_last_entry,
    swap_two_answers,
    forge_the_head,
    change_a_countersignature,
    lose_the_entries,
    lose_the_anchor,
    damage_the_anchor,
    restore_an_old_database,
]


@pytest.fixture
def state(tmp_path):
    return device(tmp_path / "state", server=Server())


def test_an_intact_ledger_is_called_intact(state, capsys):
    told = run(capsys, "verify", state)
    assert told.code == ExitCode.DONE
    assert told.out.startswith("The ledger is intact")
    document = run(capsys, "verify", state, "--json").document
    assert document["intact"]
    assert (document["entries"], document["answers"], document["countersignatures"]) == (9, 4, 1)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_every_damage_ends_with_1_and_one_sentence(state, capsys, damage):
    damage(state)
    told = run(capsys, "verify", state)
    assert told.code == ExitCode.FOUND_WRONG
    assert told.out == ""
    assert told.err.startswith("covey: the ledger cannot be believed: ")
    assert told.err.count("\n") == 1
    assert "--start-over" in told.err


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_every_damage_is_told_to_programs_too(state, capsys, damage):
    damage(state)
    told = run(capsys, "verify", state, "--json")
    assert told.code == ExitCode.FOUND_WRONG
    assert told.document["intact"] is False
    assert told.document["problem"] in told.err


@pytest.mark.parametrize("command", ["status", "explain"])
def test_nothing_is_shown_of_a_ledger_that_cannot_be_believed(state, capsys, command):
    change_an_entry(state)
    told = run(capsys, command, state)
    assert (told.code, told.out) == (ExitCode.FOUND_WRONG, "")


def test_a_whole_forgery_is_caught_by_the_enrolled_key(state, tmp_path, capsys):
    forged = device(tmp_path / "forged")
    key = read_ledger(state).device_key
    assert run(capsys, "verify", forged).code == ExitCode.DONE
    assert run(capsys, "verify", state, "--device-key", key).code == ExitCode.DONE
    assert run(capsys, "verify", forged, "--device-key", key).code == ExitCode.FOUND_WRONG


@pytest.mark.parametrize("key", ["00", "not hexadecimal", "0" * 63])
def test_a_key_that_is_none_is_wrong_usage(state, capsys, key):
    assert run(capsys, "verify", state, "--device-key", key).code == ExitCode.USED_WRONGLY


def test_a_second_accountant_agrees(state, capsys):
    told = run(capsys, "verify", state, "--recompute", "--json")
    assert told.code == ExitCode.DONE
    again = told.document["recomputed"]
    assert again["stands"]
    assert again["epsilon_theirs_low"] <= again["epsilon_ours"] + 1e-8
    assert again["epsilon_ours"] == pytest.approx(again["epsilon_theirs_high"], abs=1e-3)


def test_an_accountant_that_understates_is_caught(state, capsys, monkeypatch):
    monkeypatch.setattr(privacy.accounting.second_opinion, "epsilon_spent", lambda *cost: 0.95 * epsilon_spent(*cost))
    told = run(capsys, "verify", state, "--recompute")
    assert told.code == ExitCode.FOUND_WRONG
    assert "ours is lower" in told.err


def test_a_booking_below_its_cost_is_caught(state):
    view = read_ledger(state)
    first, *others = view.bookings
    cheaper = replace(first, spend=Spend(first.spend.pure_micro_epsilon - 1))
    assert recompute(view).faults == ()
    assert "1 entry booked less" in recompute(replace(view, bookings=(cheaper, *others))).fault


def test_limits_above_the_budget_are_caught(state):
    view = read_ledger(state)
    wider = replace(view.status.limits, mu_squared_nano=view.status.limits.mu_squared_nano * 11 // 10)
    assert "allow more" in recompute(replace(view, status=replace(view.status, limits=wider))).fault


def test_nothing_booked_is_nothing_to_compare(tmp_path, capsys):
    told = run(capsys, "verify", device(tmp_path / "new", updates=0, histogram=False), "--recompute")
    assert told.code == ExitCode.DONE
    assert "nothing to compare" in told.out


def start_over(capsys, state, *more):
    words = ("--start-over", "--reason", "disk replaced", "--key-file", state / "ledger.key", *more)
    return run(capsys, "verify", state, *words)


def test_a_person_may_start_over_and_what_was_spent_stays_spent(state, capsys):
    before = run(capsys, "status", state, "--json").document
    change_an_entry(state)
    told = start_over(capsys, state)
    assert told.code == ExitCode.DONE
    assert "disk replaced" in told.err
    after = run(capsys, "status", state, "--json").document
    assert after["started_over"]
    assert [share["spent"] for share in after["shares"]] == [share["spent"] for share in before["shares"]]
    assert after["epsilon_so_far"] >= before["epsilon_so_far"]
    assert list(state.glob("ledger.broken-*"))
    assert "disk replaced" in run(capsys, "status", state).out
    assert "started over" in run(capsys, "explain", state).out


def test_a_lost_budget_must_be_given_to_start_over(state, capsys):
    lose_the_entries(state)
    assert start_over(capsys, state).code == ExitCode.USED_WRONGLY
    assert start_over(capsys, state, "--epsilon", 8).code == ExitCode.USED_WRONGLY
    told = start_over(capsys, state, "--epsilon", 8, "--delta", "1e-6", "--training", "device", "--relation", "replace")
    assert told.code == ExitCode.DONE
    assert run(capsys, "status", state, "--json").document["epsilon_so_far"] > 1


def test_an_intact_ledger_is_not_started_over(state, capsys):
    head = read_ledger(state).status.digest
    assert start_over(capsys, state).code == ExitCode.USED_WRONGLY
    assert read_ledger(state).status.digest == head


@pytest.mark.parametrize("option", ["--reason", "--key-file"])
def test_a_decision_needs_a_reason_and_keys(state, capsys, option):
    change_an_entry(state)
    value = state / "ledger.key" if option == "--key-file" else "because"
    assert run(capsys, "verify", state, "--start-over", option, value).code == ExitCode.USED_WRONGLY
    assert run(capsys, "verify", state, option, value).code == ExitCode.USED_WRONGLY
    with pytest.raises(LedgerTampered):
        Ledger.read(state)


def test_no_secret_is_ever_shown(state, capsys):
    secret = (state / "ledger.key").read_bytes().split(b"\n", 1)[1].hex()
    change_an_entry(state)
    told = start_over(capsys, state)
    assert secret[:64] not in told.out + told.err
    assert secret[64:] not in told.out + told.err
