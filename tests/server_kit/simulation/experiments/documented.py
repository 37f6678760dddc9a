"""What docs/experiments.md must say: every kind and setting that a file may hold, with its default."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from server_kit.reading import fields_of, is_required
from server_kit.simulation.changes import LabelFlip, Newcomers, Shift
from server_kit.simulation.experiments.experiment import Contender, Repeats
from server_kit.simulation.experiments.experiment_file import NOT_FOR_FILES, Data
from server_kit.simulation.experiments.kinds import KINDS
from server_kit.simulation.experiments.model import INFERRED, OwnModule, model_kinds
from server_kit.simulation.population import Population
from server_kit.simulation.privacy_terms import PrivacyTerms
from server_kit.simulation.training import LocalTask
from server_kit.simulation.virtual_time import RunSettings

Maker = Callable[..., Any]


def settings() -> dict[str, dict[str, str]]:
    """For each heading the settings of one table, each as the page must show it."""
    return {
        "[population]": shown(Population, without=NOT_FOR_FILES["population"]) | shown(Data),
        "newcomers": shown(Newcomers),
        "shifts": shown(Shift),
        "label_flip": shown(LabelFlip),
        "module": shown(OwnModule),
        "[training]": shown(LocalTask, without=NOT_FOR_FILES["training"]),
        "[run]": shown(RunSettings, without=NOT_FOR_FILES["run"]) | shown(Repeats),
        "[privacy]": shown(PrivacyTerms),
        "[[compare]]": shown(Contender),
    }


def kinds() -> dict[str, dict[str, dict[str, str]]]:
    """For each heading the kinds to choose from, each with its settings."""
    names = {"DataSource": "dataset", "PartitionRule": "partition"}
    found = {
        names.get(protocol.__name__, protocol.__name__.lower()): {name: shown(maker) for name, maker in rules.items()}
        for protocol, rules in KINDS.items()
    }
    return found | {"kind": {name: shown(maker, without=INFERRED) for name, maker in model_kinds().items()}}


def shown(maker: Maker, without: tuple[str, ...] = ()) -> dict[str, str]:
    """Each setting and what stands beside its name: its default, `required`, or nothing."""
    return {
        name: "required" if is_required(default) else toml(default)
        for name, (_, default) in fields_of(maker).items()
        if name not in without
    }


def toml(value: Any) -> str:
    """A default as one would write it in a file; nothing where there is none to write."""
    if value is None or value in ((), {}, ""):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return "inf" if math.isinf(value) else f"{value:g}"
    if isinstance(value, str | Path):
        return f'"{value}"'
    if isinstance(value, tuple):
        return f"[{', '.join(map(toml, value))}]"
    return str(value) if isinstance(value, int) else f'"{kind_of(value)}"'


def kind_of(rule: Any) -> str:
    every: dict[Maker, str] = {maker: name for rules in KINDS.values() for name, maker in rules.items()}
    return every[type(rule)]


def written(setting: str, beside: str) -> str:
    """A setting as a code span of the page."""
    if beside == "required":
        return f"`{setting}` (required)"
    return f"`{setting} = {beside}`" if beside else f"`{setting}`"


def spans(settings: Mapping[str, str]) -> list[str]:
    return [written(name, beside) for name, beside in settings.items()]
