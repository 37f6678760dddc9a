"""A real PostgreSQL for the tests: in a directory of its own, on a Unix socket and loopback, gone when they end."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from server_kit.store.migrating import migrate
from server_kit.store.opening import backend_of
from server_kit.store.schema import metadata

PLACES = ("/usr/lib/postgresql/*/bin", "/usr/local/pgsql/bin", "/opt/homebrew/bin")


def program(name: str) -> str | None:
    """Where a program of PostgreSQL is; the newest."""
    on_path = shutil.which(name)
    if on_path:
        return on_path
    found = sorted(path for place in PLACES for path in Path("/").glob(f"{place[1:]}/{name}"))
    return str(found[-1]) if found else None


class PostgresServer:
    """Started at once. All tests share one database; `emptied` gives its URL."""

    def __init__(self) -> None:
        initdb, postgres = program("initdb"), program("postgres")
        if initdb is None or postgres is None:
            raise FileNotFoundError("no initdb or postgres")
        self._directory = Path(tempfile.mkdtemp(prefix="covey-pg-"))
        self._as_user = self._other_user()
        data = self._directory / "data"
        self._run(initdb, "-D", str(data), "-U", "covey", "-A", "trust", "--no-sync", "--encoding=UTF8", "--locale=C")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": self._directory,
            "fsync": "off",
            "max_connections": 60,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._command: list[str] = [postgres, "-D", str(data), *options]
        self.url = f"postgresql+psycopg://covey@127.0.0.1:{self.port}/postgres"
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **self._as_user
        )
        self._wait()

    def stop(self, number: int) -> None:
        self._process.send_signal(number)
        self._process.wait(20)

    def emptied(self) -> str:
        migrate(backend_of(self.url))
        with self.connect() as connection:
            connection.execute(f"TRUNCATE {', '.join(metadata.tables)}")
        return self.url

    def connect(self) -> Any:
        import psycopg

        return psycopg.connect(
            host="127.0.0.1", port=self.port, user="covey", dbname="postgres", autocommit=True, connect_timeout=5
        )

    def close(self) -> None:
        # Not killed: its shared memory would stay behind.
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _other_user(self) -> dict[str, Any]:
        """PostgreSQL refuses to run as root."""
        if os.getuid() != 0:
            return {}
        names = {entry.pw_name: entry for entry in pwd.getpwall()}
        user = names.get("postgres") or names["nobody"]
        os.chown(self._directory, user.pw_uid, user.pw_gid)
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": [], "cwd": self._directory}

    def _run(self, *command: str) -> None:
        subprocess.run(command, check=True, capture_output=True, **self._as_user)

    def _wait(self) -> None:
        import psycopg

        for _ in range(300):
            try:
                self.connect().close()
            except psycopg.OperationalError:
                time.sleep(0.1)
            else:
                return
        raise TimeoutError("PostgreSQL did not start")
