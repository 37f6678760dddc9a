"""Everything that a device refuses or cannot do, as one tree; each message says what, why, and what became of the data.

DeviceError
├── InvalidConfig           a setting that is unknown, of another type or out of range
├── VaultError
│   ├── VaultBroken         a record was altered, moved, set back or cut: one error, one sentence
│   ├── VaultUnavailable    the disk or a lock said no; nothing was changed
│   └── KeyUnavailable      the place that keeps the vault's key has none, or refuses
│       └── WrongKey        it has one that does not open this vault
├── IdentityError
│   ├── NotEnrolled         no certificate of this server is held
│   ├── AlreadyEnrolled     one is held; leave first
│   └── CertificateRefused  the certificate is not for this device's key, or not of the pinned authority
├── FeedbackRefused         feedback that no honest server sends; it was not learned from
├── OutOfOrder              the round in progress is not at that point; nothing was changed
└── DeviceBusy              another process runs this device
"""

from __future__ import annotations


class DeviceError(Exception):
    """Base of all errors raised by `device_sdk` outside its wire and its trainers."""


class InvalidConfig(DeviceError, ValueError):
    """A setting is unknown, of another type or out of range; the message names it and the nearest valid one."""


class VaultError(DeviceError):
    """What the device keeps cannot be read or written."""


class VaultBroken(VaultError):
    """Sealed bytes that do not open in their place. It carries no cause: nobody learns which check failed."""

    def __init__(self) -> None:
        super().__init__(
            "a record in the device's vault does not open: it was altered, moved, set back, cut, or sealed under "
            "another key; nothing was read; if the device cannot go on without it, leave and enrol again"
        )


class VaultUnavailable(VaultError):
    """The disk or a lock said no; nothing was changed."""


class KeyUnavailable(VaultError):
    """The vault's key cannot be had from where it is kept; there is no other place it is looked for."""


class WrongKey(KeyUnavailable):
    """There is a key, but it does not open this vault; nothing was read."""


class IdentityError(DeviceError):
    """The device is not, or not yet, who it should be."""


class NotEnrolled(IdentityError):
    """The device holds no certificate of this server."""


class AlreadyEnrolled(IdentityError):
    """The device holds a certificate of this server already."""


class CertificateRefused(IdentityError):
    """A certificate that is not for this device's key or not issued by the pinned authority; it was not kept."""


class FeedbackRefused(DeviceError, ValueError):
    """Feedback that no honest server sends; it was not learned from."""


class OutOfOrder(DeviceError):
    """A step that does not follow from where the round is; nothing was changed."""


class DeviceBusy(DeviceError):
    """Another process runs this device; two would compete for one budget and one identity."""
