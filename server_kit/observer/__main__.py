"""`python -m server_kit.observer DIR`: the observer as a process of its own, started by the supervisor."""

from __future__ import annotations

import signal
import socket
import sys
from typing import TYPE_CHECKING

import uvicorn

from server_kit.daemon.child import read_again, run_child
from server_kit.daemon.dashboard_token import make_token
from server_kit.errors import InvalidSetting
from server_kit.metrics import Meter
from server_kit.observer.app import create_app
from server_kit.observer.patience import PatientProtocol

if TYPE_CHECKING:
    from types import FrameType

    from device_sdk.wire.invitation import Address
    from server_kit.daemon.child import Child


def observe(child: Child) -> None:
    """Serve until SIGTERM; SIGHUP takes up another log level, if the settings make sense."""
    home, address = child.home, child.home.config.listen.status_address
    make_token(home.secrets)

    def reload(_: int, __: FrameType | None) -> None:
        read_again(home)

    signal.signal(signal.SIGHUP, reload)
    config = uvicorn.Config(
        create_app(home),
        host=address.host,
        port=address.port,
        log_config=None,  # ours stays
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
        http=PatientProtocol,
    )
    with _listening(address) as door, Meter(child.name).publishing(home.run):
        uvicorn.Server(config).run(sockets=[door])


def _listening(address: Address) -> socket.socket:
    """A port that is ours before anything is built on it; uvicorn would only exit."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family)
    except OSError as error:
        raise InvalidSetting(
            f"[listen] status: {address} cannot be listened at ({error.strerror}); stop what does, or name another "
            "port; nothing is shown there"
        ) from error


if __name__ == "__main__":
    sys.exit(run_child("observer", observe, sys.argv[1:]))
