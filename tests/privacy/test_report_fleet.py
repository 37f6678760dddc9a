"""`covey privacy report`: whatever does not reconcile is found, by its kind, and nothing else is called wrong."""

from __future__ import annotations

import shutil
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest

from covey import ExitCode
from privacy.accounting.limits import Spend
from privacy.budget import SampledGaussian
from privacy.keys import LedgerKeys
from privacy.ledger import Ledger
from privacy.ledger import book as ledger_module
from privacy.ledger.entries import head_statement
from privacy.randomness import NoiseSource, SeededSource
from privacy.receipts import Receipt, issue_receipt
from privacy.release import Request, perform
from privacy.reporting.findings import FindingKind
from privacy.reporting.fleet import read_fleet
from privacy.reporting.fleet_figures import by_device, by_group, over_time, short_names
from privacy.reporting.ledger_view import read_ledger
from privacy.reporting.terminal import progress
from tests.privacy.cli_helpers import BUDGET, GRADIENT, HISTOGRAM, LABELS, UPDATE, Server, ask, device, opened, run
from tests.privacy.ledger_helpers import change, copy_of


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def fleet(tmp_path, server):
    """Three devices whose releases were all received."""
    return [device(tmp_path / f"device-{number}", updates=number, server=server) for number in range(1, 4)]


@pytest.fixture
def kinds(fleet, server, tmp_path, capsys):
    """The kinds of findings after something was done to the fleet or to the server's receipts."""

    def found(*more) -> dict[str, int]:
        receipts = server.export(tmp_path / "receipts.jsonl")
        told = run(capsys, "report", *fleet, *more, "--receipts", receipts, "--json")
        assert told.code == (ExitCode.FOUND_WRONG if told.document["findings"] else ExitCode.DONE)
        assert told.document["reconciles"] == (told.code == ExitCode.DONE)
        assert bool(told.err) == bool(told.document["findings"])
        return {finding["kind"]: finding["count"] for finding in told.document["findings"]}

    return found


def signed(state, receipt: Receipt) -> Receipt:
    """The receipt signed anew by its device, as one whose keys were stolen could."""
    keys = LedgerKeys.from_file(state / "ledger.key")
    return replace(receipt, signature=keys.signing.sign(receipt.statement))


def test_a_fleet_that_reconciles_has_no_finding(kinds, server, fleet, tmp_path, capsys):
    assert kinds() == {}
    document = run(capsys, "report", *fleet, "--receipts", tmp_path / "receipts.jsonl", "--json").document
    assert document["receipts"] == {
        "file": "receipts.jsonl",
        "read": 9,
        "matched": 9,
        "unchecked_by_server": {},
    }


def test_a_release_without_a_receipt_was_never_received(kinds, server):
    del server.receipts[-2:]
    assert kinds() == {FindingKind.NEVER_RECEIVED: 2}


def test_a_receipt_of_a_release_that_is_not_there_is_found(kinds, server, fleet):
    first = server.receipts[0]
    server.receipts[0] = signed(fleet[0], replace(first, sequence=first.sequence - 1))
    # Its own signature of that entry is missing, so it is not even believed; with it, the entry is no release.
    assert kinds() == {FindingKind.BAD_RECEIPT: 1, FindingKind.NEVER_RECEIVED: 1}
    keys = LedgerKeys.from_file(fleet[0] / "ledger.key")
    statement = head_statement(first.ledger, first.sequence - 1, first.head)
    moved = replace(first, sequence=first.sequence - 1, head_signature=keys.signing.sign(statement))
    server.receipts[0] = signed(fleet[0], moved)
    assert kinds() == {FindingKind.NOT_IN_LEDGER: 1, FindingKind.NEVER_RECEIVED: 1}


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"payload_hash": "0" * 64}, "payload hash"),
        ({"mechanism": "bounded_scalar"}, "mechanism"),
        ({"cost": UPDATE.cost}, "cost"),
        ({"request": "1" * 64}, "request"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_receipt_that_differs_from_its_entry_is_found(fleet, server, tmp_path, changed, word):
    server.receipts[0] = signed(fleet[0], replace(server.receipts[0], **changed))
    (finding,) = read_fleet(fleet, server.export(tmp_path / "receipts.jsonl"), progress).findings
    assert finding.kind is FindingKind.DIFFERS
    assert finding.sentence.endswith(f"in: {word}")


def test_a_receipt_altered_by_the_server_is_not_believed(kinds, server):
    server.receipts[0] = replace(server.receipts[0], payload_hash="0" * 64)
    assert kinds() == {FindingKind.BAD_RECEIPT: 1, FindingKind.NEVER_RECEIVED: 1}


def test_a_line_that_is_no_receipt_is_named_by_its_number(fleet, server, tmp_path, capsys):
    receipts = server.export(tmp_path / "receipts.jsonl")
    lines = receipts.read_text().splitlines(keepends=True)
    receipts.write_text("".join([*lines[:2], "\n", "{junk\n", *lines[2:]]))
    (finding,) = run(capsys, "report", *fleet, "--receipts", receipts, "--json").document["findings"]
    assert (finding["kind"], finding["place"]) == ("bad_receipt", "receipts.jsonl:4")


def test_a_receipt_exported_twice_is_counted_once(kinds, server):
    server.receipts += server.receipts
    assert kinds() == {}


def test_no_receipts_at_all_do_not_pass_for_agreement(kinds, server):
    server.receipts.clear()
    assert kinds() == {FindingKind.BAD_RECEIPT: 1}


def test_a_ledger_set_back_with_all_its_files_is_found_by_the_receipts(fleet, server, kinds, tmp_path):
    old = copy_of(fleet[0], tmp_path / "backup")
    with opened(fleet[0]) as ledger:
        server.receive(ledger, ask(ledger, HISTOGRAM, LABELS, "epoch 2"))
    shutil.rmtree(fleet[0])
    copy_of(old, fleet[0])
    assert kinds() == {FindingKind.ROLLED_BACK: 1}


def test_a_ledger_that_went_another_way_is_found_by_the_receipts(fleet, server, kinds, tmp_path):
    """Set back, and then used again: the entries have the same numbers, but are others."""
    old = copy_of(fleet[0], tmp_path / "backup")
    with opened(fleet[0]) as ledger:
        server.receive(ledger, ask(ledger, HISTOGRAM, LABELS, "epoch 2"))
    shutil.rmtree(fleet[0])
    copy_of(old, fleet[0])
    with opened(fleet[0]) as ledger:
        ask(ledger, HISTOGRAM, LABELS, "epoch 3")
    assert kinds() == {FindingKind.DIFFERS: 1}


def test_a_database_older_than_its_anchor_is_rolled_back(fleet, server, kinds, tmp_path):
    old = copy_of(fleet[0], tmp_path / "backup")
    with opened(fleet[0]) as ledger:
        server.receive(ledger, ask(ledger, HISTOGRAM, LABELS, "epoch 2"))
    for path in fleet[0].glob("ledger.db*"):
        path.unlink()
    for path in old.glob("ledger.db*"):
        shutil.copy(path, fleet[0])
    assert kinds() == {FindingKind.ROLLED_BACK: 1, FindingKind.UNKNOWN_LEDGER: 3}


def test_an_altered_ledger_takes_no_part_in_any_figure(fleet, kinds, tmp_path, capsys):
    change(fleet[0], "UPDATE entry SET body = replace(body, '250000', '125000') WHERE seq = 1")
    assert kinds() == {FindingKind.TAMPERED: 1, FindingKind.UNKNOWN_LEDGER: 2}
    document = run(capsys, "report", *fleet, "--json").document
    assert (document["ledgers_given"], document["ledgers_counted"]) == (3, 2)
    assert str(fleet[0]) not in {row["place"] for row in document["devices"]}


def test_a_ledger_signed_and_complete_that_books_too_little_is_found(fleet, kinds, monkeypatch):
    """A device with changed software: its chain, its sums and its signatures are all right."""
    monkeypatch.setattr(ledger_module, "spend_of", lambda cost, limits: Spend(pure_micro_epsilon=1))
    with opened(fleet[0]) as ledger:
        ask(ledger, HISTOGRAM, LABELS, "epoch 2", server="elsewhere.example.org")
    found = kinds()
    assert found.pop(FindingKind.UNDERBOOKED, 0) == 1
    assert found == {FindingKind.UNKNOWN_LEDGER: 2}


def test_a_cost_that_cannot_be_computed_is_a_finding_not_a_crash(fleet):
    view = read_ledger(fleet[0])
    cost = replace(UPDATE.cost, sampled=SampledGaussian(Fraction(1, 2), Fraction(1, 10**400), 1), mu_squared_nano=0)
    absurd = replace(view.bookings[0], cost=cost)
    assert len(replace(view, bookings=(absurd,)).booking_faults) == 1


def test_a_directory_without_a_ledger_is_unreadable(kinds, tmp_path):
    (tmp_path / "empty").mkdir()
    assert kinds(tmp_path / "empty") == {FindingKind.UNREADABLE: 1}


def test_a_copy_is_not_counted_as_another_device(fleet, kinds, tmp_path, capsys):
    copy = copy_of(fleet[0], tmp_path / "copy")
    assert kinds(copy) == {FindingKind.TWO_COPIES: 1}
    assert run(capsys, "report", *fleet, copy, "--json").document["ledgers_counted"] == 3


def test_the_longer_of_two_copies_is_counted_and_a_branch_is_a_rollback(fleet, tmp_path, capsys):
    copy = copy_of(fleet[0], tmp_path / "copy")
    with opened(fleet[0]) as ledger:
        ask(ledger, HISTOGRAM, LABELS, "epoch 2")
    older = run(capsys, "report", copy, fleet[0], "--json").document
    assert [finding["kind"] for finding in older["findings"]] == [FindingKind.TWO_COPIES]
    assert older["devices"][0]["place"] == str(fleet[0])
    with opened(copy) as ledger:
        ask(ledger, HISTOGRAM, LABELS, "another epoch")
    branch = run(capsys, "report", copy, fleet[0], "--json").document
    assert [finding["kind"] for finding in branch["findings"]] == [FindingKind.ROLLED_BACK]


def test_receipts_of_a_device_that_was_left_out_are_found(fleet, server, kinds):
    fleet.pop()
    assert kinds() == {FindingKind.UNKNOWN_LEDGER: 4}


def test_releases_to_a_server_without_receipts_are_unchecked_not_wrong(fleet, kinds, tmp_path, capsys):
    with opened(fleet[0]) as ledger:
        ask(ledger, HISTOGRAM, LABELS, "epoch 2", server="elsewhere.example.org")
    assert kinds() == {}
    told = run(capsys, "report", *fleet, "--receipts", tmp_path / "receipts.jsonl")
    assert "1 release to elsewhere.example.org not checked" in told.out


def test_what_never_leaves_needs_no_receipt(fleet, kinds):
    with opened(fleet[0]) as ledger:
        seeded = Request("fl.example.com", "training", "test")
        perform(ledger, UPDATE, GRADIENT, seeded, NoiseSource(SeededSource("a test")))
        ledger.reserve(UPDATE.name, UPDATE.terms, UPDATE.cost, Request("fl.example.com", "training", "interrupted"))
    assert kinds() == {}


def test_a_ledger_that_was_started_over_is_noticed_not_accused(fleet, server, kinds, tmp_path, capsys):
    change(fleet[0], "UPDATE entry SET body = replace(body, '250000', '125000') WHERE seq = 1")
    decision = ("--start-over", "--reason", "disk replaced", "--key-file", fleet[0] / "ledger.key")
    assert run(capsys, "verify", fleet[0], *decision).code == ExitCode.DONE
    assert kinds() == {}
    notices = run(capsys, "report", *fleet, "--receipts", tmp_path / "receipts.jsonl", "--json").document["notices"]
    assert any("disk replaced" in notice["sentence"] for notice in notices)
    assert any("from before the ledger was started over" in notice["sentence"] for notice in notices)


def test_another_device_cannot_speak_for_a_ledger(fleet, server, kinds, tmp_path):
    """A receipt that names a known ledger, signed throughout by somebody else's key."""
    keys = LedgerKeys.generate()
    with Ledger.open(tmp_path / "stranger", keys, BUDGET) as ledger:
        own = issue_receipt(ledger, ask(ledger, HISTOGRAM, LABELS, "epoch 1"))
        victim = server.receipts[0]
        forged = replace(
            own,
            ledger=victim.ledger,
            sequence=victim.sequence,
            head_signature=keys.signing.sign(head_statement(victim.ledger, victim.sequence, own.head)),
        )
        server.receipts.append(replace(forged, signature=keys.signing.sign(forged.statement)))
    assert kinds() == {FindingKind.DIFFERS: 1}


def test_epsilon_is_never_added_across_devices(fleet, tmp_path):
    views = [read_ledger(state) for state in fleet]
    one = by_group(views[:1], "mechanism")
    twins = [views[0], replace(views[0], place="twin")]
    both = by_group(twins, "mechanism")
    assert [group.most_epsilon for group in one] == [group.most_epsilon for group in both]
    assert [2 * group.booked for group in one] == [group.booked for group in both]


def test_those_with_the_least_left_come_first(fleet):
    figures = by_device([read_ledger(state) for state in fleet])
    left = [device.least_left for device in figures]
    assert left == sorted(left)
    assert [device.name for device in figures] == ["device-3", "device-2", "device-1"]


def test_the_timeline_never_falls_and_ends_at_what_devices_have_spent(fleet):
    views = [read_ledger(state) for state in fleet]
    moments = over_time(views, now=2**40)
    for low, high in pairwise(moments):
        assert low.median <= high.median
        assert low.high <= high.high
    assert moments[-1].high == max(device.epsilon for device in by_device(views))
    assert all(m.low <= m.tenth <= m.median <= m.ninetieth <= m.high for m in moments)


@pytest.mark.parametrize("at", [0, 10**15, 10**40])
def test_a_wrong_clock_neither_breaks_nor_stretches_the_timeline(fleet, at):
    views = [read_ledger(state) for state in fleet]
    odd = replace(views[0], bookings=tuple(replace(booking, at=at) for booking in views[0].bookings))
    honest = [moment.at for moment in over_time(views, now=2**40)]
    moments = over_time([odd, *views[1:]], now=2**40)
    assert moments[-1].high == max(device.epsilon for device in by_device(views))
    assert {moment.at for moment in moments} <= set(honest)
    assert len(over_time([odd], now=2_000_000_000)) == 1


def test_names_are_as_short_as_they_can_be_and_unique():
    assert short_names(["fleet/a/state", "fleet/b/state"]) == ["a/state", "b/state"]
    assert short_names(["x/one", "y/two"]) == ["one", "two"]
    assert len(set(short_names(["same", "same/", "./same"]))) >= 1
    assert short_names([]) == []


def test_a_summary_stays_short_however_many_devices_there_are(fleet, tmp_path, capsys):
    few = run(capsys, "report", *fleet).out
    many = [device(tmp_path / f"more-{number}", updates=1) for number in range(12)]
    told = run(capsys, "report", *fleet, *many).out
    assert "5 devices with more left are in the report" in told
    assert len(told.splitlines()) <= len(few.splitlines()) + 10
    assert max(map(len, told.splitlines())) <= 80
