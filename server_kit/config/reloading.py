"""Which settings a running server takes over when told to read its file again, and which need a restart.

What decides about privacy, identity or what was learned so far stays as it is until somebody starts the server anew.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from server_kit.config.server_config import ServerConfig

WHILE_RUNNING = {
    "federation": {"participants", "begin_with", "rounds", "deadline_seconds"},
    "training": {"learning_rate", "batch_size", "momentum"},
    "guards": {"strikes", "ban_rounds"},
    "evaluation": {"every"},
    "log": {"level", "format"},
}
"""By table, the settings that may change; each takes effect with the next round at the latest."""


@dataclass(frozen=True)
class Reload:
    """What became of a changed file."""

    config: ServerConfig
    """In force from now on: the old settings with those that may change."""
    changed: tuple[str, ...]
    """Settings that were taken over, as `table.setting`."""
    refused: tuple[str, ...]
    """Settings that differ and need a restart."""


def reloadable(old: ServerConfig, new: ServerConfig) -> Reload:
    """Take over from `new` what may change while the server runs."""
    differing = [
        (table.name, setting.name)
        for table in dataclasses.fields(old)
        for setting in dataclasses.fields(getattr(old, table.name))
        if getattr(getattr(old, table.name), setting.name) != getattr(getattr(new, table.name), setting.name)
    ]
    changed = [each for each in differing if each[1] in WHILE_RUNNING.get(each[0], ())]
    config = old
    for table, setting in changed:
        value = getattr(getattr(new, table), setting)
        config = replace(config, **{table: replace(getattr(config, table), **{setting: value})})
    return Reload(
        config,
        tuple(".".join(each) for each in changed),
        tuple(".".join(each) for each in differing if each not in changed),
    )
