"""Runs as JSON and back. JSON has no NaN: it becomes null, and null becomes NaN again where a number must be."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar, Union

Record = TypeVar("Record")


def to_json(value: Any) -> Any:
    """Records, mappings and sequences as what JSON can hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(entry) for entry in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def from_json(kind: type[Record], value: Any) -> Record:
    """A record of this kind; raises KeyError, TypeError or ValueError where the JSON is not of it."""
    record: Record = _of(kind, value)
    return record


def _of(hint: Any, value: Any) -> Any:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in {Union, types.UnionType}:
        return None if value is None else _of(next(part for part in parts if part is not types.NoneType), value)
    if origin is tuple:
        return tuple(_of(parts[0], entry) for entry in value)
    if origin is not None:
        return {key: _of(parts[1], entry) for key, entry in value.items()}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        # A field with a default may be younger than the file.
        told = [field for field in dataclasses.fields(hint) if field.name in value or not _has_default(field)]
        return hint(**{field.name: _of(hints[field.name], value[field.name]) for field in told})
    if hint is float and value is None:
        return math.nan
    return hint(value)


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
