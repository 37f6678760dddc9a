"""`covey privacy audit`: the honest pass without being called private, the dishonest are caught."""

from __future__ import annotations

import textwrap

import pytest

from covey import ExitCode
from privacy.auditing import mechanisms, usual_trials
from tests.architecture.repository import ROOT
from tests.privacy.cli_helpers import run

# A false alarm is then rarer than one in a million, and half the noise is still seen at once.
SURE = ("--trials", 1_000, "--confidence", 0.9999999)
DISHONEST = ROOT / "examples/dishonest_mechanisms.py"


@pytest.mark.statistical
def test_an_honest_mechanism_passes_and_is_not_called_private(capsys):
    told = run(capsys, "audit", *SURE)
    assert told.code == ExitCode.DONE
    assert "label_histogram" in told.out
    text = " ".join(told.out.split())
    assert "proves nothing: an experiment cannot show that a mechanism is private" in text
    assert "the shortfall of noise that this audit would have found" in text
    assert max(map(len, told.out.splitlines())) <= 80


@pytest.mark.statistical
@pytest.mark.parametrize("factory", ["half_the_noise", "noise_on_full_bins_only"])
def test_a_dishonest_mechanism_ends_with_1(capsys, factory):
    told = run(capsys, "audit", "--mechanism", f"{DISHONEST}:{factory}", *SURE)
    assert told.code == ExitCode.FOUND_WRONG
    assert f"! {factory} claims ε=1 but spends at least" in told.out
    assert told.err == f"covey: more is spent than is claimed by {factory}; release nothing through it\n"


@pytest.mark.statistical
def test_one_liar_among_the_honest_is_named(capsys):
    words = ("--mechanism", "randomized_response", "--mechanism", f"{DISHONEST}:half_the_noise")
    told = run(capsys, "audit", *words, *SURE, "--json")
    assert told.code == ExitCode.FOUND_WRONG
    assert told.document["exceeds_claim"]
    assert {audit["mechanism"]: audit["verdict"] for audit in told.document["audits"]} == {
        "randomized_response": "no_evidence_of_more",
        "half_the_noise": "exceeds_claim",
    }


@pytest.mark.statistical
def test_terms_shape_a_built_in_mechanism(capsys):
    words = ("--epsilon", 0.25, "--relation", "add_remove", *SURE)
    (audit,) = run(capsys, "audit", *words, "--json").document["audits"]
    assert (audit["claimed_epsilon"], audit["trials"]) == (0.25, 1_000)


@pytest.mark.statistical
def test_dp_sgd_is_audited_under_extreme_terms_too_and_what_it_refuses_is_named(capsys, monkeypatch):
    monkeypatch.setattr(mechanisms, "_EXTREMES_OF_DP_SGD", ((512, 24), (8, 25)))
    told = run(capsys, "audit", "--mechanism", "dp_sgd", "--trials", 60, "--confidence", 0.9999999)
    assert told.code == ExitCode.DONE
    assert [line.split("  ")[0] for line in told.out.splitlines()[2:4]] == ["dp_sgd", "dp_sgd 512, grid 24"]
    text = " ".join(told.out.split())
    assert "not tried on dp_sgd: noise multiplier 8, grid 25: it refuses such terms" in text
    assert "which values occur, what they end with, and on which grid they lie" in text
    assert max(map(len, told.out.splitlines())) <= 80


@pytest.mark.statistical
def test_dp_sgd_with_named_noise_is_audited_with_that_alone(capsys):
    words = ("--mechanism", "dp_sgd", "--noise-multiplier", 4, "--trials", 60, "--json")
    assert [audit["mechanism"] for audit in run(capsys, "audit", *words).document["audits"]] == ["dp_sgd"]


def test_runs_are_fewer_where_each_one_trains_a_model():
    assert [usual_trials(name) for name in ("label_histogram", "dp_sgd")] == [20_000, 3_000]


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """A module in the current directory, with an honest factory and others that are of no use."""
    (tmp_path / "own_mechanisms_of_a_test.py").write_text(
        textwrap.dedent("""
            from privacy.mechanisms import LabelHistogram

            def honest():
                return LabelHistogram(2, 1)

            def no_mechanism():
                return 3
        """)
    )
    (tmp_path / "broken.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    return "own_mechanisms_of_a_test"


@pytest.mark.statistical
@pytest.mark.parametrize("form", ["{}:honest", "{}.py:honest"])
def test_a_mechanism_of_ones_own_is_named_by_module_or_file(own_module, capsys, form):
    assert run(capsys, "audit", "--mechanism", form.format(own_module), *SURE).code == ExitCode.DONE


@pytest.mark.parametrize(
    "name",
    [
        "{}:nobody",
        "{}:no_mechanism",
        "{}.py:nobody",
        "{}.py:no_mechanism",
        "nowhere_at_all:honest",
        "nowhere.py:honest",
        "broken.py:honest",
        ":honest",
        "{}:",
        "nonsense",
    ],
)
def test_a_mechanism_that_cannot_be_had_is_wrong_usage(own_module, capsys, name):
    told = run(capsys, "audit", "--mechanism", name.format(own_module))
    assert (told.code, told.out) == (ExitCode.USED_WRONGLY, "")
    assert "nothing was run" in told.err


@pytest.mark.parametrize(
    "words",
    [
        ("--trials", 0),
        ("--trials", "many"),
        ("--confidence", 1),
        ("--epsilon", -1),
        ("--delta", 0),
        ("--relation", "distant"),
        ("--noise-multiplier", 2),
        ("--all", "--noise-multiplier", 2),
        ("--all", "--mechanism", "label_histogram"),
        ("--mechanism", "somebody:factory", "--epsilon", 1),
    ],
    ids=lambda words: " ".join(map(str, words)),
)
def test_terms_that_make_no_sense_are_wrong_usage(capsys, words):
    told = run(capsys, "audit", *words)
    assert (told.code, told.out) == (ExitCode.USED_WRONGLY, "")
