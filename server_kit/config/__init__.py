"""What an operator can set: one frozen dataclass for each table of `server.toml`, and what may change while it runs."""

from __future__ import annotations

from server_kit.config.listening import Listen
from server_kit.config.policy import Allowance, Policy, check_policy
from server_kit.config.privacy_terms import HistogramTerms, Privacy
from server_kit.config.reloading import Reload, reloadable
from server_kit.config.server_config import FILE_NAME, ServerConfig
from server_kit.config.tables import (
    Aggregation,
    Evaluation,
    FederationSettings,
    Guards,
    Log,
    LogFormat,
    StoreSettings,
    Training,
)

__all__ = [
    "Aggregation",
    "Allowance",
    "Evaluation",
    "FILE_NAME",
    "FederationSettings",
    "Guards",
    "HistogramTerms",
    "Listen",
    "Log",
    "LogFormat",
    "Policy",
    "Privacy",
    "Reload",
    "ServerConfig",
    "StoreSettings",
    "Training",
    "check_policy",
    "reloadable",
]
