"""How good a model is: on the operator's own validation set, where there is one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from server_kit.errors import InvalidSetting
from server_kit.models import initial_model

if TYPE_CHECKING:
    from server_kit.daemon.federation_home import Home


@dataclass(frozen=True)
class Tested:
    """The share of examples that a model gets right, and the mean cross-entropy of its answers."""

    accuracy: float
    loss: float


Evaluate = Callable[[torch.Tensor, int], Tested | None]
"""How a model does in this round; None in rounds without a test."""

_AT_ONCE = 1024


def evaluator(home: Home, compute: str) -> Evaluate | None:
    """Tests models as the settings say; None if the server has no data of its own."""
    settings = home.config.evaluation
    if settings.validation is None or settings.every == 0:
        return None
    federation = home.config.federation
    initial = initial_model(federation.model, federation.seed, home.directory)
    if initial.module is None:
        raise InvalidSetting(
            "[evaluation] validation needs a model that is a torch module, and this one is arrays; nothing was started"
        )
    module, layout, (x, y) = initial.module.to(compute), initial.layout, _examples(settings.validation, compute)

    def evaluate(model: torch.Tensor, round_number: int) -> Tested | None:
        if round_number % settings.every:
            return None
        layout.write(model, module)
        module.eval()
        right, loss, count = 0, 0.0, max(1, len(x))
        with torch.no_grad():
            for start in range(0, len(x), _AT_ONCE):
                answers, truth = module(x[start : start + _AT_ONCE]), y[start : start + _AT_ONCE]
                right += int((answers.argmax(dim=1) == truth).sum())
                loss += float(torch.nn.functional.cross_entropy(answers, truth, reduction="sum"))
        return Tested(right / count, loss / count)

    return evaluate


def check_evaluation(home: Home, compute: str = "cpu") -> None:
    """Test the first model once; `InvalidSetting` where the operator's data are none that this model takes."""
    evaluate = evaluator(home, compute)
    if evaluate is None:
        return
    federation = home.config.federation
    weights = initial_model(federation.model, federation.seed, home.directory).weights.to(compute)
    try:
        evaluate(weights, 0)
    except (RuntimeError, IndexError) as error:
        # Torch's words may hold data.
        raise InvalidSetting(
            f"[evaluation] validation does not suit the model ({type(error).__name__}): x must be what it takes, and y "
            "the numbers of its answers; nothing was started"
        ) from error


def _examples(path: object, compute: str) -> tuple[torch.Tensor, torch.Tensor]:
    try:
        with np.load(str(path), allow_pickle=False) as arrays:
            x, y = arrays["x"], arrays["y"]
    except (KeyError, OSError, ValueError) as error:
        raise InvalidSetting(
            f"[evaluation] validation must be an .npz file with x and y ({type(error).__name__}); nothing was started"
        ) from error
    return torch.from_numpy(x.astype(np.float32)).to(compute), torch.from_numpy(y.astype(np.int64)).to(compute)
