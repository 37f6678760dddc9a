"""Behind a proxy on the same machine, with the headers that it sends by default, nobody reads without the token."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from server_kit.daemon.federation_home import Home
from tests.hostile.dashboard.proxies import PROXIES
from tests.server_kit.dashboard.conftest import free_port, observed
from tests.server_kit.dashboard.entering import bearer

pytestmark = pytest.mark.integration

GUARDED = ("/api/overview", "/api/devices", "/api/privacy", "/api/health", "/api/tracks", "/api/events", "/metrics")
HOSTS = ("dashboard.example.com", "localhost", "127.0.0.1", "[::1]")


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Home:
    settings = f"[listen]\nstatus = '127.0.0.1:{free_port()}'\n"
    return Home.create(tmp_path_factory.mktemp("proxied") / "federation", settings)


@pytest.fixture(scope="module", params=PROXIES)
def proxied(request, home: Home, tmp_path_factory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    with observed(home), PROXIES[request.param](home.config.listen.status_address.port, folder) as port:
        yield f"http://127.0.0.1:{port}"


def status_of(url: str, headers: dict[str, str]) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("host", HOSTS)
def test_a_stranger_reads_nothing_whatever_name_it_uses(proxied, host):
    assert {path: status_of(proxied + path, {"Host": host}) for path in GUARDED} == dict.fromkeys(GUARDED, 401)


@pytest.mark.parametrize("header", ["X-Forwarded-For", "X-Real-IP", "Forwarded", "Via", "X-Forwarded-Host"])
def test_nor_whatever_it_says_of_itself(proxied, header):
    assert status_of(f"{proxied}/api/devices", {"Host": "localhost", header: "127.0.0.1"}) == 401


@pytest.mark.parametrize("host", HOSTS)
def test_whoever_shows_the_token_reads(proxied, home, host):
    assert status_of(f"{proxied}/api/devices", {"Host": host, **bearer(home)}) == 200


def test_health_answers_everyone_and_tells_nothing(proxied):
    with pytest.raises(urllib.error.HTTPError) as answer:
        urllib.request.urlopen(f"{proxied}/healthz", timeout=20)
    assert (answer.value.code, answer.value.read()) == (503, b'{"ok":false}')
