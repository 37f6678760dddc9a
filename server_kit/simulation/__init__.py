"""Research on one machine: the algorithms of the daemon, on a fleet that is computed instead of connected."""

from __future__ import annotations

__all__: list[str] = []
