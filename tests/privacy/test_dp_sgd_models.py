"""Models that cannot be clipped record by record are refused before anything is booked, with the fix named."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys

import pytest
import torch
from opacus.grad_sample import GradSampleModule
from opacus.validators import ModuleValidator
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import weight_norm

from privacy.errors import UnsupportedModel
from privacy.training.flat_model import FlatModel
from privacy.training.model_check import check_behaviour, check_layers
from privacy.training.per_record_loss import PerRecordLoss
from privacy.training.per_sample_clipping import Batch
from tests.privacy.dp_sgd_cases import CASES, data, initialised, mlp, token_data


def check(model: nn.Module, records: Batch, loss=None) -> None:
    check_layers(model)
    check_behaviour(FlatModel(model).module, PerRecordLoss(loss or nn.CrossEntropyLoss()), records)


class Lambda(nn.Module):
    """Computes `function(model, inputs)`."""

    def __init__(self, function, **parts) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.function = function

    def forward(self, inputs: Tensor) -> Tensor:
        return self.function(self, inputs)


@pytest.mark.parametrize("case", CASES)
def test_models_of_supported_layers_pass(case):
    check(*CASES[case]())


def test_parameters_without_influence_pass():
    # The bias before InstanceNorm cancels: its gradient is rounding error and nothing else.
    layers = [nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.Flatten(), nn.Linear(144, 3)]
    check(initialised(nn.Sequential(*layers)), data(4, 1, 8, 8, classes=3))


def test_a_model_that_uses_only_part_of_its_layers_passes():
    check(
        initialised(Lambda(lambda m, x: m.used(x), used=nn.Linear(6, 3), unused=nn.Linear(2, 2))), data(4, 6, classes=3)
    )


def test_no_records_at_all_can_be_checked():
    check(mlp(), Batch(torch.zeros(0, 6), torch.zeros(0, dtype=torch.int64)))


BATCH_NORM = [
    lambda: nn.BatchNorm2d(4),
    lambda: nn.BatchNorm2d(4, affine=False),
    lambda: nn.BatchNorm2d(4).requires_grad_(False),
]


@pytest.mark.parametrize("norm", BATCH_NORM)
def test_batch_normalisation_is_refused_by_name(norm):
    model = nn.Sequential(nn.Conv2d(1, 4, 3), norm(), nn.Flatten(), nn.Linear(144, 3))
    with pytest.raises(UnsupportedModel, match=r"layer '1' \(BatchNorm2d\).*ModuleValidator.fix"):
        check(model, data(4, 1, 8, 8, classes=3))


def test_the_fix_that_is_named_works():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3))
    check(ModuleValidator.fix(model), data(4, 1, 8, 8, classes=3))


def linear_and(function) -> nn.Module:
    return Lambda(function, linear=nn.Linear(6, 3))


def in_the_middle(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (2, 3)), *layers, nn.Flatten(), nn.Linear(6, 3))


REFUSED = {
    "recurrent layer of torch": (
        lambda: Lambda(lambda m, x: m.lstm(x.unsqueeze(1))[0][:, -1], lstm=nn.LSTM(6, 3, batch_first=True)),
        r"'lstm' \(LSTM\).*ModuleValidator.fix",
    ),
    "parameter of its own": (
        lambda: Lambda(lambda m, x: m.linear(x) * m.scale, linear=nn.Linear(6, 3), scale=nn.Parameter(torch.ones(3))),
        r"layer '' \(Lambda\).*register_grad_sampler",
    ),
    "kind of layer that Opacus does not know": (
        lambda: in_the_middle(nn.ConvTranspose1d(2, 2, 1)),
        r"layer '1' \(ConvTranspose1d\).*register_grad_sampler",
    ),
    "mean over the batch": (lambda: linear_and(lambda m, x: m.linear(x - x.mean(0))), "exchanging one record"),
    "maximum over the batch": (
        lambda: linear_and(lambda m, x: m.linear(x) / m.linear(x).max()),
        "exchanging one record",
    ),
    "parameter used beside its layer": (
        lambda: linear_and(lambda m, x: m.linear(x) + x @ m.linear.weight.T),
        "'linear.weight' is used outside its layer",
    ),
    "records in the second dimension": (
        lambda: linear_and(lambda m, x: m.linear(x.unsqueeze(0).expand(2, -1, -1)).sum(0)),
        "one row for each record",
    ),
    "running statistics": (
        lambda: in_the_middle(nn.InstanceNorm1d(2, affine=True, track_running_stats=True)),
        "'1.running_mean' changes.*track_running_stats",
    ),
    "rewritten parameter": (
        lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU(), weight_norm(nn.Linear(4, 3))),
        "cannot be copied.*weight_norm",
    ),
    "padding that Opacus does not follow": (
        lambda: in_the_middle(nn.Conv1d(2, 2, 3, padding=1, padding_mode="circular")),
        "'1.weight' is used outside its layer or in a way",
    ),
    "dropout that torch draws": (
        lambda: linear_and(lambda m, x: functional.dropout(m.linear(x))),
        "draws random numbers from torch's generator.*nn.Dropout",
    ),
    "wrong size": (lambda: nn.Linear(7, 3), "fail on a batch of three made-up records"),
    "half precision": (lambda: nn.Linear(6, 3).to(torch.bfloat16), "float32 or all float64"),
    "nothing to train": (lambda: nn.Linear(6, 3).requires_grad_(False), "needs trainable parameters"),
    "not finite": (lambda: linear_and(lambda m, x: m.linear((x - 5).log())), "not finite"),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_a_model_whose_records_cannot_be_told_apart_is_refused(name):
    build, message = REFUSED[name]
    with pytest.raises(UnsupportedModel, match=message) as refusal:
        check(build(), data(4, 6, classes=3))
    assert str(refusal.value).endswith("nothing was booked")


def test_a_gradient_that_a_registered_sampler_forgets_is_noticed(monkeypatch):
    def forgetful(layer, inputs, gradients):
        return {layer.weight: torch.einsum("ni,nj->nij", gradients, inputs[0])}

    class Forgotten(nn.Linear):
        pass

    monkeypatch.setitem(GradSampleModule.GRAD_SAMPLERS, Forgotten, forgetful)
    with pytest.raises(UnsupportedModel, match="'bias' is used outside its layer or in a way"):
        check(Forgotten(6, 3), data(4, 6, classes=3))
    check(Forgotten(6, 3, bias=False), data(4, 6, classes=3))


@pytest.mark.parametrize("option", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_an_embedding_that_depends_on_who_is_looked_up_is_refused(option):
    model = Lambda(lambda m, x: m.embedding(x).mean(1), embedding=nn.Embedding(11, 3, **option))
    with pytest.raises(UnsupportedModel, match=r"\(Embedding\).*max_norm=None"):
        check(model, token_data(4, 5, 11, 3))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda outputs, targets: outputs.sum(), "one value for a whole batch"),
        (lambda outputs, targets: (outputs - outputs.mean(0)).square().sum(1), "exchanging one record"),
    ],
)
def test_a_loss_that_mixes_records_is_refused(loss, message):
    with pytest.raises(UnsupportedModel, match=message):
        check(mlp(), data(4, 6, classes=3), loss)


def test_checking_leaves_the_model_alone():
    model = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 3)).eval()
    before = [parameter.clone() for parameter in model.parameters()]
    check(model, data(4, 6, classes=3))
    assert not model.training
    assert type(model[1]) is nn.Dropout
    assert all(torch.equal(now, then) for now, then in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("random", [True, False])
def test_checking_leaves_torchs_generator_alone(random):
    model = linear_and(lambda m, x: functional.dropout(m.linear(x), 0.5, training=random))
    state = torch.get_rng_state()
    with pytest.raises(UnsupportedModel) if random else contextlib.nullcontext():
        check(model, data(4, 6, classes=3))
    assert torch.equal(torch.get_rng_state(), state)


def test_importing_opacus_is_not_noticed():
    script = """
import logging, sys, warnings
import torch
assert not logging.getLogger().handlers
warnings.simplefilter("error")
filters = list(warnings.filters)
from privacy.training.opacus_layers import opacus_layers
opacus_layers()
assert not logging.getLogger().handlers, "the root logger was set up"
assert warnings.filters == filters, "warnings are filtered differently now"
"""
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (finished.returncode, finished.stderr) == (0, "")


def test_the_callers_log_handlers_stay():
    handler = logging.NullHandler()
    logging.getLogger().addHandler(handler)
    try:
        check(mlp(), data(4, 6, classes=3))
        assert handler in logging.getLogger().handlers
    finally:
        logging.getLogger().removeHandler(handler)
