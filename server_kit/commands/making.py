"""`covey server init`: a federation that can run at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from server_kit.config.policy import check_policy
from server_kit.config.sample import sample_settings
from server_kit.config.server_config import ServerConfig
from server_kit.daemon.federation_home import Home
from server_kit.models import initial_model

if TYPE_CHECKING:
    from server_kit.config.policy import Allowance


def make_federation(directory: Path, *, model: str, **choices: Any) -> tuple[Home, Allowance]:
    """A new federation with these choices laid over `sample_settings`, and what its devices may do.

    Wrong settings are found before anything is made.
    """
    text = sample_settings(model=model, **choices)
    config = ServerConfig.of_text(text)
    allowance = check_policy(config)
    # As `python -m` does: the model may lie where the command is called.
    initial_model(model, config.federation.seed, Path.cwd())
    return Home.create(directory, text), allowance


def made_text(home: Home, allowance: Allowance, directory: str) -> str:
    """What was made, and what to do next."""
    listen, policy = home.config.listen, home.config.policy
    training = f" --training {home.config.privacy.level}"
    return "\n".join(
        [
            f"made a federation in {directory}",
            "",
            f"  settings    {directory}/server.toml",
            f"  devices     enrol at {listen.enrolment_address}, then talk to {listen.gateway_address}",
            f"  privacy     ε={policy.epsilon:g}, δ={policy.delta:g}: room for {allowance.rounds} rounds of a device",
            f"  back up     {directory}/secrets: without them neither devices nor data are known again",
            "",
            f"  covey server check {directory}",
            f"  covey server run {directory}",
            f"  covey server invite {directory}",
            f"  covey device enrol --server {listen.enrolment_address} --invitation - --state STATE{training}",
        ]
    )
