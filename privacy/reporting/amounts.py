"""How amounts and names are shown: what was spent never looks smaller than it is, what is left never larger."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from privacy.accounting import shown_epsilon
from privacy.budget import NeighbouringRelation, PrivacyUnit

_PER_UNIT = 1000
_NOISE = 1e-9  # of floating point: 0.5 must not be shown as 0.501


def up(epsilon: float, decimals: int | None = None) -> str:
    """ε that was spent, rounded up to three decimals; `decimals` keeps as many zeros, for tables."""
    return _number(math.ceil(epsilon * _PER_UNIT - _NOISE) / _PER_UNIT if math.isfinite(epsilon) else epsilon, decimals)


def down(epsilon: float, decimals: int | None = None) -> str:
    """ε that is left, rounded down to three decimals."""
    return _number(math.floor(epsilon * _PER_UNIT + _NOISE) / _PER_UNIT, decimals)


def exact(epsilon: float | None, at_most: float = math.inf) -> float | None:
    """ε for a program: rounded up to five decimals, never below what Google's accountant says nor above the budget."""
    return None if epsilon is None else shown_epsilon(epsilon, at_most) if epsilon else 0.0


def percent_used(share: float) -> str:
    """A share of 1, rounded up; only all of it is "100 %"."""
    return ">99 %" if 0.99 < share < 1 else f"{math.ceil(100 * share - _NOISE)} %"


def percent_left(share: float) -> str:
    """A share of 1, rounded down; only nothing is "0 %"."""
    return "<1 %" if 0 < share < 0.01 else f"{math.floor(100 * share + _NOISE)} %"


def odds_percent(epsilon: float) -> str:
    """How sure someone can be at most who thought a claim as likely as not before the release."""
    sure = 1 / (1 + math.exp(-epsilon))
    return f"{math.ceil(1000 * sure - _NOISE) / 10:g} %" if sure < 0.999 else "practically 100 %"


def one_in(delta: float) -> str:
    """A small probability in words: 1e-06 is "one case in 1,000,000"."""
    return f"one case in {math.floor(1 / delta + _NOISE):,}"


def counted(number: int, singular: str, plural: str = "") -> str:
    """A number and its noun."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def moment(at: int) -> str:
    """A time of a ledger, in UTC; a number that is no time stays a number."""
    try:
        return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}"
    except (OverflowError, ValueError, OSError):
        return str(at)


def printable(text: str) -> str:
    """`text` without anything that could steer a terminal: servers and receipts are not ours."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def short_key(device_key: str) -> str:
    """Enough of a public key to tell devices apart."""
    return device_key[:12]


def whom(unit: PrivacyUnit, relation: NeighbouringRelation) -> str:
    """Which two worlds a promise makes look alike, in words."""
    return _WHOM[unit, relation]


_WHOM = {
    (PrivacyUnit.RECORD, NeighbouringRelation.REPLACE): "one record, exchanged for any other",
    (PrivacyUnit.RECORD, NeighbouringRelation.ADD_REMOVE): "one record, there or not there",
    (PrivacyUnit.DEVICE, NeighbouringRelation.REPLACE): "the whole device, its data exchanged for any other",
    (PrivacyUnit.DEVICE, NeighbouringRelation.ADD_REMOVE): "the whole device, taking part or not",
}


def _number(value: float, decimals: int | None) -> str:
    if math.isinf(value):
        return "∞"
    return f"{value:.{decimals}f}" if decimals is not None else f"{value:.3f}".rstrip("0").rstrip(".")
