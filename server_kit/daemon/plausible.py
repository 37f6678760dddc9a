"""What a summary's bytes may say: what its mechanism explains. Nothing else is stored or reckoned with.

Noise has no end, but beyond these bounds it happens to nobody: a number so large was made up, and would drown
everybody else's in a sum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from device_sdk.wire.messages import ErrorCode
from device_sdk.wire.summary_terms import payload_bytes
from privacy.exact import exact_epsilon
from privacy.mechanisms.bounded_scalar import BoundedScalar
from privacy.mechanisms.feature_histogram import FeatureHistogram
from privacy.mechanisms.label_histogram import LabelHistogram
from privacy.packing import COUNT_WIDTH_BYTES, unpack
from server_kit.daemon.refusals import Misconduct

if TYPE_CHECKING:
    from device_sdk.wire.summary_terms import SummaryMechanism

IMPLAUSIBLE = "implausible summary"
_MOST_RECORDS = 10**12
_SCALES = 60
"""Of the noise, by which a number may leave its range."""


def check_content(mechanism: SummaryMechanism, payload: bytes) -> None:
    """Raise `Misconduct` unless these bytes may have come from this mechanism."""
    size = payload_bytes(mechanism)
    if len(payload) != size:
        raise _implausible(f"a summary under its terms has {size} bytes, and this one has {len(payload)}")
    numbers = unpack(payload, size // COUNT_WIDTH_BYTES)
    least, most = _range(mechanism)
    if not all(least <= number <= most for number in numbers):
        raise _implausible("this summary says what neither data nor noise of its terms explain")


def _range(mechanism: SummaryMechanism) -> tuple[int, int]:
    match mechanism:
        case LabelHistogram():
            return -_MOST_RECORDS, _MOST_RECORDS
        case FeatureHistogram():
            most = _MOST_RECORDS * mechanism.features_per_record
            return -most, most
        case BoundedScalar():
            beyond = int(_SCALES * mechanism.steps / exact_epsilon(mechanism.epsilon)) + 1
            return -beyond, mechanism.steps + beyond
        case _:
            return 0, mechanism.num_choices - 1


def _implausible(what: str) -> Misconduct:
    return Misconduct(IMPLAUSIBLE, ErrorCode.MALFORMED, f"{what}; it was not taken")
