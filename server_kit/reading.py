"""From a TOML table to the object it describes: a rule's settings are its fields, so none is listed twice.

A setting that is itself a rule is written as its name, or as a table with `kind` and that rule's settings:

    partition = { kind = "dirichlet", alpha = 0.1, sizes = { kind = "log_normal", sigma = 0.5 } }

Instead of a name, `package.module:Class` is a rule of one's own.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import importlib
import inspect
import math
import sys
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union

from server_kit.errors import InvalidSetting
from server_kit.places import Place

Kinds = Mapping[str, Callable[..., Any]]
_REQUIRED = object()
_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", Path: "a path"}


@dataclass(frozen=True)
class Reader:
    """Reads tables of one file: relative paths start at `folder`, `kinds` has the names of a protocol's rules."""

    folder: Path
    kinds: Mapping[Any, Kinds]

    def settings(
        self,
        table: Mapping[str, Any],
        place: Place,
        maker: Callable[..., Any],
        *beside: Callable[..., Any],
        without: Collection[str] = (),
    ) -> dict[str, Any]:
        """The arguments for `maker`, and for others beside it, that the table gives.

        Those of `maker` that stand in `without` are not the file's to give.
        """
        fields = {name: each for name, each in fields_of(maker).items() if name not in without}
        for other in beside:
            fields |= fields_of(other)
        for name in table:
            if name not in fields:
                raise place.unknown("setting", name, fields)
        for name, (_, default) in fields.items():
            if default is _REQUIRED and name not in table:
                raise place.wrong(f"setting {name!r} is missing")
        return {name: self.value(fields[name][0], value, place, name) for name, value in table.items()}

    def value(self, hint: Any, value: Any, place: Place, name: str) -> Any:
        """A value of the type that the setting wants."""
        if hint is Any:
            return value
        if hint in self.kinds:
            return self.rule(self.kinds[hint], value, place.inside(name))
        if typing.get_origin(hint) is not None:
            return self._composed(hint, value, place, name)
        if isinstance(hint, type) and issubclass(hint, Enum):
            return hint(_one_of([member.value for member in hint], value, place, name))
        if dataclasses.is_dataclass(hint):
            return self.rule({}, value, place.inside(name), only=hint)
        return self._plain(hint, value, place, name)

    def rule(self, kinds: Kinds, value: Any, place: Place, *, only: Any = None) -> Any:
        """The rule that a name or a table describes; `only` where there is no choice."""
        if not isinstance(value, str | dict):
            raise place.wrong(f"expected {'a table' if only else 'a name or a table with kind'}, got {value!r}")
        table = {"kind": value} if isinstance(value, str) else dict(value)
        maker = only or self._maker(kinds, table.pop("kind", None), place)
        given = self.settings(table, place, maker)
        with place.named_in_errors():
            return maker(**given)

    def _maker(self, kinds: Kinds, kind: Any, place: Place) -> Callable[..., Any]:
        if kind is None:
            raise place.wrong(f"setting 'kind' is missing; there is {', '.join(sorted(kinds))}")
        if isinstance(kind, str) and ":" in kind:
            maker: Callable[..., Any] = named_object(kind, place)
            return maker
        if not isinstance(kind, str) or kind not in kinds:
            raise place.unknown("kind", str(kind), kinds)
        return kinds[kind]

    def _composed(self, hint: Any, value: Any, place: Place, name: str) -> Any:
        """A value of a type that is made of others."""
        origin, parts = typing.get_origin(hint), typing.get_args(hint)
        if origin in {Union, types.UnionType}:
            return self._any_of(parts, value, place, name)
        if origin is Literal:
            return _one_of(parts, value, place, name)
        if origin is tuple:
            return self._tuple(parts, value, place, name)
        if origin is dict:
            return _table(value, place, name)
        return self._plain(hint, value, place, name)

    def _any_of(self, hints: Sequence[Any], value: Any, place: Place, name: str) -> Any:
        """The first type that takes the value; what the last one says if none does.

        What may be None is written "none", since TOML has no word for it.
        """
        if value == "none" and types.NoneType in hints:
            return None
        *others, last = [hint for hint in hints if hint is not types.NoneType]
        for hint in others:
            with contextlib.suppress(InvalidSetting):
                return self.value(hint, value, place, name)
        return self.value(last, value, place, name)

    def _tuple(self, parts: Sequence[Any], value: Any, place: Place, name: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise place.wrong(f"{name} must be a list, got {value!r}")
        if parts[-1] is Ellipsis:
            return tuple(self.value(parts[0], entry, place, name) for entry in value)
        if len(value) != len(parts):
            raise place.wrong(f"{name} must be a list of {len(parts)}, got {value!r}")
        return tuple(self.value(part, entry, place, name) for part, entry in zip(parts, value, strict=True))

    def _plain(self, hint: Any, value: Any, place: Place, name: str) -> Any:
        accepted = {float: (int, float), Path: (str,)}.get(hint, (hint,))
        if hint not in _WORDS or type(value) not in accepted or (hint is float and math.isnan(value)):
            raise place.wrong(f"{name} must be {_WORDS.get(hint, 'left out: a file cannot give it')}, got {value!r}")
        return self.folder / value if hint is Path else hint(value)


def fields_of(maker: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """The type and the default of each setting: of a dataclass its fields, of a function its arguments."""
    if isinstance(maker, type) and dataclasses.is_dataclass(maker):
        hints = typing.get_type_hints(maker, localns=_Unseen(maker))
        return {field.name: (hints[field.name], _default(field)) for field in dataclasses.fields(maker) if field.init}
    hints = typing.get_type_hints(vars(maker).get("__init__", maker) if isinstance(maker, type) else maker)
    parameters = inspect.signature(maker).parameters.values()
    return {
        each.name: (hints.get(each.name, Any), _REQUIRED if each.default is each.empty else each.default)
        for each in parameters
    }


class _Unseen(dict[str, Any]):
    """Types that a module imports for type checkers only, and so cannot be read from a file, are anything."""

    def __init__(self, maker: type) -> None:
        self._seen = {name for base in maker.__mro__ for name in vars(sys.modules[base.__module__])} | set(
            dir(builtins)
        )

    def __missing__(self, name: str) -> Any:
        if name in self._seen:
            raise KeyError(name)
        return Any


def is_required(default: object) -> bool:
    """Whether a setting without a default must stand in the file."""
    return default is _REQUIRED


def named_object(name: str, place: Place) -> Any:
    """What `package.module:name` names. Its code is run."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise place.wrong(f"{name!r} cannot be imported ({error})") from error


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return _REQUIRED if field.default_factory is dataclasses.MISSING else field.default_factory()


def _table(value: Any, place: Place, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise place.wrong(f"{name} must be a table, got {value!r}")
    return value


def _one_of(choices: Sequence[Any], value: Any, place: Place, name: str) -> Any:
    if value not in choices:
        raise place.unknown(name, str(value), map(str, choices))
    return value
