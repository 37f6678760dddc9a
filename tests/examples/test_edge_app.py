"""The notebook app: notes stay in it, and what the SDK takes of its code is little."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from examples.edge_app.__main__ import HELP, noted
from examples.edge_app.notebook import TAGS, Notebook, new_model, on_mains
from tests.architecture.repository import ROOT
from tests.device_sdk.canaries import seen
from tests.device_sdk.runtime.federation import check_reconciled, entries_of, started

NOTES = {
    "feed the goldfish": "home",
    "quarterly figures for zaphod": "work",
    "dentist in wolverhampton": "health",
    "ferry to hiiumaa": "travel",
}


class App:
    """The app in a process of its own, and the person before it."""

    def __init__(self, folder, server):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "examples.edge_app", "--folder", str(folder), "--server", str(server)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.heard() == HELP

    def heard(self):
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def says_to(self, line):
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.heard()

    def quit(self):
        _, errors = self.process.communicate("/quit\n", timeout=60)
        assert (self.process.returncode, errors) == (0, "")


@pytest.fixture
def federation(tmp_path):
    federation = started(tmp_path, new_model(), rounds=4)
    yield federation
    federation.server.close()


@pytest.fixture
def app(tmp_path, federation):
    """Starts the app; ends it, whatever became of the test."""
    running = []

    def start():
        running.append(App(tmp_path / "notes", federation.server.enrolment_address))
        return running[-1]

    yield start
    for one in running:
        one.process.kill()
        one.process.communicate()


@pytest.mark.integration
def test_a_notebook_joins_learns_behind_the_screen_and_leaves(app, federation, tmp_path):
    screen = app()
    assert "with a tag" in screen.says_to("ferry to saaremaa")
    for text, tag in NOTES.items():
        assert screen.says_to(f"{text} #{tag}").startswith("kept")
    assert screen.says_to(f"/join {federation.server.invitation().to_text()}") == "joined; your notes stay here"
    federation.server.desk.wait_for(lambda _: len(federation.updates) == 4, seconds=60)
    assert screen.says_to("ferry to saaremaa").startswith("perhaps #")
    assert "enrolled" in screen.says_to("/status")
    assert screen.says_to("/leave").startswith("left")
    screen.quit()
    check_reconciled(federation, tmp_path / "notes" / "covey")
    sent = b"".join(repr(header).encode() + payload for _, header, payload in federation.server.desk.accepted)
    assert seen(dict(zip(NOTES, NOTES, strict=True)), sent) == set()


@pytest.mark.integration
def test_closing_the_app_loses_nothing_but_time(app, federation, tmp_path):
    screen = app()
    screen.says_to("feed the goldfish #home")
    screen.says_to(f"/join {federation.server.invitation().to_text()}")
    federation.server.desk.wait_for(lambda _: federation.updates, seconds=60)
    screen.process.kill()
    screen.process.wait(20)
    again = app()  # goes on by itself
    federation.server.desk.wait_for(lambda _: len(federation.updates) == 4, seconds=60)
    assert again.says_to("feed the cat #home") == "kept: 2 notes"
    again.quit()
    check_reconciled(federation, tmp_path / "notes" / "covey")
    assert len(entries_of(tmp_path / "notes" / "covey")) == 1 + 2 * 5


@pytest.mark.integration
def test_what_goes_wrong_is_said_and_the_app_goes_on(app, federation):
    screen = app()
    assert screen.says_to("/leave").startswith("that did not work: this device is not enrolled")
    assert screen.says_to("/join covey1-cut").startswith("that did not work: this invitation is cut or mistyped")
    assert screen.says_to("/sing") == HELP
    screen.quit()


def test_the_file_that_embeds_the_sdk_has_at_most_forty_lines():
    folder = ROOT / "examples/edge_app"
    embedding = [path for path in folder.glob("*.py") if "Device.open" in path.read_text(encoding="utf-8")]
    assert [path.name for path in embedding] == ["sharing.py"]
    assert len(embedding[0].read_text(encoding="utf-8").splitlines()) <= 40


def test_a_notebook_is_found_again(tmp_path):
    notebook = Notebook(tmp_path)
    assert notebook.guess("ferry") is None
    notebook.add("ferry to hiiumaa", "travel")
    weights = new_model()
    weights["dense1.bias"][TAGS.index("travel")] = 1
    notebook.keep_model(weights)
    again = Notebook(tmp_path)
    assert again.notes == notebook.notes
    assert again.guess("train") == "travel"


@pytest.mark.parametrize("line", ["#home", "buy milk #nowhere", "buy milk"])
def test_a_note_without_a_known_tag_is_not_kept(tmp_path, line):
    notebook = Notebook(tmp_path)
    assert "tag" in noted(line, notebook)
    assert notebook.notes == []


@pytest.mark.parametrize(("supplies", "expected"), [({}, True), ({"AC": "1", "USB": "0"}, True), ({"AC": "0"}, False)])
def test_mains_are_noticed(tmp_path, supplies, expected):
    for name, online in supplies.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "online").write_text(f"{online}\n")
    assert on_mains(tmp_path) is expected


def test_notes_are_plain_lines(tmp_path):
    Notebook(tmp_path).add("buy milk", "home")
    assert json.loads((tmp_path / "notes.jsonl").read_text()) == {"text": "buy milk", "tag": "home"}
