"""Research on one machine: the algorithms of the daemon, on a fleet that is computed instead of connected.

    from server_kit.presets import strategy
    from server_kit.simulation import LocalTask, Mlp, Population, RunSettings, simulate

Names are loaded when first used: reading an experiment file should not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from server_kit.local_task import LocalTask
    from server_kit.simulation.population import Population
    from server_kit.simulation.privacy_terms import PrivacyTerms
    from server_kit.simulation.records import Point, Run
    from server_kit.simulation.training import Cnn, LogisticRegression, Mlp, ModuleSpec
    from server_kit.simulation.virtual_time import RunSettings, simulate

_HOMES = {
    "Cnn": "server_kit.simulation.training",
    "LocalTask": "server_kit.local_task",
    "LogisticRegression": "server_kit.simulation.training",
    "Mlp": "server_kit.simulation.training",
    "ModuleSpec": "server_kit.simulation.training",
    "Point": "server_kit.simulation.records",
    "Population": "server_kit.simulation.population",
    "PrivacyTerms": "server_kit.simulation.privacy_terms",
    "Run": "server_kit.simulation.records",
    "RunSettings": "server_kit.simulation.virtual_time",
    "simulate": "server_kit.simulation.virtual_time",
}

__all__ = [
    "Cnn",
    "LocalTask",
    "LogisticRegression",
    "Mlp",
    "ModuleSpec",
    "Point",
    "Population",
    "PrivacyTerms",
    "Run",
    "RunSettings",
    "simulate",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'server_kit.simulation' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
