"""A process that shows how the federation does, and changes nothing: health, metrics and the dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from server_kit.observer.app import create_app

__all__ = ["create_app"]


def __getattr__(name: str) -> object:
    """Load the pages when they are asked for: they need the dashboard, and the dashboard looks at health."""
    if name not in __all__:
        raise AttributeError(name)
    from server_kit.observer import app

    return app.create_app
