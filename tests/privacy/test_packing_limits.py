"""Noise that no eight bytes can hold is refused with the terms, before anything is booked."""

from __future__ import annotations

import numpy as np
import pytest

from privacy.errors import InvalidTerms
from privacy.mechanisms import ClippedUpdate, DiscreteGaussian
from privacy.packing import pack_array, unpack_array, width_for


@pytest.mark.parametrize("largest", [0, 1, 127, 128, 2**31, 2**55 - 1, 2**62, 2**63 - 1])
def test_the_width_holds_both_ends_and_one_less_does_not(largest):
    width = width_for(largest)
    ends = np.array([-largest, largest], dtype=np.int64)
    assert unpack_array(pack_array(ends, width), 2, width).tolist() == ends.tolist()
    if width > 1:
        assert unpack_array(pack_array(ends, width - 1), 2, width - 1).tolist() != ends.tolist()


def test_more_than_eight_bytes_are_refused():
    with pytest.raises(InvalidTerms, match="9 bytes"):
        width_for(2**63)


@pytest.mark.parametrize(
    "mechanism",
    [
        lambda noise: ClippedUpdate({"w": (3,)}, 1, noise, grid_bits=24),
        lambda noise: DiscreteGaussian(3, 1, noise),
    ],
)
def test_terms_that_no_integer_can_hold_are_refused_at_once(mechanism):
    with pytest.raises(InvalidTerms):
        mechanism(10**17)
