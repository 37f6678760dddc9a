"""The token that opens the dashboard: a secret like the others, in a file of its owner alone or in the environment.

It is asked for always. A port on loopback proves nothing: a proxy on the same machine passes on what the whole world
asks, under whatever name it likes. The token is never written to standard output by a daemon, which a journal keeps;
`covey server dashboard` shows it to whoever asks and may read the file.
"""

from __future__ import annotations

import secrets as chance
from typing import TYPE_CHECKING

from server_kit.daemon.secret_files import variable_of
from server_kit.errors import SecretUnusable

if TYPE_CHECKING:
    from server_kit.daemon.secret_files import SecretFiles

SECRET = "dashboard.token"  # noqa: S105 - the name of a file
_FEWEST_CHARACTERS = 16


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
