"""What can be wrong with data on disk.

ServerError
├── DatasetNotFound    no such file; the message says where to look and what needs no file
└── InvalidDataset     a file that is not what its name says: shape, type, labels, or broken bytes
"""

from __future__ import annotations

from server_kit.errors import ServerError


class DatasetNotFound(ServerError, FileNotFoundError):
    """The file or folder is not there; nothing was read."""


class InvalidDataset(ServerError, ValueError):
    """The data cannot be used as they are; nothing was kept."""
