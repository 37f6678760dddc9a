"""What the demo's federation does and promises: training, privacy, and the `server.toml` that says so.

The budget of a device is the product's usual one. Part of it pays for the histogram and a choice between models, the
rest for training; how much noise that takes follows from the number of rounds.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

from privacy.accounting.planning import noise_for
from privacy.budget import NeighbouringRelation, PrivacyBudget, PrivacyUnit
from privacy.mechanisms.dp_sgd import DpSgd
from server_kit.config.sample import sample_settings
from server_kit.demo.data import KINDS, LABELS, TRAIN_RECORDS
from server_kit.demo.errors import DemoFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from privacy.tensor_shapes import Shapes

EPSILON, DELTA = 8, 1e-6
HISTOGRAM_EPSILON, CHOICE_EPSILON = "1", "2.5"
PURE_EPSILON = 3.5
"""The histogram, and one choice to confirm a split: with less ε, two dozen answers would too often mislead."""
MODEL = "server_kit.models:digits_softmax"
SAMPLING_RATE = Fraction(1, 10)
STEPS, LEARNING_RATE, CLIP_NORM = 10, 1.5, 1
ONE_MODEL_LEARNING_RATE = 3
"""Best of 0.75, 1.5, 3 and 5 for it, on five deals of the data: two points above what the cohorts' rate gives it."""
_SPARE_ROUNDS = 2  # a cohort may run ahead until the last one is done
_ROUNDS_BEFORE_A_SPLIT, _ROUNDS_ON_TRIAL = 3, 4
_ALIKE = 0.14
"""L2 distance between label mixes: with their noise, devices of one kind lie below it and kinds above it."""


@dataclass(frozen=True)
class Ports:
    """Where the demo's server listens on this machine."""

    gateway: int
    enrolment: int
    status: int


@dataclass(frozen=True)
class Terms:
    """How many take part, how often, with how many kinds of data, and what follows from that."""

    devices: int
    rounds: int
    kinds: int = len(KINDS)

    @property
    def budget(self) -> PrivacyBudget:
        """Of each device, for life."""
        return PrivacyBudget(EPSILON, DELTA, PrivacyUnit.RECORD, pure_epsilon=PURE_EPSILON)

    @cached_property
    def noise_multiplier(self) -> str:
        """With which all rounds fit into what answers leave of the budget."""
        return self._noise(PURE_EPSILON)

    @property
    def batch_size(self) -> int:
        return int(TRAIN_RECORDS * SAMPLING_RATE)

    def mechanism_of_one_model(self, shapes: Shapes) -> DpSgd:
        """How devices would train a single model: they are asked nothing, so all of the budget is for training."""
        return DpSgd(
            shapes,
            sampling_rate=SAMPLING_RATE,
            noise_multiplier=self._noise(0.0),
            clip_norm=CLIP_NORM,
            steps=STEPS,
            expected_batch_size=self.batch_size,
            learning_rate=ONE_MODEL_LEARNING_RATE,
        )

    def settings(self, ports: Ports) -> str:
        """The text of `server.toml`."""
        text = sample_settings(name="covey demo", model=MODEL)
        for table, values in self._tables(ports).items():
            for setting, value in values.items():
                text = with_setting(text, table, setting, value)
        return text

    def _tables(self, ports: Ports) -> Mapping[str, Mapping[str, Any]]:
        formation = {
            "steps": _ROUNDS_ON_TRIAL,
            "inner": {
                "steps": _ROUNDS_BEFORE_A_SPLIT,
                "least_members": max(2, self.devices // self.kinds // 2),
                "clusterer": {"eps": _ALIKE},
            },
        }
        return {
            "federation": {
                "overrides": {"aggregator": "fedavg", "over_commit": 1.0, "formation": formation},
                "participants": self.devices,
                "rounds": self.rounds,
                "deadline_seconds": 60.0,
            },
            "training": {"learning_rate": LEARNING_RATE, "batch_size": self.batch_size, "steps": STEPS},
            "privacy": {
                "clip_norm": str(CLIP_NORM),
                "noise_multiplier": self.noise_multiplier,
                "sampling_rate": str(SAMPLING_RATE),
                "expected_batch_size": str(self.batch_size),
                "histogram": {"labels": LABELS, "epsilon": HISTOGRAM_EPSILON},
                "choice_epsilon": CHOICE_EPSILON,
            },
            "policy": {"epsilon": float(EPSILON), "delta": DELTA, "pure_epsilon": PURE_EPSILON},
            "listen": {
                "enrolment": f"127.0.0.1:{ports.enrolment}",
                "gateway": f"127.0.0.1:{ports.gateway}",
                "status": f"127.0.0.1:{ports.status}",
            },
            "store": {"keep_checkpoints": self.rounds + _SPARE_ROUNDS},
            # What devices tell about accuracy would cost them ε; the demo has their test images and measures itself.
            "evaluation": {"every": 0},
        }

    def _noise(self, pure_epsilon: float) -> str:
        plan = noise_for(
            EPSILON,
            DELTA,
            self.rounds + _SPARE_ROUNDS,
            PrivacyUnit.RECORD,
            NeighbouringRelation.REPLACE,
            histogram_epsilon=str(pure_epsilon),
            sampling_rate=SAMPLING_RATE,
            steps_per_round=STEPS,
        )
        return f"{plan.noise_multiplier:.6f}"


def with_setting(text: str, table: str, setting: str, value: Any) -> str:
    """The settings with one more said; it must be one that the sample names."""
    start = text.index(f"\n[{table}]\n")
    found = re.compile(rf"^(?:# )?{setting} = .*$", re.MULTILINE).search(text, start + 1)
    if found is None:
        raise DemoFailed(f"the sample settings have no [{table}] {setting}; nothing was started")
    return f"{text[: found.start()]}{setting} = {as_toml(value)}{text[found.end() :]}"


def as_toml(value: Any) -> str:
    """A value as TOML; a number or a text in JSON is one of TOML too."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {as_toml(each)}" for key, each in value.items()) + " }"
    return json.dumps(value)
