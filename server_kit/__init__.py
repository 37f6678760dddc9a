"""The server of a federation: it groups devices into cohorts, trains a model for each, and keeps what it was sent."""

from __future__ import annotations

from server_kit.errors import InvalidSetting, InvalidSummary, ServerError

__all__ = ["InvalidSetting", "InvalidSummary", "ServerError"]
