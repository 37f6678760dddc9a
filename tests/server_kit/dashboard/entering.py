"""How tests show the dashboard's token: in every request to an application, or in the address for a browser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from server_kit.daemon.dashboard_token import read_token
from server_kit.daemon.federation_home import Home


def bearer(home: Home) -> dict[str, str]:
    """The header that opens everything."""
    return {"Authorization": f"Bearer {read_token(home.secrets)}"}


def entrance_to(url: str, home: Home) -> str:
    """An address that opens a page in a browser that has no cookie yet."""
    return f"{url}#token={read_token(home.secrets)}"


@dataclass(frozen=True)
class TokenShown:
    """ASGI: the application as it answers to whoever shows the token."""

    app: Any
    home: Home

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        shown = [(name.lower().encode(), value.encode()) for name, value in bearer(self.home).items()]
        await self.app({**scope, "headers": [*scope["headers"], *shown]}, receive, send)
