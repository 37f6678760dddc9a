"""The operator's settings as the engine's plan: strategy, model, local task. Coordinator and workers make the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from server_kit.daemon.wanted import WantedSummaries
from server_kit.federation_state import Plan
from server_kit.guarding import guarded
from server_kit.local_task import LocalTask
from server_kit.models import initial_model

if TYPE_CHECKING:
    import torch

    from server_kit.config import ServerConfig
    from server_kit.daemon.federation_home import Home

_ANOTHER_START = 7919


def plan_of(home: Home) -> Plan:
    """What this federation does; `InvalidSetting` where the settings make no sense."""
    federation, training = home.config.federation, home.config.training
    compute = compute_device(federation.device)

    def fresh_model(number: int) -> torch.Tensor:
        seed = federation.seed + _ANOTHER_START * number
        return initial_model(federation.model, seed, home.directory).weights.to(compute)

    layout = initial_model(federation.model, federation.seed, home.directory).layout
    return Plan(
        strategy=guarded(federation.strategy(home.config.privacy.level), home.config, layout.size),
        task=LocalTask(
            training.learning_rate,
            training.batch_size,
            epochs=training.epochs or 1,
            steps=training.steps,
            momentum=training.momentum,
        ),
        layout=layout,
        participants=federation.participants,
        fresh_model=fresh_model,
        seed=federation.seed,
        compute=compute,
    )


def wanted_of(config: ServerConfig, plan: Plan) -> WantedSummaries:
    """Which summaries this federation takes."""
    return WantedSummaries.of(
        config.privacy,
        plan.strategy,
        plan.layout,
        asks_for_accuracy=config.evaluation.validation is None,
        most_epsilon=config.policy.epsilon,
        most_bytes=config.guards.most_summary_bytes,
    )


def compute_device(wanted: str) -> str:
    """The torch device to work on: the one named, or a GPU if there is one."""
    if wanted != "auto":
        return wanted
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
