"""What a field may hold. Each kind reads one field out of a protobuf message, within its bounds, or refuses it.

The same check runs when a message is written: what we would not accept, we do not send.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from typing import Any, Protocol

from device_sdk.wire.errors import MalformedMessage, TooLarge

Value = Any
Holder = Any
"""A protobuf message: its classes are made at run time, so nothing more is known about it here."""


class Kind(Protocol):
    """One kind of field: how it is read from a protobuf message and written into one."""

    def read(self, holder: Holder, name: str) -> Value: ...

    def write(self, holder: Holder, name: str, value: Value) -> None: ...


class Scalar(ABC):
    """A field that protobuf itself holds; `check` refuses what is out of bounds."""

    def read(self, holder: Holder, name: str) -> Value:
        return self.check(getattr(holder, name), name)

    def write(self, holder: Holder, name: str, value: Value) -> None:
        setattr(holder, name, self.check(value, name))

    @abstractmethod
    def check(self, value: Value, name: str) -> Value:
        """`value`, if it may stand in this field."""


@dataclass(frozen=True)
class Text(Scalar):
    """Text that matches a pattern as a whole. The pattern bounds the length."""

    pattern: re.Pattern[str]

    def check(self, value: Value, name: str) -> str:
        if not isinstance(value, str) or not self.pattern.fullmatch(value):
            raise MalformedMessage(f"the field {name} is not in its form; the message was not used")
        return value


@dataclass(frozen=True)
class Prose(Scalar):
    """Text for people: printable, so that it cannot steer a terminal."""

    most_characters: int
    least_characters: int = 1

    def check(self, value: Value, name: str) -> str:
        if not isinstance(value, str) or not self.least_characters <= len(value) <= self.most_characters:
            raise MalformedMessage(f"the field {name} has not a permitted length; the message was not used")
        if not value.isprintable():
            raise MalformedMessage(f"the field {name} has unprintable characters; the message was not used")
        return value


@dataclass(frozen=True)
class ExactNumber(Scalar):
    """A positive number as digits. The form is checked first: `1e999999999` would take for ever to expand."""

    pattern = re.compile(r"[0-9]{1,20}(?:[./][0-9]{1,20})?", re.ASCII)

    def check(self, value: Value, name: str) -> str:
        if not isinstance(value, str) or not self.pattern.fullmatch(value):
            raise MalformedMessage(f"the field {name} is not a number in digits; the message was not used")
        if not value.partition("/")[2].strip("0") and "/" in value:
            raise MalformedMessage(f"the field {name} divides by zero; the message was not used")
        if not Fraction(value):
            raise MalformedMessage(f"the field {name} must be above 0; the message was not used")
        return value


@dataclass(frozen=True)
class Bytes(Scalar):
    """Bytes of a bounded length."""

    least: int
    most: int

    def check(self, value: Value, name: str) -> bytes:
        if not isinstance(value, bytes) or not self.least <= len(value) <= self.most:
            raise MalformedMessage(f"the field {name} has not a permitted length; the message was not used")
        return value


def exactly(length: int) -> Bytes:
    """Bytes of one length: hashes, keys, signatures."""
    return Bytes(length, length)


@dataclass(frozen=True)
class Whole(Scalar):
    """A whole number within bounds."""

    most: int
    least: int = 0

    def check(self, value: Value, name: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < self.least:
            raise MalformedMessage(f"the field {name} is below its least value; the message was not used")
        if value > self.most:
            raise TooLarge(f"the field {name} is above its limit of {self.most}; the message was not used")
        return value


@dataclass(frozen=True)
class Real(Scalar):
    """A finite number within bounds."""

    least: float
    most: float
    above_least: bool = False

    def check(self, value: Value, name: str) -> float:
        if not isinstance(value, int | float) or not math.isfinite(value) or not self.least <= value <= self.most:
            raise MalformedMessage(f"the field {name} is not a number within its bounds; the message was not used")
        if self.above_least and value == self.least:
            raise MalformedMessage(f"the field {name} must be above {self.least:g}; the message was not used")
        return float(value)


@dataclass(frozen=True)
class Flag(Scalar):
    """Yes or no."""

    def check(self, value: Value, name: str) -> bool:
        if not isinstance(value, bool):
            raise MalformedMessage(f"the field {name} is neither true nor false; the message was not used")
        return value


@dataclass(frozen=True)
class Choice(Scalar):
    """One of an enumeration's values. `unknown` stands for what a newer version may add; without it that is refused."""

    options: type[Enum]
    unknown: Enum | None = None

    def check(self, value: Value, name: str) -> Enum:
        try:
            return self.options(value)
        except ValueError as error:
            if self.unknown is not None:
                return self.unknown
            raise MalformedMessage(f"the field {name} is none of the known values; the message was not used") from error

    def write(self, holder: Holder, name: str, value: Value) -> None:
        setattr(holder, name, self.check(value, name).value)


@dataclass(frozen=True)
class Optional:
    """A field that may be absent: None."""

    kind: Kind

    def read(self, holder: Holder, name: str) -> Value:
        return self.kind.read(holder, name) if holder.HasField(name) else None

    def write(self, holder: Holder, name: str, value: Value) -> None:
        if value is not None:
            self.kind.write(holder, name, value)


@dataclass(frozen=True)
class Nested:
    """A message within a message; it must be there."""

    read_into: Callable[[Holder], Value]
    write_into: Callable[[Holder, Value], None]

    def read(self, holder: Holder, name: str) -> Value:
        if not holder.HasField(name):
            raise MalformedMessage(f"the field {name} is missing; the message was not used")
        return self.read_into(getattr(holder, name))

    def write(self, holder: Holder, name: str, value: Value) -> None:
        part = getattr(holder, name)
        part.SetInParent()
        self.write_into(part, value)


@dataclass(frozen=True)
class Shared(Nested):
    """As `Nested`, for what all messages of a round hold alike: read and written once for many of them.

    The same bytes always mean the same value, and a value never changes; so neither memory can be out of date.
    """

    _last: dict[str, tuple[Value, bytes]] = field(default_factory=dict, compare=False, repr=False)

    def read(self, holder: Holder, name: str) -> Value:
        if not holder.HasField(name):
            return super().read(holder, name)
        part = getattr(holder, name)
        twin: Any = type(part)
        return _read_once(self.read_into, twin, part.SerializeToString(deterministic=True))

    def write(self, holder: Holder, name: str, value: Value) -> None:
        last = self._last.get(name)
        if last is not None and last[0] is value:
            part = getattr(holder, name)
            part.SetInParent()
            part.MergeFromString(last[1])
            return
        super().write(holder, name, value)
        self._last[name] = (value, getattr(holder, name).SerializeToString(deterministic=True))


@lru_cache(maxsize=16)
def _read_once(read_into: Callable[[Holder], Value], twin: Any, body: bytes) -> Value:
    return read_into(twin.FromString(body))


@dataclass(frozen=True)
class Many:
    """Several values of one scalar kind, or several messages; their number is checked before any is read."""

    kind: Scalar | Nested
    most: int
    least: int = 0

    def read(self, holder: Holder, name: str) -> tuple[Value, ...]:
        values = getattr(holder, name)
        self._check_number(len(values), name)
        if isinstance(self.kind, Nested):
            return tuple(self.kind.read_into(value) for value in values)
        return tuple(self.kind.check(value, name) for value in values)

    def write(self, holder: Holder, name: str, value: Value) -> None:
        self._check_number(len(value), name)
        field = getattr(holder, name)
        for item in value:
            if isinstance(self.kind, Nested):
                self.kind.write_into(field.add(), item)
            else:
                field.append(self.kind.check(item, name))

    def _check_number(self, number: int, name: str) -> None:
        if not self.least <= number <= self.most:
            raise TooLarge(f"the field {name} has not a permitted number of parts; the message was not used")


@dataclass(frozen=True)
class OneOf:
    """Exactly one of several fields: which one is known by the value's class."""

    options: Mapping[str, tuple[type, Kind]]

    def read(self, holder: Holder, name: str) -> Value:
        present = holder.WhichOneof(name)
        if present is None:
            raise MalformedMessage(f"the field {name} is missing or of an unknown kind; the message was not used")
        return self.options[present][1].read(holder, present)

    def write(self, holder: Holder, name: str, value: Value) -> None:
        for option, (cls, kind) in self.options.items():
            if isinstance(value, cls):
                kind.write(holder, option, value)
                return
        raise MalformedMessage(f"the field {name} cannot hold a {type(value).__name__}; the message was not used")
