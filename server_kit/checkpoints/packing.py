"""What parts remember, as one JSON document and named tensors, and back: the same types, order and bits.

A memory holds JSON values and tensors (`interfaces.Memory`), and nothing else is taken: whatever would come back as
something else, a tuple as a list, a set in another order, a number of NumPy as one of Python, is refused by its name.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from server_kit.errors import UnpackableState
from server_kit.interfaces import Memory

_Place = tuple[Any, str | int] | None
"""The place above, and the key there. Spelt out only when it is asked for: most places never are."""
_PLAIN = {type(None), bool, int, str}
_TENSOR, _FLOAT = "$tensor", "$float"
_SMALL = 1024  # values; a tensor that is smaller lies in a pool, or its entry in the header would outweigh it


@dataclass(frozen=True)
class Packed:
    """A state as a file can hold it. Large tensors are not copied: write it before the state moves on."""

    document: Any
    tensors: Mapping[str, torch.Tensor]


def pack(state: Memory) -> Packed:
    """The state as a document and tensors; each large tensor has its JSON pointer for a name."""
    packing = _Packing()
    document = packing.packed(state, None)
    return Packed(document, packing.tensors())


def unpack(packed: Packed, device: torch.device | str = "cpu") -> Any:
    """What was packed, with tensors of its own on `device`; it shares nothing with `packed`."""
    return _unpacked(packed.document, packed.tensors, device)


class _Packing:
    def __init__(self) -> None:
        self._large: dict[str, torch.Tensor] = {}
        self._pools: dict[str, list[torch.Tensor]] = {}
        self._lengths: dict[str, int] = {}
        self._storages: set[int] = set()

    def packed(self, value: Any, place: _Place) -> Any:
        # By exact type: an enum is a string too, and would come back as a plain one.
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is float:
            # JSON has no word for what is not finite.
            return value if math.isfinite(value) else {_FLOAT: struct.pack(">d", value).hex()}
        if kind is list:
            return [self.packed(each, (place, index)) for index, each in enumerate(value)]
        if kind is dict and all(type(key) is str for key in value):
            return {_escaped(key): self.packed(each, (place, key)) for key, each in value.items()}
        if kind is torch.Tensor and value.layout is torch.strided and not value.requires_grad:
            return {_TENSOR: self._kept(value, place)}
        raise UnpackableState(
            f"{_pointer(place) or 'the state'} is a {_name_of(value)}, and a checkpoint holds None, bool, int, float, "
            "str, lists, dicts with str for keys, and plain dense tensors; have the part remember it as one of these; "
            "nothing was written"
        )

    def tensors(self) -> dict[str, torch.Tensor]:
        return self._large | {_pool(dtype): torch.cat(pieces) for dtype, pieces in self._pools.items()}

    def _kept(self, tensor: torch.Tensor, place: _Place) -> Any:
        if tensor.numel() >= _SMALL:
            name = _pointer(place)
            self._large[name] = self._alone(tensor)
            return name
        dtype = str(tensor.dtype).removeprefix("torch.")
        start = self._lengths.get(dtype, 0)
        self._lengths[dtype] = start + tensor.numel()
        self._pools.setdefault(dtype, []).append(tensor.cpu().reshape(-1))
        return [dtype, start, list(tensor.shape)]

    def _alone(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself, or a copy where it is part of something larger or was met before."""
        storage = tensor.untyped_storage()
        whole = tensor.is_contiguous() and storage.nbytes() == tensor.nbytes
        if not whole or storage.data_ptr() in self._storages:
            return tensor.clone(memory_format=torch.contiguous_format)
        self._storages.add(storage.data_ptr())
        return tensor


def _unpacked(value: Any, tensors: Mapping[str, torch.Tensor], device: torch.device | str) -> Any:
    if isinstance(value, list):
        return [_unpacked(each, tensors, device) for each in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        return _found(value[_TENSOR], tensors).to(device, copy=True)
    if _FLOAT in value:
        return struct.unpack(">d", bytes.fromhex(value[_FLOAT]))[0]
    return {_plain(key): _unpacked(each, tensors, device) for key, each in value.items()}


def _found(reference: Any, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    if isinstance(reference, str):
        return tensors[reference]
    dtype, start, shape = reference
    return tensors[_pool(dtype)][start : start + math.prod(shape)].view(shape)


def _pool(dtype: str) -> str:
    return f"small {dtype}"


def _escaped(key: str) -> str:
    """A key that cannot be taken for one of ours."""
    return f"${key}" if key.startswith("$") else key


def _plain(key: str) -> str:
    return key.removeprefix("$")


def _pointer(place: _Place) -> str:
    """The JSON pointer (RFC 6901) to a place."""
    if place is None:
        return ""
    above, key = place
    return f"{_pointer(above)}/{str(key).replace('~', '~0').replace('/', '~1')}"


def _name_of(value: Any) -> str:
    if type(value) is torch.Tensor:
        return f"tensor with layout {value.layout}" if value.layout is not torch.strided else "tensor with a gradient"
    if type(value) is dict:
        return "dict with keys that are no str"
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
