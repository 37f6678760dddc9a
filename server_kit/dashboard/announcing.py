"""Tells whoever starts the server where the dashboard is, and the token once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from server_kit.dashboard.access import SECRET, make_token

if TYPE_CHECKING:
    from server_kit.daemon.federation_home import Home


def announced(home: Home) -> str:
    """One line. Where other machines reach the status port, a token is made, and shown in the line of that start."""
    listen = home.config.listen
    page = f"dashboard: {listen.dashboard}"
    if listen.status_is_local:
        return page
    token = make_token(home.secrets)
    if token is None:
        return f"{page} (its token is in secrets/{SECRET})"
    # What follows # stays in the browser: it is in no log of a proxy.
    return f"{page}#token={token} (shown once; kept in secrets/{SECRET})"
