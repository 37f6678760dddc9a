"""A store between whose calls processes die, and others are faster.

    kill      a call does not happen, or happens and its caller never hears of it
    intrude   before a call someone else does something

What was done to the store stays: it is the memory of whoever used it that is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from server_kit.store.protocol import Store


class KilledHere(Exception):
    """The process that called the store is no more."""


Aim = int | str
"""Which call from now: the so manieth, or the next of this name."""


@dataclass
class MortalStore:
    """Another store, with a trap that springs once."""

    inner: Store
    _trap: tuple[Aim, Callable[[Callable[[], Any]], Any]] | None = field(default=None)

    def kill(self, aim: Aim, *, after_effect: bool) -> None:
        def die(call: Callable[[], Any]) -> None:
            if after_effect:
                call()
            raise KilledHere

        self._trap = (aim, die)

    def intrude(self, aim: Aim, deed: Callable[[], None]) -> None:
        def yield_first(call: Callable[[], Any]) -> Any:
            deed()
            return call()

        self._trap = (aim, yield_first)

    def disarm(self) -> None:
        self._trap = None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name in ("register", "invitations") or not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            spring = self._sprung(name)
            return found(*arguments, **named) if spring is None else spring(lambda: found(*arguments, **named))

        return call

    def _sprung(self, name: str) -> Callable[[Callable[[], Any]], Any] | None:
        if self._trap is None:
            return None
        aim, spring = self._trap
        if isinstance(aim, int):
            self._trap = (aim - 1, spring)
        if aim not in (name, 1):
            return None
        self._trap = None
        return spring
