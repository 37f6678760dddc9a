"""The demo tells the truth: every step ends as it says, and the commands it suggests work on the files it left."""

from __future__ import annotations

import importlib.util
import shlex
import sys

import pytest

import covey
from tests.architecture.repository import ROOT


@pytest.fixture(scope="module")
def demo():
    spec = importlib.util.spec_from_file_location("privacy_demo", ROOT / "examples/privacy_demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their annotations up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


@pytest.mark.statistical
def test_the_demo_ends_well_and_its_suggestions_work(demo, folder, capsys):
    out = folder / "out"
    assert demo.main(["--out", str(out), "--trials", "1000"]) == covey.ExitCode.DONE
    told = capsys.readouterr().out
    assert "NOT AS IT SHOULD BE" not in told
    assert "declined" in told
    assert "is left for Gaussian noise; nothing was booked or released" in " ".join(told.split())
    assert {path.name for path in out.iterdir()} >= {"device", "tampered", "receipts.jsonl", "report.html"}
    suggested = told.partition("Try it on these files")[2].replace("\\\n", "").splitlines()
    lines = [shlex.split(line)[1:] for line in suggested if " privacy " in line]
    assert len(lines) == 3
    assert [covey.run(covey.covey, line) for line in lines] == [covey.ExitCode.DONE] * 3


def test_what_an_earlier_demo_left_is_replaced_and_nothing_else(demo, tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    assert demo.prepare(ours)
    (ours / "device").mkdir()
    assert demo.prepare(ours)
    assert not (ours / "device").exists()
    theirs.mkdir()
    (theirs / "thesis.txt").write_text("irreplaceable")
    assert not demo.prepare(theirs)
    assert demo.main(["--out", str(theirs)]) == covey.ExitCode.USED_WRONGLY
    assert (theirs / "thesis.txt").read_text() == "irreplaceable"


@pytest.mark.statistical
def test_a_demo_that_goes_wrong_says_so(demo, tmp_path, monkeypatch, capsys):
    """Where the copy was not altered, nothing is caught, and the demo must not end as if it had been."""
    monkeypatch.setattr(demo, "halve_the_first_spend", lambda ledger: None)
    assert demo.main(["--out", str(tmp_path / "out"), "--trials", "300"]) == covey.ExitCode.FOUND_WRONG
    assert "NOT AS IT SHOULD BE: the ledger" in capsys.readouterr().out
