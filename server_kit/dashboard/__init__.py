"""The dashboard: cohorts, rounds, devices and privacy spend, live in a browser. It reads and changes nothing."""

from __future__ import annotations

from server_kit.dashboard.access import Access, Guard
from server_kit.dashboard.reading_only import ReadingOnly
from server_kit.dashboard.routes import access_of, dashboard_routes
from server_kit.dashboard.sight import Sight

__all__ = ["Access", "Guard", "ReadingOnly", "Sight", "access_of", "dashboard_routes"]
