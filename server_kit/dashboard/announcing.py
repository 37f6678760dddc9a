"""Tells people where the dashboard is, and how they get in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from server_kit.daemon.dashboard_token import make_token, read_token

if TYPE_CHECKING:
    from server_kit.daemon.federation_home import Home


def announced(home: Home) -> str:
    """One line for whoever starts the server, without the token: journals keep it. One is made if there is none."""
    make_token(home.secrets)
    return f"dashboard: {home.config.listen.dashboard} (open it with: covey server dashboard {home.directory.name})"


def entrance(home: Home) -> str:
    """The address that opens the dashboard in a browser, with the token in it."""
    make_token(home.secrets)
    # What follows # stays in the browser: it is in no log of a proxy.
    return f"{home.config.listen.dashboard}#token={read_token(home.secrets)}"
