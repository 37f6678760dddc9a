"""Real proxies with nothing but what they need to run: which headers they send is left to them."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.server_kit.dashboard.conftest import free_port

_NGINX = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/1; proxy_temp_path {folder}/2; fastcgi_temp_path {folder}/3;
    uwsgi_temp_path {folder}/4; scgi_temp_path {folder}/5;
    server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{behind}; }} }}
}}
"""
_HAPROXY = """\
defaults
    mode http
    timeout connect 5s
    timeout client 30s
    timeout server 30s
frontend outside
    bind 127.0.0.1:{port}
    default_backend inside
backend inside
    server observer 127.0.0.1:{behind}
"""


@contextmanager
def nginx(behind: int, folder: Path) -> Iterator[int]:
    with _running("nginx", ["-p", str(folder), "-c"], _NGINX, behind, folder) as port:
        yield port


@contextmanager
def haproxy(behind: int, folder: Path) -> Iterator[int]:
    with _running("haproxy", ["-f"], _HAPROXY, behind, folder) as port:
        yield port


PROXIES = {"nginx": nginx, "haproxy": haproxy}


@contextmanager
def _running(name: str, options: list[str], settings: str, behind: int, folder: Path) -> Iterator[int]:
    found = shutil.which(name, path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/bin")
    if found is None:
        pytest.skip(f"the dashboard was NOT looked at behind {name}: it is not installed")
    port = free_port()
    file = folder / f"{name}.conf"
    file.write_text(settings.format(folder=folder, port=port, behind=behind))
    with subprocess.Popen([found, *options, str(file)], stderr=subprocess.DEVNULL) as process:
        try:
            _await(port)
            yield port
        finally:
            process.terminate()
            process.wait(20)


def _await(port: int) -> None:
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), 5).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    pytest.fail("the proxy never listened")
