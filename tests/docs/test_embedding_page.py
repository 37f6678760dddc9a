"""docs/embedding.md keeps its word: its code runs against a real gateway, and no setting or event is left out."""

from __future__ import annotations

import ast
import dataclasses
import re
import subprocess
import sys
import typing
from enum import StrEnum

import pytest

from device_sdk import DeviceConfig, errors
from device_sdk.events import EVENTS
from device_sdk.trainers import errors as trainer_errors
from device_sdk.wire import errors as wire_errors
from privacy import errors as privacy_errors
from tests.architecture.repository import ROOT, name_of
from tests.device_sdk.runtime.federation import check_reconciled, no_weights, started
from tests.docs.markdown import fences_of, markdown_files, sections_of

PAGE = (ROOT / "docs/embedding.md").read_text(encoding="utf-8")
NEEDED = "needed"


def table(page, section):
    """The rows of the tables in a section, each a list of cells."""
    text = next(found.text for found in sections_of(page) if found.title == section)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return [cells for cells in rows if cells[0].startswith("`")]


def settings_of(kind, prefix=""):
    """Every setting by its dotted name, with its default as one would write it in a file."""
    hints = typing.get_type_hints(kind)
    found: dict[str, object] = {}
    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(hints[field.name]):
            found |= settings_of(hints[field.name], f"{prefix}{field.name}.")
        elif field.default is dataclasses.MISSING:
            found[prefix + field.name] = NEEDED
        else:
            plain = str(field.default) if isinstance(field.default, StrEnum) else field.default
            found[prefix + field.name] = plain
    return found


def described_settings(page):
    rows = table(page, "Every setting")
    return {
        cells[0].strip("`"): NEEDED if cells[1] == NEEDED else ast.literal_eval(cells[1].strip("`")) for cells in rows
    }


def described_events(page):
    return {cells[0].strip("`"): frozenset(re.findall(r"`(\w+)`", cells[1])) for cells in table(page, "What is logged")}


def described_errors(page):
    return {name for cells in table(page, "Errors, and what to do") for name in re.findall(r"`(\w+)`", cells[0])}


def script_of(page):
    """The Python blocks of the page as one program, each at its own line."""
    lines = [""] * len(page.splitlines())
    for fence in fences_of(page):
        if fence.tags[:1] == ("python",):
            code = fence.code.splitlines()
            lines[fence.line - 1 : fence.line - 1 + len(code)] = code
    return "\n".join(lines) + "\n"


@pytest.mark.integration
def test_the_code_of_the_page_runs_against_a_real_gateway(tmp_path):
    federation = started(tmp_path, no_weights(6, 3), rounds=3)
    names = {
        "server": str(federation.server.enrolment_address),
        "invitation": federation.server.invitation().to_text(),
    }
    given = "; ".join(f"{name} = {value!r}" for name, value in names.items())
    (tmp_path / "page.py").write_text(given + script_of(PAGE))  # the page's first line is no code
    try:
        command = [sys.executable, "page.py"]
        finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert (finished.returncode, finished.stderr) == (0, "")
        assert len(federation.updates) == 3
        check_reconciled(federation, tmp_path / "state")
        assert federation.server.desk.departures[-1][1]
    finally:
        federation.server.close()


def test_no_other_page_has_code_that_only_this_test_would_run():
    pages = [path for path in markdown_files() if "```python with-server" in path.read_text(encoding="utf-8")]
    assert [name_of(path) for path in pages] == ["docs/embedding.md"]


def test_every_setting_is_documented():
    assert described_settings(PAGE) == settings_of(DeviceConfig)


def test_a_setting_that_is_missing_or_has_another_default_is_caught():
    short = PAGE.replace("| `keys.file` |", "| keys.file |")
    assert settings_of(DeviceConfig).keys() - described_settings(short).keys() == {"keys.file"}
    stale = PAGE.replace("| `conditions.ask_every_seconds` | `5.0` |", "| `conditions.ask_every_seconds` | `7.0` |")
    assert described_settings(stale) != settings_of(DeviceConfig)


def test_every_event_is_documented_with_its_fields():
    assert described_events(PAGE) == {event: fields for event, (_, fields) in EVENTS.items()}


def test_an_event_that_is_missing_is_caught():
    short = PAGE.replace("| `round_closed` |", "| round_closed |")
    assert set(EVENTS) - described_events(short).keys() == {"round_closed"}


def test_every_error_that_the_page_explains_exists():
    known = {name for module in (errors, wire_errors, trainer_errors, privacy_errors) for name in vars(module)}
    assert described_errors(PAGE) <= known
    assert len(described_errors(PAGE)) > 20


def test_the_page_says_how_long_the_embedding_file_is():
    lines = len((ROOT / "examples/edge_app/sharing.py").read_text(encoding="utf-8").splitlines())
    assert f"{lines} lines" in PAGE
