"""What can go wrong with a demo."""

from __future__ import annotations

from server_kit.errors import ServerError


class DemoFailed(ServerError):
    """The demo cannot begin or go on; everything it started has been stopped."""
