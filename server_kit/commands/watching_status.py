"""`covey server status`: once, or again and again on a terminal until somebody has seen enough."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from server_kit.commands.overview import History, Overview, read_overview
from server_kit.commands.texts import overview_text
from server_kit.privacy_spend import PrivacySpend, stored_spend

if TYPE_CHECKING:
    from server_kit.commands.opened import Opened

_REFRESH_SECONDS = 1.0
_SPEND_EVERY_SECONDS = 60.0


@dataclass
class Watching:
    """Looks at a federation; what is costly to know is worked out seldom."""

    federation: Opened
    _history: History = field(default_factory=History)
    _spend: PrivacySpend = field(default_factory=PrivacySpend)
    _spend_due_seconds: float = 0.0

    def look(self) -> Overview:
        """The federation now."""
        home, store = self.federation.home, self.federation.store
        if time.monotonic() >= self._spend_due_seconds:
            self._spend = stored_spend(store, home.config.policy.delta).summary
            self._spend_due_seconds = time.monotonic() + _SPEND_EVERY_SECONDS
        return read_overview(home, store, self._history, self._spend, time.time())


def watch(federation: Opened) -> None:
    """Show the federation on the terminal until Ctrl-C."""
    from rich.live import Live
    from rich.text import Text

    watching = Watching(federation)
    with Live(Text(overview_text(watching.look())), auto_refresh=False) as live:
        try:
            while True:
                time.sleep(_REFRESH_SECONDS)
                live.update(Text(overview_text(watching.look())), refresh=True)
        except KeyboardInterrupt:
            return
