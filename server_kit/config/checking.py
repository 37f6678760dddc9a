"""How a setting that makes no sense is refused: with its name, what it must be, and what became of the start."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction

from device_sdk.wire.messages import Exact
from server_kit.errors import InvalidSetting

_EXACT = re.compile(r"[0-9]{1,20}(?:[./][0-9]{1,20})?", re.ASCII)


def require(condition: bool, sentence: str) -> None:
    """Refuse the settings unless the condition holds."""
    if not condition:
        raise InvalidSetting(f"{sentence}; nothing was started")


def exact(value: str | float, name: str) -> Exact:
    """A number that decides about privacy, as the digits that a person wrote: 0.1 stays 1/10."""
    text = format(Decimal(str(value)), "f") if isinstance(value, float) else value.strip()
    text = text.removesuffix(".0")
    written = bool(_EXACT.fullmatch(text)) and not re.fullmatch(r".*/0+", text)
    require(written and Fraction(text) > 0, f"{name} must be a number above 0 such as 0.5 or '1/3', got {value!r}")
    return text


def within_unit(value: Exact, name: str) -> None:
    """Refuse a rate or a probability above 1."""
    require(Fraction(value) <= 1, f"{name} must be at most 1, got {value}")
