"""What a device says about itself: events with fields that are named here, and never data.

    device_sdk INFO round_advanced {"phase": "booked", "sequence": 12}

Every event and every field is listed below; anything else is a programming error and raises. A field is a
short printable text, a whole number or a truth value, so no array, key, loss or message of somebody's
exception can slip in. An error is named by its type: its text may quote data.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import TextIO

Field = str | int | bool
_LONGEST_FIELD = 300
_INFO, _WARNING = logging.INFO, logging.WARNING

EVENTS: Mapping[str, tuple[int, frozenset[str]]] = MappingProxyType(
    {
        "affinity_forgotten": (_WARNING, frozenset({"cohorts"})),
        "affinity_unreadable": (_WARNING, frozenset({"error"})),
        "app_failed": (_WARNING, frozenset({"failure", "error"})),
        "certificate_stored": (_INFO, frozenset({"server", "expires"})),
        "condition_failed": (_WARNING, frozenset({"condition", "error"})),
        "declined": (_INFO, frozenset({"name", "reason"})),
        "feedback_refused": (_WARNING, frozenset({"error"})),
        "identity_created": (_INFO, frozenset({"server"})),
        "key_discarded": (_INFO, frozenset({"store"})),
        "key_file_used": (_WARNING, frozenset({"store"})),
        "key_left_behind": (_WARNING, frozenset({"store"})),
        "keys_rotated": (_INFO, frozenset({"store"})),
        "ledger_keys_created": (_INFO, frozenset()),
        "round_accepted": (_INFO, frozenset({"kind"})),
        "round_advanced": (_INFO, frozenset({"kind", "phase", "sequence"})),
        "round_closed": (_INFO, frozenset({"kind", "phase", "outcome"})),
        "round_found": (_INFO, frozenset({"kind", "phase", "attempts"})),
        "round_unreadable": (_WARNING, frozenset({"error"})),
        "server_shredded": (_INFO, frozenset({"server"})),
        "training_paused": (_INFO, frozenset({"missing"})),
        "training_resumed": (_INFO, frozenset()),
        "training_stopped": (_INFO, frozenset({"reason"})),
        "vault_created": (_INFO, frozenset({"store"})),
        "vault_salvaged": (_WARNING, frozenset()),
    }
)

_log = logging.getLogger("device_sdk")
# Without a handler of the app's Python would print warnings to its standard error.
_log.addHandler(logging.NullHandler())


def emit(event: str, /, **fields: Field) -> None:
    """Log `event`; only an app that configures logging sees it."""
    level, allowed = EVENTS[event]
    unknown = fields.keys() - allowed
    if unknown:
        raise TypeError(f"event {event} has no field {', '.join(sorted(unknown))}; add it to device_sdk.events first")
    for name, value in fields.items():
        _check_plain(name, value)
    if _log.isEnabledFor(level):
        _log.log(level, event, extra={"event": event, "fields": dict(fields)})


def error_name(error: BaseException) -> str:
    """How an error stands in an event: by its type alone."""
    name = type(error).__name__
    # Whoever makes a type by hand may name it as they like, and an event must not fail for it.
    return name if name.isprintable() and len(name) <= _LONGEST_FIELD else "unnamed"


class EventFormatter(logging.Formatter):
    """One line for each event, its fields as JSON; of anything else only where it came from."""

    def format(self, record: logging.LogRecord) -> str:
        event = getattr(record, "event", None)
        if event not in EVENTS:
            return f"{record.name} {record.levelname} unlisted_event"
        fields = json.dumps(getattr(record, "fields", {}), sort_keys=True)
        return f"{record.name} {record.levelname} {event} {fields}"


def show_events(stream: TextIO) -> None:
    """Write every event from now on to `stream`, with its time; for an app that configures no logging of its own."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_TimedEventFormatter())
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)


class _TimedEventFormatter(EventFormatter):
    """With the time, in UTC."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        return f"{self.formatTime(record)} {super().format(record)}"


def _check_plain(name: str, value: object) -> None:
    if isinstance(value, bool | int):
        return
    if not isinstance(value, str):
        # The type alone: the value may be what must not be logged.
        raise TypeError(f"event field {name} is a {type(value).__name__}; fields are texts and whole numbers")
    if len(value) > _LONGEST_FIELD or not value.isprintable():
        raise ValueError(f"event field {name} is not a short printable text")
