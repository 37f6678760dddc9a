"""Whether a model can be clipped record by record, found out before anything is booked.

Some reasons to refuse are known by name: layers that mix the records of a batch, layers that Opacus cannot
differentiate. The rest is tried out on made-up records, because the promise rests on it: exchange one
record of a batch, and the gradients of the others must stay as they were; add up the gradients of all
records, and autograd must find the same; and nothing but the parameters may carry a record from one step
to the next.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from privacy.errors import UnsupportedModel
from privacy.training.flat_model import trainable
from privacy.training.made_up import made_up_batch
from privacy.training.opacus_layers import opacus_layers
from privacy.training.per_record_loss import PerRecordLoss
from privacy.training.per_sample_clipping import Batch, PerSampleClipper, trainable_layers

_TOLERANCE = 1e-3
_NOTHING = 1e-5  # of the whole gradient: where a parameter has no influence, floats leave this much of nothing
_REGISTER = "register one with opacus.grad_sample.register_grad_sampler, or freeze it with requires_grad_(False)"


def check_layers(model: nn.Module) -> None:
    """Refuse what is known by name to mix records, or not to have gradients for single ones."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            raise _unsupported(name, module, "mixes the records of a batch", _substitute(module))
        if isinstance(module, nn.Embedding) and (module.max_norm is not None or module.scale_grad_by_freq):
            why = "rescales its rows by how records use them"
            raise _unsupported(name, module, why, "set max_norm=None and scale_grad_by_freq=False")
    for name, layer in trainable_layers(model).items():
        if type(layer) not in opacus_layers().gradients:
            raise _unsupported(name, layer, "has parameters but no gradient for single records", _substitute(layer))
    kinds = {(parameter.dtype, parameter.device) for parameter in trainable(model).values()}
    if len(kinds) != 1 or not {dtype for dtype, _ in kinds} <= {torch.float32, torch.float64}:
        raise UnsupportedModel(
            "a model needs trainable parameters, all float32 or all float64 and on one device; "
            "convert it with model.float().to(device); nothing was booked"
        )


def check_behaviour(model: nn.Module, loss: PerRecordLoss, like: Batch) -> None:
    """Try `model` (a copy in training mode) on made-up records of the form of `like`."""
    device = next(iter(trainable(model).values())).device
    batch, other = (made_up_batch(like, 3, start).to(device) for start in (0, 3))
    exchanged = Batch(_with_second_of(batch.inputs, other.inputs), _with_second_of(batch.targets, other.targets))
    state = {name: tensor.clone() for name, tensor in _state(model)}
    clipper = PerSampleClipper(model, loss, 1.0, ghost=False)
    try:
        with _without_torchs_generator(device):
            rows, rows_exchanged = (clipper.rows(each) for each in (batch, exchanged))
            total = _by_autograd(model, loss, batch)
    except UnsupportedModel:
        raise
    except Exception as error:
        raise UnsupportedModel(
            f"the model and its loss fail on a batch of three made-up records: {error}; "
            "they must accept records of the data's shape and type; nothing was booked"
        ) from error
    _check_unchanged(model, state)
    whole = float(torch.stack([part.norm() for part in (*total.values(), *rows.values())]).norm())
    if not math.isfinite(whole):
        raise UnsupportedModel(
            "the model's gradient is not finite for made-up records of values from 0 to 1; "
            "scale the inputs to that range; nothing was booked"
        )
    nothing = _NOTHING * whole
    for name, parameter in trainable(model).items():
        none = torch.zeros_like(parameter).expand(3, *parameter.shape)
        of_batch, of_exchanged = rows.get(parameter, none), rows_exchanged.get(parameter, none)
        if not all(_close(of_batch[other], of_exchanged[other], nothing) for other in (0, 2)):
            raise UnsupportedModel(
                f"exchanging one record changes the gradients of others at '{name}', so clipping would bound nothing; "
                "compute every record from itself alone; nothing was booked"
            )
        if not _close(of_batch.sum(0), total[parameter], nothing):
            raise UnsupportedModel(
                f"'{name}' is used outside its layer or in a way Opacus does not follow, so part of its gradient "
                "would be lost; call the layer it belongs to instead; nothing was booked"
            )


def check_records_apart(model: nn.Module, loss: PerRecordLoss, like: Batch) -> None:
    """Refuse a model, in the mode it is in, that computes the loss on one record from others as well."""
    place = next(model.parameters()).device
    batch, other = (made_up_batch(like, 3, start).to(place) for start in (0, 3))
    exchanged = Batch(_with_second_of(batch.inputs, other.inputs), _with_second_of(batch.targets, other.targets))
    with torch.no_grad(), torch.autocast(place.type, enabled=False):
        before, after = (loss(model(each.inputs), each.targets)[[0, 2]] for each in (batch, exchanged))
    if not torch.allclose(before, after, rtol=_TOLERANCE, atol=_NOTHING, equal_nan=True):
        raise UnsupportedModel(
            "exchanging one record changes the losses of others, so no record has a vote of its own; "
            "compute every record from itself alone; nothing was booked"
        )


def _check_unchanged(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    for name, tensor in _state(model):
        if not torch.equal(tensor, state[name]):
            raise UnsupportedModel(
                f"'{name}' changes when the model looks at records, which would carry them past the noise; "
                "use layers that keep no statistics (track_running_stats=False); nothing was booked"
            )


def _by_autograd(model: nn.Module, loss: PerRecordLoss, batch: Batch) -> dict[nn.Parameter, Tensor]:
    parameters = list(trainable(model).values())
    with torch.enable_grad():
        total = loss(model(batch.inputs), batch.targets).sum()
    found = torch.autograd.grad(total, parameters, materialize_grads=True)
    return dict(zip(parameters, found, strict=True))


@contextlib.contextmanager
def _without_torchs_generator(device: torch.device) -> Iterator[None]:
    """Refuse a model that draws from torch's generator, and leave the generator as it was."""

    def states() -> list[Tensor]:
        return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]

    before = states()
    yield
    if not all(torch.equal(then, now) for then, now in zip(before, states(), strict=True)):
        torch.set_rng_state(before[0])
        if device.type == "cuda":
            torch.cuda.set_rng_state(before[1], device)
        raise UnsupportedModel(
            "the model draws random numbers from torch's generator, which others may have seeded; "
            "use the layers nn.Dropout to nn.Dropout3d, which are given secret ones; nothing was booked"
        )


def _state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _with_second_of(tensor: Tensor, other: Tensor) -> Tensor:
    return torch.stack([tensor[0], other[1], tensor[2]])


def _close(one: Tensor, other: Tensor, nothing: float) -> bool:
    return float((one - other).norm()) <= _TOLERANCE * max(float(one.norm()), float(other.norm())) + nothing


def _substitute(module: nn.Module) -> str:
    if type(module) in opacus_layers().replaceable:
        return "replace it with opacus.validators.ModuleValidator.fix(model)"
    return "replace it with GroupNorm" if isinstance(module, _BatchNorm) else _REGISTER


def _unsupported(name: str, module: nn.Module, why: str, fix: str) -> UnsupportedModel:
    return UnsupportedModel(f"layer '{name}' ({type(module).__name__}) {why}; {fix}; nothing was booked")
