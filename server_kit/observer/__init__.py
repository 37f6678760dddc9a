"""A process that shows how the federation does, and changes nothing: health, metrics and later the dashboard."""

from __future__ import annotations

from server_kit.observer.app import create_app

__all__ = ["create_app"]
