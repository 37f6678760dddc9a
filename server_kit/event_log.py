"""The server's log: events with fields, JSON lines for machines, short lines on a terminal, and never data.

Whoever logs may pass names and numbers; an array, bytes, a mapping or an object is replaced by its kind before any
handler sees it, and an exception that is not ours by its kind and place, because its text may quote data.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
import traceback
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

from server_kit.config.tables import LogFormat

if TYPE_CHECKING:
    from types import FrameType, TracebackType

    from server_kit.config.tables import Log

OURS = ("covey", "device_sdk", "privacy", "server_kit")
_LONGEST = 500
_MOST_PLACES = 12
_KNOWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message", "taskName"}
_COLOURS = {logging.WARNING: "\x1b[33m", logging.ERROR: "\x1b[31m", logging.CRITICAL: "\x1b[31m"}
_PLAIN = "\x1b[0m"


def set_up(settings: Log, process: str, stream: TextIO | None = None) -> None:
    """Send all logs of this process to standard error, in one form. Replaces an earlier set-up."""
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    handler.addFilter(without_data)
    handler.setFormatter(_formatter(settings.format, process, stream))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    # One line for each look at /healthz would drown the rest.
    logging.getLogger("uvicorn.access").setLevel(logging.WARNING)
    set_level(settings.level)


def set_level(level: str) -> None:
    """Tell more or less from now on: debug, info, warning or error. Others' libraries tell only what is wrong."""
    ours = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger().setLevel(max(ours, logging.WARNING))
    for name in OURS:
        logging.getLogger(name).setLevel(ours)


def change_level_on_signals(settings: Log) -> None:
    """SIGUSR1: tell everything. SIGUSR2: as the settings say. Call it in the main thread."""

    def more(_: int, __: FrameType | None) -> None:
        set_level("debug")

    def as_set(_: int, __: FrameType | None) -> None:
        set_level(settings.level)

    signal.signal(signal.SIGUSR1, more)
    signal.signal(signal.SIGUSR2, as_set)


def without_data(record: logging.LogRecord) -> bool:
    """Replace whatever is not a name or a number; lets every record pass."""
    if isinstance(record.args, tuple):
        record.args = tuple(harmless(value) for value in record.args)
    elif record.args:
        record.args = {name: harmless(value) for name, value in record.args.items()}
    for name, value in vars(record).items():
        if name not in _KNOWN:
            setattr(record, name, harmless(value))
    return True


def harmless(value: Any) -> Any:
    """A short text, a number or a truth value as it is; of anything else the kind."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, BaseException):
        return described(value)
    if isinstance(value, str):
        text = "".join(character if character.isprintable() else " " for character in str(value))
        return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    return f"<{type(value).__name__}>"


def described(error: BaseException) -> str:
    """What an error of ours says; of another only its kind."""
    ours = type(error).__module__.split(".")[0] in OURS
    return f"{type(error).__name__}: {harmless(str(error))}" if ours else type(error).__name__


def places_of(trace: TracebackType | None) -> list[str]:
    """Where an error came from, its own place last: file, line and function, without the text of the code."""
    frames = traceback.extract_tb(trace)[-_MOST_PLACES:]
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "event": message_of(record),
        }
        line |= {name: value for name, value in fields_of(record).items() if name not in line}
        if record.exc_info and record.exc_info[1] is not None:
            line |= {"error": described(record.exc_info[1]), "trace": places_of(record.exc_info[2])}
        return json.dumps(line)


class ShortLines(logging.Formatter):
    """Time, level, event, fields; for people."""

    def __init__(self, process: str, *, coloured: bool) -> None:
        super().__init__()
        self._process, self._coloured = process, coloured

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        fields = " ".join(f"{name}={value}" for name, value in fields_of(record).items() if value is not None)
        line = f"{at} {record.levelname.lower():<7} {self._process:<12} {message_of(record)}"
        line += f"  {fields}" if fields else ""
        if record.exc_info and record.exc_info[1] is not None:
            line += "".join(f"\n    {place}" for place in places_of(record.exc_info[2]))
            line += f"\n    {described(record.exc_info[1])}"
        colour = _COLOURS.get(record.levelno) if self._coloured else None
        return f"{colour}{line}{_PLAIN}" if colour else line


def message_of(record: logging.LogRecord) -> str:
    """What happened, on one line."""
    return str(harmless(record.getMessage())).strip()


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What was given as `extra`."""
    return {name: value for name, value in vars(record).items() if name not in _KNOWN}


def _formatter(wanted: LogFormat, process: str, stream: TextIO) -> logging.Formatter:
    terminal = stream.isatty()
    if wanted is LogFormat.JSON or (wanted is LogFormat.AUTO and not terminal):
        return JsonLines(process)
    return ShortLines(process, coloured=terminal and "NO_COLOR" not in os.environ)
