"""The gradients of the network without torch are those of calculus and of torch, and its layers those it was given."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from device_sdk.trainers import ModelMismatch
from device_sdk.trainers.dense_network import DenseNetwork

WIDTHS = {"logistic": (5, 3), "mlp": (5, 4, 3), "deep": (5, 4, 6, 2)}


def network(widths, seed=0, dtype=np.float64, bias=True):
    """The network, its tensors, and records for it."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for number, (fan_in, fan_out) in enumerate(pairwise(widths), start=1):
        tensors[f"dense{number}.weight"] = rng.normal(size=(fan_out, fan_in)).astype(dtype)
        if bias:
            tensors[f"dense{number}.bias"] = rng.normal(size=fan_out).astype(dtype)
    inputs = rng.normal(size=(7, widths[0])).astype(dtype)
    labels = rng.integers(0, widths[-1], size=7)
    return DenseNetwork.of(shapes(tensors)), tensors, inputs, labels


def shapes(tensors):
    return {name: tensor.shape for name, tensor in tensors.items()}


def gradient_of(net, tensors, inputs, labels):
    found = {name: np.full_like(tensor, np.nan) for name, tensor in tensors.items()}
    net.gradient(tensors, inputs, labels, found)
    return found


def mean_loss(net, tensors, inputs, labels):
    logits = net.logits(tensors, inputs)[-1]
    return float(np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(labels)), labels]))


def by_differences(net, tensors, inputs, labels, step=1e-6):
    """The slope of the loss along each coordinate."""
    found = {name: np.zeros_like(tensor) for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        for place in np.ndindex(tensor.shape):
            kept = tensor[place]
            tensor[place] = kept + step
            above = mean_loss(net, tensors, inputs, labels)
            tensor[place] = kept - step
            below = mean_loss(net, tensors, inputs, labels)
            tensor[place] = kept
            found[name][place] = (above - below) / (2 * step)
    return found


def farthest(one, other):
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("widths", WIDTHS.values(), ids=WIDTHS)
def test_gradients_are_slopes(widths, bias):
    case = network(widths, bias=bias)
    assert farthest(gradient_of(*case), by_differences(*case)) < 1e-7


def test_a_gradient_that_ignores_the_relu_is_caught(monkeypatch):
    case = network(WIDTHS["mlp"])
    slopes = by_differences(*case)
    open_gates = DenseNetwork.logits

    def leaky(self, tensors, inputs):
        return [values + (number == 1) * 1e-9 for number, values in enumerate(open_gates(self, tensors, inputs))]

    monkeypatch.setattr(DenseNetwork, "logits", leaky)
    assert farthest(gradient_of(*case), slopes) > 1e-3


@pytest.mark.parametrize("widths", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("seed", range(3))
def test_gradients_are_torchs(widths, seed):
    net, tensors, inputs, labels = network(widths, seed, dtype=np.float32)
    parameters: dict[str, Any] = {
        name: torch.from_numpy(tensor.copy()).requires_grad_() for name, tensor in tensors.items()
    }
    values = torch.from_numpy(inputs)
    for layer in net.layers:
        values = nn.functional.linear(values, parameters[f"{layer}.weight"], parameters[f"{layer}.bias"])
        values = values if layer == net.layers[-1] else values.relu()
    nn.functional.cross_entropy(values, torch.from_numpy(labels)).backward()
    theirs = {name: parameter.grad.numpy() for name, parameter in parameters.items()}
    assert farthest(gradient_of(net, tensors, inputs, labels), theirs) < 1e-6


def test_a_label_that_the_model_does_not_know_teaches_nothing():
    net, tensors, inputs, labels = network(WIDTHS["mlp"])
    with_strangers = np.concatenate([labels, [3, -1, 10**9]])
    more = np.concatenate([inputs, inputs[:3] * 5])
    ours = gradient_of(net, tensors, more, with_strangers)
    known = gradient_of(net, tensors, inputs, labels)
    assert farthest(ours, {name: part * 0.7 for name, part in known.items()}) < 1e-12


def test_large_logits_neither_overflow_nor_warn():
    net, tensors, inputs, labels = network(WIDTHS["mlp"], dtype=np.float32)
    found = gradient_of(net, {name: tensor * np.float32(1e4) for name, tensor in tensors.items()}, inputs, labels)
    assert all(np.isfinite(part).all() for part in found.values())


@given(st.permutations([f"layer{number}" for number in range(12)]))
def test_layers_stand_in_the_order_of_their_numbers(names):
    widths = {f"layer{number}": number + 2 for number in range(13)}
    tensors = {f"{name}.weight": (widths[f"layer{int(name[5:]) + 1}"], widths[name]) for name in names}
    assert DenseNetwork.of(tensors).layers == tuple(f"layer{number}" for number in range(12))


def test_layers_may_be_named_in_order():
    tensors = {"body.weight": (4, 5), "body.bias": (4,), "a_head.weight": (3, 4)}
    with pytest.raises(ModelMismatch, match="layers="):
        DenseNetwork.of(tensors)
    net = DenseNetwork.of(tensors, ["body", "a_head"])
    assert (net.num_features, net.num_classes) == (5, 3)


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"conv1.weight": (3, 1, 5, 5)},
        {"dense1.weight": (4, 5), "running_mean": (4,)},
        {"dense1.bias": (4,)},
        {"dense1.weight": (4, 5), "dense1.bias": (5,)},
        {"dense1.weight": (4, 5), "dense2.weight": (3, 5)},
        {"dense1.weight": (4, 0)},
        {"dense1.weight": (4, 5), "dense2.bias": (4,)},
    ],
)
def test_tensors_that_are_no_dense_layers_are_refused(tensors):
    with pytest.raises(ModelMismatch, match="nothing was trained"):
        DenseNetwork.of(tensors)


@pytest.mark.parametrize("layers", [["other"], ["dense1", "dense1"], []])
def test_layers_that_the_model_does_not_have_are_refused(layers):
    with pytest.raises(ModelMismatch, match="nothing was trained"):
        DenseNetwork.of({"dense1.weight": (4, 5)}, layers)
