"""The model of a federation: the same for the same seed, of the operator's own making, or refused in one sentence."""

from __future__ import annotations

import sys

import pytest
import torch

from device_sdk.trainers.dense_network import DenseNetwork
from server_kit.errors import InvalidSetting
from server_kit.models import initial_model

BUILT_IN = ["digits_softmax", "digits_mlp", "mnist_mlp"]


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_seed_decides_the_weights_and_nothing_else_does(name):
    target = f"server_kit.models:{name}"
    torch.manual_seed(1)
    first = initial_model(target, seed=7).weights
    torch.manual_seed(2)
    assert torch.equal(first, initial_model(target, seed=7).weights)
    assert not torch.equal(first, initial_model(target, seed=8).weights)


def test_building_a_model_leaves_torchs_own_chance_alone():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    initial_model("server_kit.models:digits_softmax", seed=0)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("name", BUILT_IN)
def test_devices_without_torch_can_train_what_is_built_in(name):
    model = initial_model(f"server_kit.models:{name}", seed=0)
    network = DenseNetwork.of(dict(model.layout.tensors))
    assert network.num_classes == 10
    assert model.module is not None
    assert model.module(torch.zeros(2, network.num_features)).shape == (2, 10)


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])

    def write(source: str) -> str:
        module = f"own_model_{len(list(tmp_path.iterdir()))}_{tmp_path.name.replace('-', '_')}"
        (tmp_path / f"{module}.py").write_text(source)
        return f"{module}:build"

    return write


def test_a_module_in_the_federations_folder_is_found(own, tmp_path):
    target = own("import torch\n\ndef build():\n    return torch.nn.Linear(3, 2)\n")
    assert initial_model(target, 0, tmp_path).layout.size == 8


def test_a_module_where_the_command_is_run_is_found_from_any_federation(own, tmp_path, monkeypatch):
    target = own("import torch\n\ndef build():\n    return torch.nn.Linear(3, 2)\n")
    monkeypatch.chdir(tmp_path)
    assert initial_model(target, 0, tmp_path / "federation").layout.size == 8


def test_arrays_will_do(own, tmp_path):
    target = own(
        "import numpy as np\n\ndef build():\n    return {'w': np.arange(6.0).reshape(2, 3), 'b': np.ones(2)}\n"
    )
    model = initial_model(target, 0, tmp_path)
    assert model.module is None
    assert model.weights.tolist() == [0, 1, 2, 3, 4, 5, 1, 1]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def other(): ...", "cannot be imported"),
        ("import nowhere_at_all", "cannot be imported"),
        ("raise RuntimeError('secret')", "failed when it was imported (RuntimeError)"),
        ("def build(:", "failed when it was imported (SyntaxError)"),
        ("def build():\n    return 7", "gave a int, not a torch module or a mapping of arrays"),
        ("def build():\n    return {}", "gave a dict"),
        ("def build():\n    raise RuntimeError('secret')", "failed when it was built (RuntimeError)"),
        ("import torch\n\ndef build():\n    return torch.nn.ReLU()", "no parameter that can be trained"),
    ],
)
def test_what_is_no_model_is_refused_in_one_sentence(own, tmp_path, source, said):
    with pytest.raises(InvalidSetting) as caught:
        initial_model(own(source), 0, tmp_path)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_module_that_is_not_there_is_refused():
    with pytest.raises(InvalidSetting, match=r"server\.toml \[federation\]: 'nowhere:build' cannot be imported"):
        initial_model("nowhere:build", 0)
