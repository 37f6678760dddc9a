"""Keys in the operating system's own store, reached through `keyring` where the app has installed it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from device_sdk.errors import KeyUnavailable
from device_sdk.key_stores.protocol import KEY_BYTES, Unpicklable, decoded, written

_SERVICE = "covey"
# By full name: a backend that keeps secrets in plain files calls itself a keyring too.
SAFE_BACKENDS = frozenset(
    {
        "keyring.backends.SecretService.Keyring",
        "keyring.backends.Windows.WinVaultKeyring",
        "keyring.backends.kwallet.DBusKeyring",
        "keyring.backends.libsecret.Keyring",
        "keyring.backends.macOS.Keyring",
    }
)
_CHAIN = "keyring.backends.chainer.ChainerBackend"
_OTHER_STORES = "choose a passphrase or a key file instead (keys.store, or --key-store); no vault was opened"


class OsKeyStore(Unpicklable):
    """The key store of the operating system, through the `keyring` package where the app has installed it."""

    kind = "os"

    def create(self, name: str) -> tuple[bytes, str]:
        key = os.urandom(KEY_BYTES)
        with _keyring_errors():
            backend = _safe_backend()
            backend.set_password(_SERVICE, name, written(key))
        if self.fetch(name, "") != key:
            raise KeyUnavailable(f"the system's key store did not keep what it was given; {_OTHER_STORES}")
        return key, ""

    def fetch(self, name: str, parameters: str) -> bytes:
        with _keyring_errors():
            kept = _safe_backend().get_password(_SERVICE, name)
        if kept is None:
            raise KeyUnavailable(
                "the system's key store does not hold this vault's key; unlock it or use the account that made the "
                "vault; nothing was opened"
            )
        return decoded(kept)

    def discard(self, name: str) -> None:
        with _keyring_errors():
            backend = _safe_backend()
            if backend.get_password(_SERVICE, name) is not None:
                backend.delete_password(_SERVICE, name)


@contextmanager
def _keyring_errors() -> Iterator[None]:
    """Turn what `keyring` and its backends raise into `KeyUnavailable`, by the name of the error alone."""
    try:
        yield
    except KeyUnavailable:
        raise
    except Exception as error:
        raise KeyUnavailable(
            f"the system's key store refused ({type(error).__name__}); unlock it, or {_OTHER_STORES}"
        ) from None


def _safe_backend() -> Any:
    try:
        keyring: Any = importlib.import_module("keyring")
    except ImportError:
        raise KeyUnavailable(
            f"the system's key store needs the package keyring: pip install keyring; or {_OTHER_STORES}"
        ) from None
    chosen = keyring.get_keyring()
    candidates = list(chosen.backends) if _full_name(chosen) == _CHAIN else [chosen]
    for backend in candidates:
        if _full_name(backend) in SAFE_BACKENDS:
            return backend
    raise KeyUnavailable(
        f"this system offers {_full_name(chosen)}, which is not known to protect what it keeps; {_OTHER_STORES}"
    )


def _full_name(backend: object) -> str:
    return f"{type(backend).__module__}.{type(backend).__qualname__}"
