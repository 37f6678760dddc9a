"""Everything that `server_kit` refuses, as one tree; each message says what, why, and what became of the data.

ServerError
├── InvalidSetting    a setting makes no sense (k < 1, a negative distance, an unknown linkage)
└── InvalidSummary    what devices sent cannot be compared (NaN, another shape, an unknown label)
"""

from __future__ import annotations


class ServerError(Exception):
    """Base of all errors raised by `server_kit`."""


class InvalidSetting(ServerError, ValueError):
    """A setting makes no sense; nothing was computed."""


class InvalidSummary(ServerError, ValueError):
    """Summaries, updates or labels that cannot be compared; nothing was computed and nothing changed."""
