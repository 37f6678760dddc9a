"""`covey privacy explain`: words for everything that can leave a device, honest about whom they protect."""

from __future__ import annotations

import re

import pytest

from covey import ExitCode
from privacy.auditing import BUILT_IN
from privacy.budget import NeighbouringRelation, PrivacyCost, PrivacyUnit
from privacy.explain import in_words
from privacy.mechanisms import LabelHistogram, RandomizedResponse
from privacy.mechanisms.dp_sgd import DpSgd
from privacy.randomness import NoiseSource, SeededSource
from privacy.release import Answer, Request, perform
from privacy.reporting.amounts import odds_percent
from tests.privacy.cli_helpers import GRADIENT, LABELS, UPDATE, ask, device, opened, run

JARGON = ("rényi", "gaussian", "laplace", "μ", "zcdp", "sensitivity", "neighbour", "clipped", "micro-ε", "pure")


@pytest.mark.parametrize("mechanism", [*BUILT_IN, DpSgd.name])
def test_every_mechanism_has_words_of_its_own(mechanism):
    assert mechanism not in in_words(mechanism)[0]


def test_a_mechanism_without_words_is_still_counted_and_named(tmp_path, capsys):
    state = device(tmp_path / "state", updates=0, histogram=False)
    cost = PrivacyCost.pure(1, PrivacyUnit.DEVICE, NeighbouringRelation.REPLACE)
    with opened(state) as ledger:
        reservation = ledger.reserve("somebody_elses", {}, cost, Request("s", "p", "1"))
        ledger.settle(reservation, Answer(b"noised"))
    told = run(capsys, "explain", state)
    assert told.code == ExitCode.DONE
    assert "somebody_elses release" in told.out
    assert "no words for this kind" in told.out
    assert "ε=1" in told.out


def test_the_text_glosses_its_symbols_and_uses_no_jargon(tmp_path, capsys):
    text = run(capsys, "explain", device(tmp_path / "state")).out.lower()
    assert "ε (epsilon) measures how much a release can reveal" in text
    assert "δ (delta)" in text
    assert [word for word in JARGON if word in text] == []


def test_whom_a_release_protects_is_said_of_each_kind(tmp_path, capsys):
    kinds = run(capsys, "explain", device(tmp_path / "state"), "--json").document["kinds"]
    histogram, update = (kind["text"] for kind in kinds)
    assert "does not hide what your records have in common" in histogram
    assert "hides everything that the device holds" in update
    assert "hides everything" not in histogram


def test_the_timeline_climbs_to_the_total(tmp_path, capsys):
    document = run(capsys, "explain", device(tmp_path / "state", updates=6), "--json").document
    running = [entry["epsilon_running"] for entry in document["timeline"]]
    assert running == sorted(running)
    assert running[-1] == document["epsilon_so_far"]
    assert all(entry["left_the_device"] for entry in document["timeline"])


def test_the_newest_are_shown_and_the_others_counted(tmp_path, capsys):
    state = device(tmp_path / "state", updates=0, histogram=False)
    with opened(state) as ledger:
        for number in range(25):
            ask(ledger, LabelHistogram(2, "0.01"), LABELS, f"epoch {number}")
    dates = re.compile(r"^\d{4}-\d\d-\d\d  ", flags=re.MULTILINE)
    short, whole = run(capsys, "explain", state).out, run(capsys, "explain", state, "--all").out
    assert len(dates.findall(short)) == 20
    assert "5 earlier ones are not shown" in short
    assert len(dates.findall(whole)) == 25
    assert max(map(len, short.splitlines())) <= 80


def test_what_never_left_is_not_told_as_if_it_had(tmp_path, capsys):
    state = device(tmp_path / "state", updates=1, histogram=False)
    with opened(state) as ledger:
        ledger.reserve(UPDATE.name, UPDATE.terms, UPDATE.cost, Request("s", "training", "interrupted"))
        seeded = Request("s", "training", "test")
        perform(ledger, UPDATE, GRADIENT, seeded, NoiseSource(SeededSource("a test")))
    text = " ".join(run(capsys, "explain", state).out.split())
    assert "nothing left the device" in text
    assert "may never leave the device" in text
    timeline = run(capsys, "explain", state, "--json").document["timeline"]
    assert [entry["left_the_device"] for entry in timeline] == [True, False, False]


def test_odds_are_those_of_randomised_response():
    told = RandomizedResponse(num_choices=2, epsilon=1).probability_of_truth
    assert odds_percent(1) == "73.2 %"
    assert 0.731 <= told <= 0.732
    assert odds_percent(0) == "50 %"
    assert odds_percent(40) == "practically 100 %"


def test_an_unused_device_has_nothing_to_explain(tmp_path, capsys):
    told = run(capsys, "explain", device(tmp_path / "state", updates=0, histogram=False))
    assert told.code == ExitCode.DONE
    assert "Nothing has left this device yet" in told.out
