"""Everything is computed where it was asked to be: no tensor is made on another device on the way."""

from __future__ import annotations

import pytest
import torch

from server_kit.errors import InvalidSetting
from server_kit.simulation.training import LocalTask, ModuleSpec, Trainer
from server_kit.simulation.training.bench import Bench
from server_kit.simulation.training.evaluation import panels
from server_kit.simulation.training.hardware import torch_device
from tests.server_kit.simulation.training.fleet import SEED, SPECS, by_kernel, fleet

TASKS = {
    "plain": LocalTask(0.1, batch_size=4),
    "epochs": LocalTask(0.1, batch_size=4, epochs=2, momentum=0.5, proximal=0.1),
    "noised": LocalTask(0.1, batch_size=4, clip_norm=0.5, noise_multiplier=1.0),
    "noised halves": LocalTask(0.1, batch_size=4, epochs=2, clip_norm=0.5, noise_multiplier=1.0, halves=True),
}
CASES = [("mlp", True, task) for task in TASKS] + [(name, False, task) for name in ("mlp", "cnn") for task in TASKS]


@pytest.mark.parametrize(("name", "row_space", "task"), CASES)
def test_training_makes_no_tensor_on_the_default_device(name, row_space, task):
    """With a default that cannot compute, whatever forgets to say where it belongs fails or differs."""
    spec = SPECS[name]
    data, devices = fleet(spec), ["d0", "d1", "d3", "d5"]
    expected = by_kernel(spec, data, devices, TASKS[task], row_space=row_space)
    start = spec.initial(1)
    with torch.device("meta"):
        found = by_kernel(spec, data, devices, TASKS[task], row_space=row_space, start=start)
    assert found.updates.is_cpu
    assert torch.equal(found.updates, expected.updates)


def test_evaluation_makes_no_tensor_on_the_default_device():
    spec = SPECS["mlp"]
    data, model = fleet(spec), spec.initial(1)[None]
    panel = panels(model, [0, 0], data, ["d0", "d1"], 64)[0]
    expected = panel.sums(Bench(spec))
    with torch.device("meta"):
        found = panel.sums(Bench(spec))
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_a_tensor_that_forgets_where_it_belongs_is_caught():
    with torch.device("meta"), pytest.raises((RuntimeError, NotImplementedError)):
        (torch.zeros(3) + torch.ones(3, device="cpu")).numpy()


def test_auto_is_a_graphics_card_only_where_there_is_one():
    assert torch_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert torch_device("cpu").type == "cpu"
    with pytest.raises(InvalidSetting, match="'auto', 'cpu' or 'cuda'"):
        torch_device("gpu")  # type: ignore[arg-type]


def test_a_missing_graphics_card_is_refused_before_anything_is_trained(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidSetting, match="nothing was trained"):
        Trainer(SPECS["mlp"], device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no graphics card on this machine")
@pytest.mark.parametrize("name", ["mlp", "cnn", "module"])
@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_graphics_card_gives_what_the_processor_gives(name, task):
    like = SPECS["mlp" if name == "module" else name]
    spec = ModuleSpec(like.module(like.initial(1)), like.input_shape) if name == "module" else like
    data, start = fleet(spec), like.initial(1)

    def trained(device):
        with Trainer(spec, device=device) as trainer:
            chosen = ["d0", "d1", "d3", "d5"]
            updates = trainer.train(start, data, chosen, task, seed=SEED).updates
            return updates, trainer.evaluate(start, data, chosen).losses

    for ours, theirs in zip(trained("cpu"), trained("cuda"), strict=True):
        assert theirs.is_cpu
        torch.testing.assert_close(theirs, ours, rtol=1e-3, atol=1e-4)
