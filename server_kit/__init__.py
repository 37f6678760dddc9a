"""The server of a federation: it groups devices into cohorts, trains a model for each, and keeps what it was sent.

    from server_kit import Server, ServerConfig, presets

Names are loaded when first used: a setting that is misspelt should not wait for torch to be refused.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from server_kit.errors import InvalidSetting, InvalidSummary, ServerError

if TYPE_CHECKING:
    from server_kit import presets
    from server_kit.config import ServerConfig
    from server_kit.server import Server

_HOMES = {"Server": "server_kit.server", "ServerConfig": "server_kit.config"}

__all__ = ["InvalidSetting", "InvalidSummary", "Server", "ServerConfig", "ServerError", "presets"]


def __getattr__(name: str) -> object:
    if name == "presets":
        return importlib.import_module("server_kit.presets")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'server_kit' has no attribute {name!r}")
