"""Who may read: whoever shows the token. Where a request comes from, and under which name, counts for nothing.

Health answers everyone with a yes or a no, and says why to those who show the token. The page itself is the same for
all and holds nothing.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from server_kit.daemon.dashboard_token import SECRET

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from server_kit.config.listening import Listen

_GUARDED = ("/api/", "/metrics")


@dataclass(frozen=True)
class Access:
    """The rule. `token` is read anew for each answer, so another one counts at once."""

    listen: Listen
    token: Callable[[], str | None]

    @property
    def cookie(self) -> str:
        """Its name: cookies do not know ports, and a machine may have two federations."""
        return f"covey_{self.listen.status_address.port}"

    def allows(self, headers: Headers) -> bool:
        """Whether the token is there, as a bearer's or in the cookie; how long that takes tells nothing."""
        token = self.token()
        if token is None:
            return False
        bearer, cookie = _bearer(headers), _cookie(headers, self.cookie)
        return hmac.compare_digest((bearer or cookie).encode(), token.encode())


class Guard:
    """ASGI: answers 401 where something is to be read and the reader may not."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        guarded = scope["type"] == "http" and scope["path"].startswith(_GUARDED)
        if guarded and not self._access.allows(Headers(scope=scope)):
            await refusal()(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def refusal() -> JSONResponse:
    """Says what is missing, and where it is."""
    told = {"error": f"the token is needed: secrets/{SECRET} in the federation's directory; covey server dashboard DIR"}
    return JSONResponse(told, 401, {"WWW-Authenticate": 'Bearer realm="covey"', "Cache-Control": "no-store"})


def _bearer(headers: Headers) -> str:
    kind, _, shown = headers.get("authorization", "").partition(" ")
    return shown.strip() if kind.lower() == "bearer" else ""


def _cookie(headers: Headers, name: str) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return "" if found is None else found.value
