"""What an app embeds: a device that trains, keeps its data, and releases only what its ledger has booked.

A newcomer reads `device` (the facade), `policy` (what it refuses) and `runtime` (the path of a round). Names are
loaded when first used, so that importing `device_sdk` costs an app next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from device_sdk.affinity import Affinity, AffinityRecord, Feedback
    from device_sdk.background import BackgroundRun
    from device_sdk.conditions import Conditions
    from device_sdk.config import DeviceConfig
    from device_sdk.device import Device, DeviceStatus
    from device_sdk.errors import DeviceError
    from device_sdk.policy import Policy
    from device_sdk.question_policy import QuestionPolicy
    from device_sdk.task_limits import TaskLimits
    from device_sdk.trainers.protocol import Evaluation, LocalUpdate, Trainer, TrainingSettings
    from device_sdk.trainers.task_in_hand import TaskInHand
    from privacy.budget import PrivacyBudget, PrivacyUnit

_HOMES = {
    "Affinity": "device_sdk.affinity",
    "AffinityRecord": "device_sdk.affinity",
    "BackgroundRun": "device_sdk.background",
    "Conditions": "device_sdk.conditions",
    "Device": "device_sdk.device",
    "DeviceConfig": "device_sdk.config",
    "DeviceError": "device_sdk.errors",
    "DeviceStatus": "device_sdk.device",
    "Evaluation": "device_sdk.trainers.protocol",
    "Feedback": "device_sdk.affinity",
    "LocalUpdate": "device_sdk.trainers.protocol",
    "Policy": "device_sdk.policy",
    "PrivacyBudget": "privacy.budget",
    "PrivacyUnit": "privacy.budget",
    "QuestionPolicy": "device_sdk.question_policy",
    "TaskInHand": "device_sdk.trainers.task_in_hand",
    "TaskLimits": "device_sdk.task_limits",
    "Trainer": "device_sdk.trainers.protocol",
    "TrainingSettings": "device_sdk.trainers.protocol",
}

__all__ = [
    "Affinity",
    "AffinityRecord",
    "BackgroundRun",
    "Conditions",
    "Device",
    "DeviceConfig",
    "DeviceError",
    "DeviceStatus",
    "Evaluation",
    "Feedback",
    "LocalUpdate",
    "Policy",
    "PrivacyBudget",
    "PrivacyUnit",
    "QuestionPolicy",
    "TaskInHand",
    "TaskLimits",
    "Trainer",
    "TrainingSettings",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'device_sdk' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
