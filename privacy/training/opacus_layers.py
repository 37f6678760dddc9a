"""What we use of Opacus: how each kind of layer is differentiated record by record. Nothing else of it.

Its random numbers, accountants, data loaders, optimisers and checkpoints are not touched. Importing it
takes seconds, so that waits until a model is there; and it must not be noticed: Opacus sets up the root
logger on import, and what it imports may warn.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from privacy.errors import MissingExtra

if TYPE_CHECKING:
    from torch import Tensor, nn

    # (layer, inputs of the layer, gradient of its output) -> for each parameter one row a record
    Sampler = Callable[[nn.Module, list[Tensor], Tensor], Mapping[nn.Parameter, Tensor]]


@dataclass(frozen=True)
class OpacusLayers:
    """Opacus's tables, which `opacus.grad_sample.register_grad_sampler` extends."""

    gradients: Mapping[type[nn.Module], Sampler]
    norms: Mapping[type[nn.Module], Sampler]
    replaceable: frozenset[type[nn.Module]]
    """Kinds of layer for which `opacus.validators.ModuleValidator.fix` knows a substitute."""
    recurrent: type[nn.Module]
    """The linear layer inside Opacus's recurrent ones: used once for every place in a sequence."""


@cache
def opacus_layers() -> OpacusLayers:
    """The tables, loaded on first use."""
    root = logging.getLogger()
    handlers = list(root.handlers)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            grad_sample, rnn, validators = _imported()
    except ImportError as error:
        raise MissingExtra(
            "record-level DP-SGD needs Opacus; install it with: pip install 'covey[torch]'; nothing was booked"
        ) from error
    finally:
        for handler in [handler for handler in root.handlers if handler not in handlers]:
            root.removeHandler(handler)
    return OpacusLayers(
        gradients=grad_sample.GradSampleModule.GRAD_SAMPLERS,
        norms=grad_sample.GradSampleModuleFastGradientClipping.NORM_SAMPLERS,
        replaceable=frozenset(validators.ModuleValidator.FIXERS),
        recurrent=rnn.RNNLinear,
    )


def _imported() -> tuple[Any, Any, Any]:
    from opacus import grad_sample, validators
    from opacus.layers import dp_rnn

    return grad_sample, dp_rnn, validators
