"""A federation opened for a command: its directory and its store, closed when the command is done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from server_kit.errors import HomeError
from server_kit.places import nearest

if TYPE_CHECKING:
    from device_sdk.wire.messages import DeviceId
    from server_kit.daemon.federation_home import Home
    from server_kit.store.protocol import CohortRecord, DeviceRecord, Store

_SHORTEST_PREFIX = 6


class Revoking(Protocol):
    """A register that can keep a device out."""

    def revoke(self, device: DeviceId) -> bool:
        """From now on; False if it is not enrolled."""


@dataclass(frozen=True)
class Opened:
    """What a command works with. It needs no daemon, and does not disturb one."""

    home: Home
    store: Store

    def device(self, name: str) -> DeviceRecord:
        """The device with this name, or the only one that begins so."""
        devices = self.store.devices()
        found = [each for each in devices if each.device.startswith(name)]
        if len(name) < _SHORTEST_PREFIX or len(found) != 1:
            what = "no device begins" if not found else f"{len(found)} devices begin"
            raise HomeError(
                f"{what} with {name!r}, and at least {_SHORTEST_PREFIX} digits are needed; `covey server devices` "
                "lists them; nothing was changed"
            )
        return found[0]

    def cohort(self, name: str) -> CohortRecord:
        """The cohort with this name; one that is gone as well."""
        cohorts = {each.cohort: each for each in self.store.all_cohorts()}
        if name not in cohorts:
            raise HomeError(f"there is no cohort {name!r}{nearest(name, cohorts)}; nothing was written")
        return cohorts[name]

    def revoke(self, name: str) -> tuple[DeviceRecord, bool]:
        """Keep a device out from now on; False if it was out already."""
        record = self.device(name)
        if not record.revoked:
            cast("Revoking", self.store.register).revoke(record.device)
        return record, not record.revoked


@contextmanager
def opened(directory: Path) -> Iterator[Opened]:
    """The federation in a directory, with its store."""
    from server_kit.daemon.federation_home import Home

    home = Home.open(directory)
    store = home.open_store()
    try:
        yield Opened(home, store)
    finally:
        store.close()
