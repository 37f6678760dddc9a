"""Evaluation gives each device the loss and accuracy of its own model on its own records."""

from __future__ import annotations

import pytest
import torch

from server_kit.errors import InvalidSetting
from server_kit.simulation.training import ModuleSpec, Trainer, evaluate
from server_kit.simulation.training import trainer as trainer_module
from tests.server_kit.simulation.training.fleet import SPECS, fleet


def slowly(spec, model, data, device):
    module = spec.module(model).eval()
    rows = torch.from_numpy(data.rows(device, torch.arange(data.count(device)).numpy()))
    with torch.no_grad():
        outputs = module(data.x[rows].view(len(rows), *spec.input_shape))
    loss = torch.nn.functional.cross_entropy(outputs, data.y[rows])
    return loss, (outputs.argmax(dim=1) == data.y[rows]).float().mean()


@pytest.mark.parametrize("rows_at_once", [5, 1024])
@pytest.mark.parametrize("spec_name", SPECS)
def test_each_device_is_measured_with_the_model_of_its_cohort(spec_name, rows_at_once, monkeypatch):
    monkeypatch.setattr(trainer_module, "rows_at_once", lambda _: rows_at_once)
    spec = SPECS[spec_name]
    data = fleet(spec)
    devices, cohort = list(data), [0, 1, 2, 1, 0, 0, 2, 1, 0]
    models = torch.stack([spec.initial(seed) for seed in range(3)])
    with Trainer(spec, workers=2) as trainer:
        found = trainer.evaluate(models, data, devices, model_of=cohort)
    assert found.records.tolist() == [data.count(device) for device in devices]
    right = 0.0
    for device, model, loss, accuracy in zip(devices, cohort, found.losses, found.accuracies, strict=True):
        if data.count(device) == 0:
            assert loss.isnan()
            assert accuracy.isnan()
            continue
        expected = slowly(spec, models[model], data, device)
        torch.testing.assert_close(loss, expected[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(accuracy, expected[1])
        right += float(expected[1]) * data.count(device)
    assert found.accuracy == pytest.approx(right / sum(found.records.tolist()))


def test_one_model_serves_all_and_each_may_have_its_own():
    spec = SPECS["mlp"]
    data = fleet(spec)
    model = spec.initial(3)
    shared = evaluate(spec, model, data, list(data))
    owned = evaluate(spec, model.expand(len(data), -1), data, list(data))
    torch.testing.assert_close(shared.losses, owned.losses, equal_nan=True)
    assert shared.loss == pytest.approx(owned.loss)


def test_any_module_is_evaluated_in_its_evaluation_mode():
    spec = SPECS["mlp"]
    data = fleet(spec)
    module = torch.nn.Sequential(torch.nn.Dropout(0.5), spec.module(spec.initial(2)))
    general = ModuleSpec(module, spec.input_shape)
    found = evaluate(general, general.initial(), data, list(data))
    torch.testing.assert_close(found.losses, evaluate(spec, spec.initial(2), data, list(data)).losses, equal_nan=True)


def test_a_device_without_a_model_is_refused():
    spec = SPECS["mlp"]
    data = fleet(spec)
    with pytest.raises(InvalidSetting, match="2 models for 9 devices"):
        evaluate(spec, torch.stack([spec.initial(0)] * 2), data, list(data))
    with pytest.raises(InvalidSetting, match="one for each"):
        evaluate(spec, spec.initial(0), data, list(data), model_of=[1] * 9)


def test_what_is_not_a_number_stays_with_its_device():
    spec = SPECS["cnn"]
    data = fleet(spec)
    before = evaluate(spec, spec.initial(0), data, list(data))
    data.x[0] = torch.nan
    after = evaluate(spec, spec.initial(0), data, list(data))
    assert after.losses[0].isnan()
    torch.testing.assert_close(after.losses[1:], before.losses[1:], equal_nan=True)
