"""What leaves a device: noised exactly, booked before it leaves, signed, and open to audit.

A newcomer reads `budget` (what may be spent), `release` (the one order of events) and `ledger` (where it
is written down), then any file of `mechanisms`. Nothing here imports another package of ours, and names
are loaded when first used, so that importing `privacy` costs a device next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privacy.accounting import epsilon_spent
    from privacy.budget import NeighbouringRelation, PrivacyBudget, PrivacyCost, PrivacyUnit
    from privacy.errors import BudgetExhausted, PrivacyError
    from privacy.keys import LedgerKeys
    from privacy.ledger import Ledger
    from privacy.mechanisms import (
        BoundedScalar,
        ClippedUpdate,
        DiscreteGaussian,
        FeatureHistogram,
        LabelHistogram,
        RandomizedResponse,
    )
    from privacy.randomness import NoiseSource, SeededSource
    from privacy.receipts import Receipt
    from privacy.release import Answer, Guarantee, Mechanism, Release, Request, perform

_HOMES = {
    "Answer": "privacy.release",
    "BoundedScalar": "privacy.mechanisms",
    "BudgetExhausted": "privacy.errors",
    "ClippedUpdate": "privacy.mechanisms",
    "DiscreteGaussian": "privacy.mechanisms",
    "FeatureHistogram": "privacy.mechanisms",
    "Guarantee": "privacy.release",
    "LabelHistogram": "privacy.mechanisms",
    "Ledger": "privacy.ledger",
    "LedgerKeys": "privacy.keys",
    "Mechanism": "privacy.release",
    "NeighbouringRelation": "privacy.budget",
    "NoiseSource": "privacy.randomness",
    "PrivacyBudget": "privacy.budget",
    "PrivacyCost": "privacy.budget",
    "PrivacyError": "privacy.errors",
    "PrivacyUnit": "privacy.budget",
    "RandomizedResponse": "privacy.mechanisms",
    "Receipt": "privacy.receipts",
    "Release": "privacy.release",
    "Request": "privacy.release",
    "SeededSource": "privacy.randomness",
    "epsilon_spent": "privacy.accounting",
    "perform": "privacy.release",
}

__all__ = [
    "Answer",
    "BoundedScalar",
    "BudgetExhausted",
    "ClippedUpdate",
    "DiscreteGaussian",
    "FeatureHistogram",
    "Guarantee",
    "LabelHistogram",
    "Ledger",
    "LedgerKeys",
    "Mechanism",
    "NeighbouringRelation",
    "NoiseSource",
    "PrivacyBudget",
    "PrivacyCost",
    "PrivacyError",
    "PrivacyUnit",
    "RandomizedResponse",
    "Receipt",
    "Release",
    "Request",
    "SeededSource",
    "epsilon_spent",
    "perform",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'privacy' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
