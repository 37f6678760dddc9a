"""Children that hear signals: what is started in the background ignores some, and so does all that it starts."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def heard(*numbers: signal.Signals) -> Iterator[None]:
    """Whoever is started inside gets these signals as a terminal's programs do."""
    before = [(number, signal.signal(number, signal.SIG_DFL)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
