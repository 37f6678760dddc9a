"""One spelling for what is hashed and signed: JSON in a single form.

ASCII, sorted keys, no spaces; strings, whole numbers and lists of those. Equal values are equal bytes,
no float is ever rounded twice, and bytes in any other spelling of the same value are refused.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

from privacy.errors import InvalidTerms

if TYPE_CHECKING:
    from collections.abc import Iterable

Fields = dict[str, Any]
"""The top level of a document: names, and strings, whole numbers or lists of those."""


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"not a whole number: {text}")


_encoder = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
_decoder = json.JSONDecoder(parse_float=_refuse, parse_constant=_refuse)


def canonical(value: Fields | list[Any]) -> bytes:
    """The one spelling of `value`; `InvalidTerms` for anything but strings, whole numbers and lists of those."""
    _check_plain(value.values() if isinstance(value, dict) else value)
    try:
        return _encoder.encode(value).encode("ascii")
    except ValueError as error:  # an integer of thousands of digits
        raise InvalidTerms("a term is too large to write down; nothing was booked") from error


def parse(body: bytes) -> Fields:
    """The fields that `canonical` spelled as `body`; `ValueError` for any other bytes."""
    try:
        fields = _decoder.decode(body.decode("ascii"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(fields, dict) or _encoder.encode(fields).encode("ascii") != body:
        raise ValueError("not in canonical form")
    return fields


def take_text(fields: Fields, name: str) -> str:
    """Take a string out of `fields`."""
    return as_text(fields.pop(name, None))


def take_whole(fields: Fields, name: str) -> int:
    """Take a whole number, zero or more, out of `fields`."""
    return as_whole(fields.pop(name, None))


def take_list(fields: Fields, name: str) -> list[Any]:
    """Take a list out of `fields`."""
    value = fields.pop(name, None)
    if not isinstance(value, list):
        raise ValueError(f"{name} is not a list")  # noqa: TRY004 - malformed bytes, not a caller's mistake
    return value


def take_wholes(fields: Fields, name: str, length: int) -> list[int]:
    """Take a list of exactly `length` whole numbers out of `fields`."""
    values = [as_whole(value) for value in take_list(fields, name)]
    if len(values) != length:
        raise ValueError(f"{name} has not {length} numbers")
    return values


def take_hex(fields: Fields, name: str) -> bytes:
    """Take bytes, written as lower-case hexadecimal digits, out of `fields`."""
    text = take_text(fields, name)
    value = bytes.fromhex(text)
    if value.hex() != text:
        raise ValueError(f"{name} is not plain hexadecimal")
    return value


def as_text(value: object) -> str:
    """`value`, which must be a string."""
    if not isinstance(value, str):
        raise ValueError("expected a string")  # noqa: TRY004
    return value


def as_whole(value: object) -> int:
    """`value`, which must be a whole number, zero or more."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError("expected a whole number")
    return value


def _check_plain(values: Iterable[Any]) -> None:
    # By exact type first: nearly every value is one of these, and this runs for all that is hashed, signed or sealed.
    for value in values:
        kind = type(value)
        if kind is str or kind is int:
            continue
        if isinstance(value, list):
            _check_plain(value)
        elif isinstance(value, bool) or not isinstance(value, int | str):
            raise InvalidTerms(f"terms are whole numbers and strings, got {kind.__name__}; nothing was booked")
