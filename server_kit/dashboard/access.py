"""Who may read: whoever is on this machine, and from elsewhere whoever shows the token.

"On this machine" means that the status port is on loopback and the request came straight to it: under a local name,
and not through a proxy that says for whom it asks. Health answers everyone, with a yes or a reason; the page itself
is the same for all and holds nothing.
"""

from __future__ import annotations

import hmac
import secrets as chance
from collections.abc import Callable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from server_kit.daemon.secret_files import variable_of
from server_kit.errors import SecretUnusable

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from server_kit.config.listening import Listen
    from server_kit.daemon.secret_files import SecretFiles

SECRET = "dashboard.token"  # noqa: S105 - the name of a file
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]", "::1")
_FEWEST_CHARACTERS = 16
_GUARDED = ("/api/", "/metrics")
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")


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
        return self.is_local(headers) or self.shows_token(headers)

    def is_local(self, headers: Headers) -> bool:
        if not self.listen.status_is_local or any(name in headers for name in _FORWARDED):
            return False
        return _without_port(headers.get("host", "")) in LOCAL_NAMES

    def shows_token(self, headers: Headers) -> bool:
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
    told = {"error": f"from another machine the token is needed: secrets/{SECRET} in the federation's directory"}
    return JSONResponse(told, 401, {"WWW-Authenticate": 'Bearer realm="covey"', "Cache-Control": "no-store"})


def read_token(secrets: SecretFiles) -> str | None:
    """The token, None if there is none; `SecretUnusable` if others could have read it, or could guess it."""
    try:
        token = secrets.read(SECRET).decode("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    except SecretUnusable:
        if secrets.path(SECRET).exists():
            raise
        return None
    if len(token) < _FEWEST_CHARACTERS:
        raise SecretUnusable(
            f"the secret {SECRET} is shorter than {_FEWEST_CHARACTERS} characters of ASCII; delete the file and start "
            f"again, or set {variable_of(SECRET)}; nobody was let in"
        )
    return token


def make_token(secrets: SecretFiles) -> str | None:
    """A new token if there is none yet; None if there is one."""
    if read_token(secrets) is not None:
        return None
    token = chance.token_urlsafe(32)
    secrets.write(SECRET, token.encode() + b"\n")
    return token


def _bearer(headers: Headers) -> str:
    kind, _, shown = headers.get("authorization", "").partition(" ")
    return shown.strip() if kind.lower() == "bearer" else ""


def _cookie(headers: Headers, name: str) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return "" if found is None else found.value


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() and name != ":" else host).lower()
