"""Everything that `server_kit` refuses, as one tree; each message says what, why, and what became of the data.

ServerError
├── HomeError             the federation's directory is not there, not empty, or not whole
│   ├── HomeBusy          a daemon runs in it
│   └── SecretUnusable    a secret is missing, damaged, or open to other users
├── InvalidSetting        a setting makes no sense (k < 1, a negative distance, an unknown linkage)
│   └── PolicyExceeded    the privacy terms cost a device more than the federation promises
├── ServerNotReady        the daemon did not begin, or not in time
├── InvalidSummary        what devices sent cannot be compared (NaN, another shape, an unknown label)
└── StoreError
    ├── CorruptRecord     what is stored was altered, moved or cut, or its key is not here
    ├── LeaseLost         another process has the right to do this now
    ├── StoreConflict     what was to be changed is not as its caller believes
    ├── StoreKeyRefused   the store's key is missing, not secret, or another store's
    ├── StoreTooNew       a newer version of Covey has written this store
    ├── StoreUnavailable  the disk, a lock or the database said no
    └── UnreadableReceipt what a device sent and an older version stored is no receipt
"""

from __future__ import annotations


class ServerError(Exception):
    """Base of all errors raised by `server_kit`."""


class CheckpointError(ServerError):
    """A state could not be put away or taken up again; checkpoints that were there are untouched."""


class CheckpointNotWritten(CheckpointError):
    """The disk said no; the checkpoints before it are untouched."""


class CheckpointTooNew(CheckpointError):
    """A newer version of Covey has written this; it was not read."""


class CorruptCheckpoint(CheckpointError):
    """A checkpoint was altered or cut, or is not the one that it is named for; nothing of it was used."""


class NoCheckpoint(CheckpointError):
    """None is left that can be read; nothing was started."""


class UnpackableState(CheckpointError):
    """A part remembers what is neither a JSON value nor a tensor; nothing was written."""


class InvalidSetting(ServerError, ValueError):
    """A setting makes no sense; nothing was computed."""


class PolicyExceeded(InvalidSetting):
    """The privacy terms cost a device more than the federation promises; no round was opened."""


class HomeError(ServerError):
    """The federation's directory cannot be used as it is; nothing was started and nothing changed."""


class HomeBusy(HomeError):
    """A daemon runs in this directory; nothing was started."""


class SecretUnusable(HomeError):
    """A secret is missing, damaged, or open to other users; it was not used."""


class ServerNotReady(ServerError):
    """The daemon did not begin, or not in time; nothing is running."""


class InvalidSummary(ServerError, ValueError):
    """Summaries, updates or labels that cannot be compared; nothing was computed and nothing changed."""


class StoreError(ServerError):
    """The store refused; nothing of what was to be stored was."""


class CorruptRecord(StoreError):
    """What is stored was altered, moved or cut, or its key is not here. One error for every cause."""

    def __init__(self) -> None:
        super().__init__(
            "a stored record does not open: it was altered, moved or cut, or sealed under a key that is not here; "
            "restore a backup or the key; nothing of it was used"
        )


class LeaseLost(StoreError):
    """Another process has the right to do this now; nothing was changed."""


class StoreConflict(StoreError):
    """What was to be changed is not, or no longer, as its caller believes; nothing was changed."""


class StoreKeyRefused(StoreError):
    """The store's key is missing, malformed, readable by others, or another store's; nothing was opened."""


class StoreTooNew(StoreError):
    """A newer version of Covey has written this store; nothing was changed."""


class StoreUnavailable(StoreError):
    """The disk, a lock or the database said no; nothing was changed, and trying again later may help."""


class UnreadableReceipt(StoreError):
    """A stored receipt opens, but says what no receipt does; whoever sent it lied to an older version."""

    def __init__(self) -> None:
        super().__init__("a stored receipt states a cost that no release has; it is left out of every sum")
