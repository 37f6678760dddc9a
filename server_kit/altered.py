"""Copies of frozen values with a few fields changed, for paths on which `dataclasses.replace` is most of the time."""

from __future__ import annotations

from typing import TypeVar

Value = TypeVar("Value")


def altered(value: Value, **changes: object) -> Value:
    """`dataclasses.replace` at a third of its time, for classes without slots and without `__post_init__`.

    Nothing checks that `changes` are fields.
    """
    made: Value = object.__new__(type(value))
    made.__dict__.update(value.__dict__)
    made.__dict__.update(changes)
    return made
