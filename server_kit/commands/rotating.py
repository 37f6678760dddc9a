"""`covey server rotate`: new keys for old. Killed in the middle it leaves keys that open everything; run it again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol, cast

from server_kit.daemon import server_certificate
from server_kit.daemon.secret_files import variable_of
from server_kit.errors import HomeBusy, HomeError

if TYPE_CHECKING:
    from server_kit.daemon.federation_home import Home

_STORE_KEY = "store.key"


class Resealing(Protocol):
    """A store that can seal all it holds under a new key."""

    def rotate(self) -> int:
        """How many values were sealed anew."""


def reseal(home: Home) -> int:
    """Seal all that is sealed in the store under a new key, while others work; how many values."""
    store = home.open_store()
    try:
        return cast("Resealing", store).rotate()
    finally:
        store.close()


def replace_store_key(home: Home) -> None:
    """A new key for the store's own keys; no daemon may run, since it would hold the old one."""
    if variable_of(_STORE_KEY) in os.environ:
        raise HomeError(
            f"the store's key comes from {variable_of(_STORE_KEY)}; put a new one on a line before it, start once, "
            "then take the old one away; nothing was changed"
        )
    if home.is_running():
        raise HomeBusy(
            "a daemon runs here and holds the store's key; stop it, rotate, start it again; nothing was changed"
        )
    path = home.secrets.path(_STORE_KEY)
    renewed = home.store_keys().renewed()
    renewed.write(path)
    # Opening seals the store's keys under the new one; the old one is needed until then.
    home.open_store().close()
    type(renewed)(renewed.current).write(path)


def replace_certificate(home: Home) -> None:
    """A new key and certificate for the server, shown by a running daemon at its next look."""
    home.secrets.path(server_certificate.FILE).unlink(missing_ok=True)
    home.server_certificate()
