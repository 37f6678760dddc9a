"""Local training of simulated devices, many at once: specs, tasks, data, and the trainer that joins them."""

from __future__ import annotations

from server_kit.layout import Layout
from server_kit.local_task import LocalTask
from server_kit.simulation.training.devices import DeviceData
from server_kit.simulation.training.evaluation import Evaluation
from server_kit.simulation.training.module_spec import ModuleSpec
from server_kit.simulation.training.results import Trained
from server_kit.simulation.training.specs import Cnn, LogisticRegression, Mlp
from server_kit.simulation.training.trainer import Trainer, evaluate, train

__all__ = [
    "Cnn",
    "DeviceData",
    "Evaluation",
    "Layout",
    "LocalTask",
    "LogisticRegression",
    "Mlp",
    "ModuleSpec",
    "Trained",
    "Trainer",
    "evaluate",
    "train",
]
