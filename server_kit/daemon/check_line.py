"""The line to a database on another machine: nobody listens, and it is the database that answers."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from server_kit.daemon.check import Found, Verdict

if TYPE_CHECKING:
    from server_kit.daemon.federation_home import Home

_VERIFIED = "verify-full"
_THIS_MACHINE = frozenset({"", "localhost", "127.0.0.1", "::1"})


def check_line(home: Home) -> Found:
    """A database elsewhere is reached over TLS, and its certificate is looked at."""
    host, mode = _reached(home.config.store.url)
    if host in _THIS_MACHINE or host.startswith("/"):
        yield Verdict.OK, "the database is on this machine, so nothing it is told crosses a network"
    elif mode == _VERIFIED:
        yield Verdict.OK, f"the database at {host} is reached over TLS and must prove its name"
    else:
        said = f"sslmode={mode}" if mode else "no sslmode"
        danger = f"[store] url has {said}, so whoever sits between could answer as the database at {host}"
        remedy = f"add ?sslmode={_VERIFIED}, and sslrootcert for the authority of its certificate"
        yield Verdict.WARN, f"{danger}; {remedy}"


def _reached(url: str) -> tuple[str, str]:
    """The host and the sslmode of a URL; a host in its query, where socket files are named, has the last word."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    host = query.get("host", [parts.hostname or ""])[-1] if parts.scheme.startswith("postgresql") else ""
    return host, query.get("sslmode", [""])[-1]
