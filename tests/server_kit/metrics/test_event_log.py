"""The log never holds data, whoever logs what; it is JSON for machines, and its level can change."""

from __future__ import annotations

import io
import json
import logging
import signal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server_kit.config import Log, LogFormat
from server_kit.errors import HomeBusy
from server_kit.event_log import change_level_on_signals, harmless, set_level, set_up, without_data

log = logging.getLogger("covey.server")
SECRET = "8675309"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def stream():
    """A log of its own; afterwards everything is as before."""
    root = logging.getLogger()
    names = ["covey", "device_sdk", "privacy", "server_kit", "uvicorn", "uvicorn.access", "uvicorn.error"]
    before = list(root.handlers), root.level, {name: logging.getLogger(name).level for name in names}
    yield io.StringIO()
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    for name, level in before[2].items():
        logging.getLogger(name).setLevel(level)


def lines(stream: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_off_a_terminal_every_line_is_json(stream):
    set_up(Log(), "coordinator", stream)
    log.info("accepted an update", extra={"cohort": "0.1", "round": 3})
    (line,) = lines(stream)
    assert line["event"] == "accepted an update"
    assert (line["level"], line["process"], line["cohort"], line["round"]) == ("info", "coordinator", "0.1", 3)
    assert line["at"].endswith("+00:00")


def test_on_a_terminal_lines_are_for_people(stream):
    terminal = Terminal()
    set_up(Log(), "coordinator", terminal)
    log.info("accepted an update", extra={"cohort": "0.1", "device": None})
    log.warning("look at this")
    first, second = terminal.getvalue().splitlines()
    assert first.endswith("info    coordinator  accepted an update  cohort=0.1")
    assert second.startswith("\x1b[33m")


@pytest.mark.parametrize(("form", "is_json"), [(LogFormat.JSON, True), (LogFormat.TEXT, False)])
def test_the_form_can_be_chosen(stream, form, is_json):
    set_up(Log(format=form), "coordinator", stream)
    log.info("hello")
    assert stream.getvalue().startswith("{") is is_json


@given(
    st.one_of(
        st.binary(min_size=4),
        st.lists(st.floats(allow_nan=False), min_size=1),
        st.dictionaries(st.text(min_size=1), st.integers(), min_size=1),
        st.lists(st.integers(), min_size=1).map(np.array),
        st.tuples(st.integers()),
    )
)
def test_nothing_but_names_and_numbers_passes(value):
    assert harmless(value) == f"<{type(value).__name__}>"


def test_data_in_arguments_and_fields_is_replaced_by_its_kind(stream):
    set_up(Log(), "coordinator", stream)
    data = np.array([float(SECRET)])
    log.info("got %s and %s", data, [SECRET], extra={"update": data, "payload": SECRET.encode(), "of": {"x": SECRET}})
    log.info("got %(what)s", {"what": data})
    assert SECRET not in stream.getvalue()
    assert lines(stream)[0]["event"] == "got <ndarray> and <list>"
    assert lines(stream)[0]["update"] == "<ndarray>"
    assert lines(stream)[1]["event"] == "got <ndarray>"


def test_a_log_without_the_filter_would_have_told(stream):
    set_up(Log(), "coordinator", stream)
    logging.getLogger().handlers[0].removeFilter(without_data)
    log.info("got %s", np.array([float(SECRET)]))
    assert SECRET in stream.getvalue()


def test_the_text_of_an_error_that_is_not_ours_is_not_logged(stream):
    set_up(Log(), "coordinator", stream)
    try:
        int(f"x{SECRET}")
    except ValueError as error:
        log.exception("failed", extra={"reason": error})
    (line,) = lines(stream)
    assert SECRET not in stream.getvalue()
    assert (line["error"], line["reason"]) == ("ValueError", "ValueError")
    assert "test_event_log.py" in line["trace"][-1]


def test_the_sentence_of_an_error_of_ours_is_logged(stream):
    set_up(Log(), "coordinator", stream)
    log.warning("not now", extra={"reason": HomeBusy("a daemon runs here")})
    assert lines(stream)[0]["reason"] == "HomeBusy: a daemon runs here"


def test_a_line_stays_one_line_and_short(stream):
    set_up(Log(format=LogFormat.TEXT), "coordinator", stream)
    log.info("%s", "a\nb\x1b[31m" + "x" * 5000)
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()
    assert len(stream.getvalue()) < 600


def test_a_field_cannot_pose_as_the_level(stream):
    set_up(Log(), "coordinator", stream)
    log.info("hello", extra={"event": "other", "level": "error"})
    assert (lines(stream)[0]["event"], lines(stream)[0]["level"]) == ("hello", "info")


def test_the_level_can_change_while_it_runs(stream):
    set_up(Log(level="warning"), "coordinator", stream)
    log.info("unheard")
    set_level("debug")
    log.debug("heard")
    assert [line["event"] for line in lines(stream)] == ["heard"]


def test_signals_change_the_level_and_back(stream):
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    set_up(Log(), "coordinator", stream)
    try:
        change_level_on_signals(Log())
        signal.raise_signal(signal.SIGUSR1)
        log.debug("everything")
        signal.raise_signal(signal.SIGUSR2)
        log.debug("as before")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert [line["event"] for line in lines(stream)] == ["everything"]


def test_others_libraries_speak_up_only_if_something_is_wrong(stream):
    set_up(Log(level="debug"), "observer", stream)
    for name in ("uvicorn.error", "uvicorn.access", "sqlalchemy.engine", "grpc"):
        logging.getLogger(name).info("chatter")
        logging.getLogger(name).error("trouble")
    assert [line["event"] for line in lines(stream)] == ["trouble"] * 4
