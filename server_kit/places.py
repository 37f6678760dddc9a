"""Where in an experiment file something stands, and the sentences that name it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from server_kit.errors import InvalidSetting, ServerError


@dataclass(frozen=True)
class Place:
    """A table of a file: `quick.toml [population.partition]`."""

    file: str
    tables: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.file} [{'.'.join(self.tables)}]" if self.tables else self.file

    def inside(self, name: str) -> Place:
        """A table in this one."""
        return Place(self.file, (*self.tables, name))

    def wrong(self, what: str) -> InvalidSetting:
        """The error that says what is wrong here."""
        return InvalidSetting(f"{self}: {what}{'' if what.endswith('?') else '; nothing was run'}")

    def unknown(self, noun: str, name: str, known: Iterable[str]) -> InvalidSetting:
        """The error for a name that is none, with the nearest that is one."""
        return self.wrong(f"unknown {noun} {name!r}{nearest(name, known)}")

    @contextmanager
    def named_in_errors(self) -> Iterator[None]:
        """What a rule refuses is said with the place that it was read from."""
        try:
            yield
        except ServerError as error:
            raise InvalidSetting(f"{self}: {error}") from error


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'this'?`, or what there is where nothing is near."""
    names = sorted(known)
    alike = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if alike:
        return f"; did you mean {alike[0]!r}?"
    return f"; there is {', '.join(names)}" if names else ""
