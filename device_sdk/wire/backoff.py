"""How long to wait before the next attempt: longer each time, up to a limit, and never in step with other devices."""

from __future__ import annotations

import secrets

_PARTS = 1 << 20


class Backoff:
    """Doubles from `first_seconds` to `most_seconds`; each wait is drawn evenly from half of that to all of it."""

    def __init__(self, first_seconds: float, most_seconds: float) -> None:
        self._first, self._most = first_seconds, most_seconds
        self._failures = 0

    def failed(self) -> float:
        """Seconds to wait after one more failure."""
        # Beyond some doublings only the limit counts, and 2**failures would grow for ever.
        limit = min(self._most, self._first * 2.0 ** min(self._failures, 40))
        self._failures += 1
        return limit * (1 + secrets.randbelow(_PARTS) / _PARTS) / 2

    def succeeded(self) -> None:
        self._failures = 0
