"""A task means the same at both ends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.wire.errors import PayloadMismatch
from device_sdk.wire.task_terms import mask_size_bytes, read_mask

SHAPES = {"b": (3,), "w": (3, 2)}


@given(st.lists(st.booleans(), min_size=9, max_size=9))
def test_a_mask_is_read_as_it_was_written(bits):
    body = np.packbits(np.array(bits), bitorder="little").tobytes()
    assert len(body) == mask_size_bytes(SHAPES)
    mask = read_mask(body, SHAPES)
    assert [*mask["b"].ravel(), *mask["w"].ravel()] == bits
    assert {name: part.shape for name, part in mask.items()} == SHAPES


@pytest.mark.parametrize("length", [0, 1, 3])
def test_a_mask_of_another_length_is_thrown_away(length):
    with pytest.raises(PayloadMismatch):
        read_mask(bytes(length), SHAPES)
