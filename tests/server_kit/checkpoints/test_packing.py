"""What is packed comes back as it was, to the type and the bit; what could not is refused by name."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from server_kit.checkpoints import Packed, pack, unpack
from server_kit.errors import UnpackableState

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    dtype = draw(st.sampled_from(DTYPES))
    count, width = math.prod(shape), torch.empty(0, dtype=dtype).element_size()
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    # Any bits: NaN with a payload, subnormal, negative zero.
    values = bytearray(draw(st.binary(min_size=count * width, max_size=count * width)))
    if dtype is torch.bool:
        values = bytearray(value % 2 for value in values)
    tensor = torch.frombuffer(values, dtype=dtype).view(shape)
    return tensor.transpose(0, -1) if shape else tensor


KEYS = st.text(max_size=4) | st.sampled_from(["$tensor", "$float", "$", "$$", "a/b", "a~b", "__metadata__", ""])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | tensors(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


def identical(one: Any, other: Any) -> bool:
    """Of the same type, in the same order, with the same bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and bits(one) == bits(other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(identical(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(identical, one, other))
    if isinstance(one, float):
        return one.hex() == other.hex()
    return bool(one == other)


def bits(tensor: torch.Tensor) -> bytes:
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.reshape(-1))
    return flat.view(torch.uint8).numpy().tobytes()


def through_json(packed: Packed) -> Packed:
    return Packed(json.loads(json.dumps(packed.document, allow_nan=False)), packed.tensors)


@given(state=st.dictionaries(KEYS, VALUES, max_size=5))
def test_what_is_packed_comes_back_to_the_bit(state):
    assert identical(unpack(through_json(pack(state))), state)


@pytest.mark.parametrize("number", [math.nan, -math.nan, math.inf, -math.inf, -0.0, 5e-324, 0.1 + 0.2, 1.0])
def test_every_number_survives(number):
    assert unpack(through_json(pack({"number": number})))["number"].hex() == number.hex()


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Step:
    number: int


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ((1, 2), "tuple"),
        ({1, 2}, "set"),
        (Counter("ab"), "Counter"),
        (OrderedDict(a=1), "OrderedDict"),
        ({1: "a"}, "keys that are no str"),
        (Colour.RED, "Colour"),
        (Step(1), "Step"),
        (np.float64(1), "numpy.float64"),
        (np.zeros(2), "numpy.ndarray"),
        (b"bytes", "bytes"),
        (torch.eye(2).to_sparse(), "sparse"),
        (torch.ones(1, requires_grad=True), "gradient"),
        (torch.nn.Parameter(torch.ones(1)), "Parameter"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_would_come_back_as_something_else_is_refused_with_its_place(value, named):
    with pytest.raises(UnpackableState, match=rf"^/steps/1/seen is a .*{named}.*nothing was written$"):
        pack({"steps": [0, {"seen": value}]})


def as_most_programs_do(state: Any) -> Any:
    return json.loads(json.dumps(state))


def in_order_of_names(state: Any) -> Any:
    return json.loads(json.dumps(state, sort_keys=True))


def in_single_precision(state: Any) -> Any:
    return {name: tensor.float() for name, tensor in state.items()}


@pytest.mark.parametrize(
    ("copied", "state"),
    [
        (as_most_programs_do, {"a": (1, 2)}),
        (as_most_programs_do, {"a": {1: 2}}),
        (as_most_programs_do, {"a": Colour.RED}),
        (in_order_of_names, {"b": 1, "a": 2}),
        (in_single_precision, {"a": torch.ones(2, dtype=torch.float64)}),
    ],
)
def test_the_comparison_catches_a_careless_packer(copied, state):
    assert not identical(copied(state), state)


def test_nothing_is_shared_with_what_was_packed():
    rows = torch.arange(4000.0).view(2, 2000)
    state = {"whole": rows, "first": rows[0], "column": rows[:, 3], "small": rows[0, :4], "again": rows}
    packed = pack(state)
    copied = unpack(packed)
    assert identical(copied, state)
    expected = {name: tensor.clone() for name, tensor in copied.items()}
    rows.fill_(-1)
    for tensor in packed.tensors.values():
        tensor.fill_(-2)
    assert identical(copied, expected)
    assert len({tensor.untyped_storage().data_ptr() for tensor in copied.values()}) == len(copied)


def test_a_large_tensor_is_not_copied_to_be_written():
    model = torch.zeros(5000)
    assert pack({"model": model}).tensors["/model"].data_ptr() == model.data_ptr()


def test_many_small_tensors_lie_in_few():
    rows = {f"d{number}": torch.full((10,), float(number)) for number in range(500)}
    packed = pack({"rows": rows})
    assert list(packed.tensors) == ["small float32"]
    assert identical(unpack(packed), {"rows": rows})


def test_tensors_go_to_the_device_that_is_asked_for():
    state = unpack(pack({"model": torch.zeros(5000), "row": torch.ones(3)}), device="meta")
    assert {tensor.device.type for tensor in state.values()} == {"meta"}
