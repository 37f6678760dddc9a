"""What is shown follows from what was measured: on the way, in the table at the end, and on the page."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from server_kit.demo.cli import closing, program
from server_kit.demo.data import KINDS, deal
from server_kit.demo.figures import curves, line_of
from server_kit.demo.progress import Glance, Point, Progress, home_of
from server_kit.demo.report import page_of
from server_kit.demo.running import Folder, Results
from server_kit.demo.summary import Summary
from server_kit.demo.terms import Terms
from server_kit.demo.watching import Lines, Table, clock
from server_kit.store.protocol import Happening

DEVICES, ROUNDS = deal(6), 8
KIND_OF = [device.kind for device in DEVICES]


def results_of(cohort_of, good=0.9, one=0.5):
    """As if cohorts had been found so: root for two rounds, then each on its own."""
    leaves = sorted(set(cohort_of.values()))
    points = [Point("0", number, tuple(cohort_of), np.full(6, 0.3)) for number in range(3)]
    for leaf in leaves if leaves != ["0"] else []:
        members = tuple(device for device, home in cohort_of.items() if home == leaf)
        points += [Point(leaf, number, members, np.full(6, good)) for number in range(3, ROUNDS + 2)]
    home = SimpleNamespace(config=SimpleNamespace(listen=SimpleNamespace(status="127.0.0.1:50000")))
    progress = Progress(SimpleNamespace(home=home), None, None, [])  # type: ignore[arg-type]
    progress.points, progress.spent = points, [(0, 1.0), (ROUNDS, 6.0)]
    if leaves != ["0"]:
        progress.changes.append(Happening("split", 0.0, "0", {"why": "groups <by> labels"}))
    last = Glance(65.0, 6, tuple(leaves), dict.fromkeys(leaves, ROUNDS), cohort_of, 6.0)
    one_model = SimpleNamespace(rounds=[np.full(6, one)] * (ROUNDS + 1))
    return Results(Terms(6, ROUNDS), DEVICES, progress, one_model, last)  # type: ignore[arg-type]


FOUND = results_of({device: f"0.{kind}" for device, kind in enumerate(KIND_OF)})
MIXED = results_of({device: f"0.{device % 2}" for device in range(6)})
WHOLE = results_of(dict.fromkeys(range(6), "0"))


ENTRANCE = "http://127.0.0.1:50000/#token=" + 43 * "t"


@pytest.fixture(autouse=True)
def _an_entrance(monkeypatch):
    """These results have no folder with a token in it."""
    monkeypatch.setattr("server_kit.demo.watching.entrance", lambda home: ENTRANCE)


def test_cohorts_that_are_the_kinds_agree_fully_and_others_do_not():
    assert Summary(FOUND).agreement == 1
    assert Summary(MIXED).agreement < 0.5
    assert Summary(WHOLE).agreement < 0.5


def test_the_gain_is_the_difference_for_the_devices_of_a_kind():
    lines = Summary(FOUND).by_kind()
    assert [line.kind for line in lines] == [*(kind.name for kind in KINDS), "all devices"]
    assert all(line.gain == pytest.approx(0.4) for line in lines)
    assert lines[0].cohorts == "0.0"


def test_a_loss_is_told_as_a_loss(tmp_path):
    worse = Summary(results_of({device: f"0.{kind}" for device, kind in enumerate(KIND_OF)}, good=0.4))
    assert "-10.0" in closing(worse, Folder(tmp_path))


def test_a_cohort_that_ran_ahead_is_compared_at_the_last_round():
    point = FOUND.progress.newest("0.0", ROUNDS)
    assert point is not None
    assert point.round == ROUNDS
    assert FOUND.progress.points[-1].round > ROUNDS


def test_after_a_merge_devices_belong_above_and_have_its_model():
    homes = {device: home_of(f"0.{kind}", ["0"]) for device, kind in enumerate(KIND_OF)}
    assert set(homes.values()) == {"0"}
    assert all(line.cohort_model == pytest.approx(0.3) for line in Summary(results_of(homes)).by_kind())


def test_until_it_is_asked_by_a_child_a_device_has_the_model_from_before_the_split():
    split = results_of({device: home_of("0", ["0.0", "0.1"]) for device in range(6)})
    split = replace(split, last=replace(split.last, leaves=("0.0", "0.1"), rounds={"0.0": ROUNDS, "0.1": ROUNDS}))
    assert all(line.cohort_model == pytest.approx(0.3) for line in Summary(split).by_kind())


def test_a_device_in_no_cohort_is_alone():
    lost = results_of({device: f"0.{kind}" for device, kind in enumerate(KIND_OF) if device})
    assert Summary(lost).agreement < 1
    assert Summary(lost).by_device()[0].cohort == "none"


def test_the_end_fits_80_columns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = closing(Summary(FOUND), Folder(tmp_path.relative_to(tmp_path) / "demo-output"))
    assert max(len(line) for line in text.split("Try next:")[0].splitlines()) <= 80
    assert "demo-output/report.html" in text


def test_a_path_with_a_space_is_quoted(tmp_path):
    text = closing(Summary(FOUND), Folder(tmp_path / "a b"))
    assert re.search(r"privacy report '[^']*a b'/devices/\*/ -o '[^']*a b'/privacy.html", text)


def test_the_command_is_named_as_it_can_be_called(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.executable", str(tmp_path / "bin" / "python"))
    assert program().endswith("python -m covey")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "covey").touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    assert program() == "bin/covey"
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert program() == "covey"


def test_a_cohorts_line_goes_back_to_the_root_and_each_round_stands_once():
    rounds = [point.round for point in line_of(FOUND.progress.points, "0.1")]
    assert rounds == list(range(ROUNDS + 2))
    own, one = curves(FOUND, "0.1")
    assert [number for number, _ in one] == list(range(ROUNDS + 1))
    assert (own[-1][1], one[-1][1]) == pytest.approx((90, 50))


@pytest.mark.parametrize("results", [FOUND, MIXED, WHOLE], ids=["found", "mixed", "whole"])
def test_the_page_tells_what_was_measured_and_escapes_what_others_said(results):
    page = page_of(Summary(results))
    assert page.count("<svg") == 3
    assert "<by>" not in page
    assert f"{Summary(results).agreement:.2f}" in page


def test_lines_say_everything_once(capsys):
    lines = Lines(Terms(6, ROUNDS))
    for _ in range(2):
        lines.seen(FOUND.last, FOUND.progress, FOUND.one_model)
    said = capsys.readouterr().out
    assert said.count(f"round {ROUNDS}/{ROUNDS}") == 1
    assert said.count("6 of 6 devices connected") == 1
    assert said.count("split of cohort 0") == 1
    assert said.count("http://127.0.0.1:50000/") == 1
    assert "0.0: 90% (50%)" in said


def shown_at(glance):
    """The table on a terminal of 80 columns."""
    drawn: list[object] = []
    table = Table(Terms(6, ROUNDS), SimpleNamespace(update=drawn.append))  # type: ignore[arg-type]
    table.seen(glance, FOUND.progress, FOUND.one_model)
    console = Console(width=80, record=True, file=StringIO())
    console.print(drawn[0])
    return console.export_text()


def test_the_table_shows_cohorts_against_the_one_model_and_fits_80_columns():
    text = shown_at(FOUND.last)
    assert max(map(len, text.splitlines())) <= 80
    assert "ε 6.00 of 8 spent" in text
    assert re.search(r"0\.2 .*90%.*50%", text)


def test_cohorts_that_have_just_begun_are_shown():
    begun = Glance(60.0, 6, ("0.8", "0.9"), {"0.8": 3, "0.9": 3}, {}, 2.0)
    assert "begins" in shown_at(begun)


def test_time_is_minutes_and_seconds():
    assert clock(125.9) == "2:05"
