"""How often something may happen: so many times at once, and then so many a second."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class TokenBucket:
    """Fills up by itself; whoever takes from an empty one is told so, and gets nothing."""

    at_once: float
    a_second: float
    clock: Callable[[], float] = time.monotonic
    _spent: float = 0.0
    """How much of what may happen at once has happened and is not earned again yet."""
    _at_seconds: float = field(init=False)

    def __post_init__(self) -> None:
        self._at_seconds = self.clock()

    def take(self) -> bool:
        """Whether it may happen once more, now; then it has."""
        self._earn()
        if self._spent + 1 > self.at_once:
            return False
        self._spent += 1
        return True

    def _earn(self) -> None:
        now = self.clock()
        self._spent = max(0.0, self._spent - (now - self._at_seconds) * self.a_second)
        self._at_seconds = now


@dataclass
class TokenBuckets:
    """One bucket for each name. The memory they take is bounded: beyond `most`, the one longest unused is forgotten."""

    at_once: float
    a_second: float
    most: int = 10_000
    clock: Callable[[], float] = time.monotonic
    _buckets: OrderedDict[str, TokenBucket] = field(default_factory=OrderedDict)

    def take(self, name: str) -> bool:
        """Whether it may happen once more for this name."""
        bucket = self._buckets.pop(name, None) or TokenBucket(self.at_once, self.a_second, self.clock)
        self._buckets[name] = bucket
        if len(self._buckets) > self.most:
            self._buckets.popitem(last=False)
        return bucket.take()
