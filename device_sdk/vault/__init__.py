"""The vault, one idea a file; `vault` is the whole, `salvage` what a person decides about an old copy."""

from device_sdk.vault.contents import OF_THE_DEVICE
from device_sdk.vault.salvage import salvage
from device_sdk.vault.vault import Vault, VaultTable

__all__ = ["OF_THE_DEVICE", "Vault", "VaultTable", "salvage"]
