"""Records read so that none can make a mechanism fail: by then its cost is booked, and an error would be an answer.

What is no number is read as something defined instead, and so counts like any other record.
"""

from __future__ import annotations

import math
import operator
from typing import Any


def whole_number(record: Any) -> int | None:
    """The integer that `record` is; None where it is none."""
    try:
        return int(operator.index(record))
    except Exception:  # whatever its own code raises
        return None


def truncated(record: Any) -> int | None:
    """The integer that is left of `record` without its fraction; None where it is no finite number."""
    exact = whole_number(record)
    if exact is not None:
        return exact
    # Through a float: an integer made of Decimal("1e999999") would take minutes, and so tell of itself.
    value = real_number(record)
    return int(value) if math.isfinite(value) else None


def real_number(record: Any) -> float:
    """`record` as a float, infinite where it is too large for one; NaN where it is no number."""
    try:
        return float(record)
    except OverflowError:
        return _infinite(record)
    except Exception:  # whatever its own code raises
        return math.nan


def halving_for(low: float, high: float) -> float:
    """What to multiply all ends and values with, so that a range of any finite ends has a finite width."""
    return 1.0 if math.isfinite(float(high) - float(low)) else 0.5


def _infinite(record: Any) -> float:
    try:
        return math.inf if record > 0 else -math.inf
    except Exception:  # whatever its own code raises
        return math.nan
