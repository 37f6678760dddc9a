"""What a summary's header means: which mechanism noised it, under which terms, and how many bytes that makes.

A header comes from anybody. Terms are bounded before a number is made of them, and they mean a mechanism only if that
mechanism would state them in exactly these words.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from device_sdk.wire.fields import ExactNumber
from privacy.budget import NeighbouringRelation
from privacy.mechanisms.bounded_scalar import BoundedScalar
from privacy.mechanisms.feature_histogram import FeatureHistogram
from privacy.mechanisms.label_histogram import LabelHistogram
from privacy.mechanisms.randomized_response import RandomizedResponse
from privacy.mechanisms.voted_choice import VotedChoice
from privacy.packing import COUNT_WIDTH_BYTES

if TYPE_CHECKING:
    from device_sdk.wire.messages import SummaryHeader

Terms = Mapping[str, str | int]
Histogram = LabelHistogram | FeatureHistogram
SummaryMechanism = Histogram | RandomizedResponse | VotedChoice | BoundedScalar

_MOST_WHOLE = 1 << 31
_LONGEST_REAL = 40
_MOST_REAL = 1e100
_EXACT = ExactNumber.pattern
_INTEGER = re.compile(r"-?[0-9]+", re.ASCII)


def mechanism_in(header: SummaryHeader) -> SummaryMechanism | None:
    """The mechanism that a header names; None if there is none of that name, or none with these terms."""
    terms = {term.name: term.value for term in header.terms}
    return described(header.mechanism, terms) if len(terms) == len(header.terms) else None


def described(name: str, terms: Terms) -> SummaryMechanism | None:
    """The mechanism of this name that states exactly these terms, if there is one."""
    read = _READERS.get(name)
    if read is None:
        return None
    try:
        mechanism = read(terms)
    except (KeyError, ValueError):
        return None
    return mechanism if mechanism.terms == dict(terms) else None


def payload_bytes(mechanism: SummaryMechanism) -> int:
    """How long every answer of this mechanism is, whatever it says."""
    match mechanism:
        case LabelHistogram():
            numbers = mechanism.num_labels
        case FeatureHistogram():
            numbers = mechanism.num_labels * mechanism.num_bins
        case _:
            numbers = 1
    return numbers * COUNT_WIDTH_BYTES


def _whole(terms: Terms, name: str) -> int:
    value = terms[name]
    if not isinstance(value, int) or not 0 < value <= _MOST_WHOLE:
        raise ValueError(f"{name} is out of bounds")
    return value


def _exact(terms: Terms, name: str) -> str:
    # The form comes first: an exponent of many digits would take for ever to expand.
    value = terms[name]
    if not isinstance(value, str) or not _EXACT.fullmatch(value):
        raise ValueError(f"{name} is no number in digits")
    return value


def _real(terms: Terms, name: str) -> float:
    value = terms[name]
    if not isinstance(value, str) or len(value) > _LONGEST_REAL:
        raise ValueError(f"{name} is no number")
    # An app may have said 255 or 255.0, and a mechanism repeats what it was told.
    real = int(value) if _INTEGER.fullmatch(value) else float(value)
    if not math.isfinite(real) or abs(real) > _MOST_REAL:
        raise ValueError(f"{name} is out of bounds")
    return real


def _relation(terms: Terms) -> NeighbouringRelation:
    return NeighbouringRelation(str(terms["relation"]))


_READERS: Mapping[str, Callable[[Terms], SummaryMechanism]] = {
    LabelHistogram.name: lambda terms: LabelHistogram(
        _whole(terms, "num_labels"), _exact(terms, "epsilon"), _relation(terms)
    ),
    FeatureHistogram.name: lambda terms: FeatureHistogram(
        _whole(terms, "num_labels"),
        _whole(terms, "num_bins"),
        _whole(terms, "features_per_record"),
        _exact(terms, "epsilon"),
        _real(terms, "low"),
        _real(terms, "high"),
        _relation(terms),
    ),
    RandomizedResponse.name: lambda terms: RandomizedResponse(
        _whole(terms, "num_choices"), _exact(terms, "epsilon"), _relation(terms)
    ),
    VotedChoice.name: lambda terms: VotedChoice(
        _whole(terms, "num_choices"), _exact(terms, "epsilon"), _relation(terms)
    ),
    BoundedScalar.name: lambda terms: BoundedScalar(
        _real(terms, "low"),
        _real(terms, "high"),
        _exact(terms, "epsilon"),
        _whole(terms, "steps"),
        _relation(terms),
    ),
}
