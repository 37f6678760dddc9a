"""A model leaves with the names that its tensors have, and with nothing about devices."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from server_kit.checkpoints import export_model
from server_kit.errors import CheckpointNotWritten
from server_kit.layout import Layout
from server_kit.round import Asked, CohortState

LAYOUT = Layout((("dense.weight", (2, 3)), ("dense.bias", (2,))))
STATE = CohortState(
    "0.1",
    torch.arange(8.0),
    version=12,
    round=11,
    asked={"device-7": Asked(12, 0.0)},
    aggregation={"first": torch.ones(8)},
    clustering={"labels": {"device-7": 1}},
    refusals=Counter({"late": 3}),
)


def test_an_exported_model_loads_into_a_module(tmp_path):
    export_model(STATE, LAYOUT, "auxo", tmp_path / "model.safetensors")
    module = torch.nn.ModuleDict({"dense": torch.nn.Linear(3, 2)})
    module.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(LAYOUT.read(module), STATE.model)


def test_it_says_where_it_comes_from_and_no_more(tmp_path):
    path = tmp_path / "model.safetensors"
    export_model(STATE, LAYOUT, "auxo", path)
    with safe_open(path, framework="pt") as opened:
        expected = {"format": "pt", "cohort": "0.1", "version": "12", "round": "11", "preset": "auxo"}
        assert opened.metadata() == expected
        assert set(opened.keys()) == {"dense.weight", "dense.bias"}
    assert b"device-7" not in path.read_bytes()
    assert [each.name for each in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_place_that_cannot_be_written_is_an_error_that_says_so(tmp_path):
    (tmp_path / "there").write_text("a file")
    with pytest.raises(CheckpointNotWritten, match=r"was not written to .*what was there is untouched"):
        export_model(STATE, LAYOUT, "auxo", tmp_path / "there" / "model.safetensors")
    with pytest.raises(CheckpointNotWritten, match=r"model\.safetensors \(No such file or directory\); choose"):
        export_model(STATE, LAYOUT, "auxo", tmp_path / "nowhere" / "model.safetensors")
