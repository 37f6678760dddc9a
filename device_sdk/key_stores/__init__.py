"""Where the vault's key-encryption key is kept: in the operating system, in a person's head, or in a file.

The app chooses one and there is no other: a store that cannot be used is an error, never a reason to try the next.
A vault remembers the kind it was made with. Names of keys are made by the vault; a store may hold two
at once while keys are rotated. `parameters` is what must be remembered, in clear, to find the key again.
"""

from __future__ import annotations

from device_sdk.key_stores.file import FileKeyStore
from device_sdk.key_stores.passphrase import Argon2Cost, PassphraseKeyStore
from device_sdk.key_stores.protocol import KeyStore
from device_sdk.key_stores.system import OsKeyStore

__all__ = ["Argon2Cost", "FileKeyStore", "KeyStore", "OsKeyStore", "PassphraseKeyStore"]
