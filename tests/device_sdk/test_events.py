"""A device's log has events and fields that were agreed on, and no way for anything else to get in."""

from __future__ import annotations

import ast
import logging
import subprocess
import sys

import pytest

from device_sdk.events import EVENTS, EventFormatter, emit, error_name
from tests.architecture.repository import ROOT, name_of, package_sources

SOURCES = [path for path in package_sources("device_sdk") if "_generated" not in path.parts]


def test_an_event_is_one_line_with_its_fields(lines):
    emit("round_advanced", kind="training", phase="booked", sequence=12)
    assert lines() == [
        'device_sdk INFO round_advanced {"kind": "training", "phase": "booked", "sequence": 12}',
    ]


def test_an_unknown_event_or_field_is_a_mistake():
    with pytest.raises(KeyError):
        emit("loss_computed")
    with pytest.raises(TypeError, match="no field loss"):
        emit("round_advanced", loss=1)


@pytest.mark.parametrize("value", [0.5, b"bytes", [1], {"a": 1}, object()])
def test_a_field_holds_no_floats_bytes_or_containers(value):
    with pytest.raises(TypeError) as caught:
        emit("round_advanced", phase=value)
    assert repr(value) not in str(caught.value)


@pytest.mark.parametrize("value", ["two\nlines", "\x1b[31m", "x" * 301])
def test_a_text_is_short_and_printable(value):
    with pytest.raises(ValueError, match="short printable text"):
        emit("round_advanced", phase=value)


def test_an_app_without_logging_sees_nothing():
    script = "from device_sdk.events import emit; emit('condition_failed', condition='charging', error='OSError')"
    finished = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, check=True)
    assert (finished.stdout, finished.stderr) == (b"", b"")


def test_an_error_is_named_without_its_text():
    assert error_name(ValueError("label 7 of record 3")) == "ValueError"


def test_the_formatter_says_nothing_of_what_is_not_an_event():
    record = logging.LogRecord("device_sdk", logging.ERROR, "", 0, "weights %s", ("canary",), None)
    assert EventFormatter().format(record) == "device_sdk ERROR unlisted_event"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_the_sdk_logs_events_only_through_emit(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = {
        alias.name for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names
    }
    if name_of(path) != "device_sdk/events.py":
        assert "logging" not in imported
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "emit"]
    for call in calls:
        name = call.args[0]
        assert isinstance(name, ast.Constant), "events are written out, so that they can be found"
        _, allowed = EVENTS[str(name.value)]
        assert {keyword.arg for keyword in call.keywords} <= allowed


def test_every_listed_event_is_emitted_somewhere():
    sources = "".join(path.read_text(encoding="utf-8") for path in SOURCES if name_of(path) != "device_sdk/events.py")
    assert [event for event in EVENTS if f'"{event}"' not in sources] == []
