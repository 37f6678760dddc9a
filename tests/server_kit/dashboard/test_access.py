"""Only who shows the token may look, wherever the request seems to come from. Nobody can change anything."""

from __future__ import annotations

import stat
from typing import Any

import pytest
from starlette.datastructures import Headers

from server_kit.config import ServerConfig
from server_kit.daemon.dashboard_token import SECRET, make_token, read_token
from server_kit.daemon.federation_home import Home
from server_kit.daemon.secret_files import SecretFiles
from server_kit.dashboard.access import Access
from server_kit.dashboard.announcing import announced, entrance
from server_kit.errors import SecretUnusable
from server_kit.observer import create_app
from server_kit.observer.store_reader import StoreReader
from server_kit.store.memory import MemoryStore
from tests.server_kit.observer.asking import ask

TOKEN = "a token that nobody guesses in a hurry"
COHORT = "/api/cohorts/0.1"
GUARDED = ["/api/overview", "/api/tracks", COHORT, "/api/devices", "/api/privacy", "/api/health", "/metrics"]
OPEN = ["/", "/cohorts/0.1", "/devices", "/privacy", "/health", "/static/app.js", "/static/style.css"]
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def far(tmp_path_factory):
    """A federation whose status port other machines reach, with its observer."""
    settings = "[listen]\nstatus = '0.0.0.0:8480'\nhosts = ['fl.example.com']\n"
    return observer_of(Home.create(tmp_path_factory.mktemp("far") / "federation", settings))


@pytest.fixture(scope="module")
def near(tmp_path_factory):
    """The same on loopback, as it is by default."""
    return observer_of(Home.create(tmp_path_factory.mktemp("near") / "federation"))


def observer_of(home: Home) -> Any:
    home.secrets.write(SECRET, TOKEN.encode() + b"\n")
    store = MemoryStore()
    return create_app(home, StoreReader(home, open_store=lambda: store))


class TestFromElsewhere:
    @pytest.mark.parametrize("path", GUARDED)
    def test_nothing_is_told_without_the_token(self, far, path):
        reply = ask(far, path, "fl.example.com")
        assert (reply.status, reply.headers["www-authenticate"]) == (401, 'Bearer realm="covey"')
        assert list(reply.json()) == ["error"]

    @pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8480", "[::1]"])
    def test_a_host_name_is_no_proof_of_being_near(self, far, host):
        assert ask(far, "/api/overview", host).status == 401

    @pytest.mark.parametrize("path", [path for path in GUARDED if path != COHORT])
    def test_the_token_opens(self, far, path):
        assert ask(far, path, "fl.example.com", headers=BEARER).status == 200

    @pytest.mark.parametrize(
        "shown",
        ["Bearer", "Bearer ", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN, "Bearer üü"],
    )
    def test_something_like_it_does_not(self, far, shown):
        assert ask(far, "/api/overview", "fl.example.com", headers={"Authorization": shown}).status == 401

    @pytest.mark.parametrize("path", OPEN)
    def test_the_page_is_for_all_and_holds_nothing(self, far, path):
        reply = ask(far, path, "fl.example.com")
        assert reply.status == 200
        assert TOKEN not in reply.text

    @pytest.mark.parametrize("path", ["/healthz", "/readyz"])
    def test_health_needs_no_token(self, far, path):
        assert ask(far, path, "fl.example.com").status == 503

    def test_the_token_becomes_a_cookie_that_scripts_cannot_read(self, far):
        given = ask(far, "/session", "fl.example.com", headers=BEARER).headers["set-cookie"]
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(given.split("; "))
        cookie = {"Cookie": given.partition(";")[0]}
        assert ask(far, "/api/overview", "fl.example.com", headers=cookie).status == 200

    def test_no_cookie_without_the_token(self, far):
        reply = ask(far, "/session", "fl.example.com")
        assert (reply.status, "set-cookie" in reply.headers) == (401, False)

    @pytest.mark.parametrize("cookie", ["covey_8480=", "covey_8480=wrong", "other=1", "a=b; =; covey_8480", "\\"])
    def test_another_cookie_does_not_open(self, far, cookie):
        assert ask(far, "/api/overview", "fl.example.com", headers={"Cookie": cookie}).status == 401


class TestOnThisMachine:
    """Nothing that a caller can say of itself, or a proxy of it, stands in for the token."""

    @pytest.mark.parametrize("path", GUARDED)
    @pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8480", "[::1]", "fl.example.com", ""])
    def test_the_token_is_asked_for_here_too(self, near, path, host):
        assert ask(near, path, host).status == 401

    @pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "Via", "X-Forwarded-Host"])
    def test_no_header_makes_a_caller_local(self, near, header):
        assert ask(near, "/api/overview", headers={header: "127.0.0.1"}).status == 401

    @pytest.mark.parametrize("path", ["/healthz", "/readyz"])
    def test_health_says_yes_or_no_and_the_reasons_to_whom_they_concern(self, near, path):
        assert ask(near, path).json() == {"ok": False}
        assert ask(near, path, headers=BEARER).json()["faults"]

    def test_an_access_that_trusts_a_host_name_is_caught(self):
        """The broken twin: what was shipped once."""

        class TrustsTheName(Access):
            def allows(self, headers):
                return headers.get("host", "").startswith(("localhost", "127.0.0.1")) or super().allows(headers)

        listen = ServerConfig().listen
        assert strangers_who_get_in(Access(listen, lambda: TOKEN)) == []
        assert len(strangers_who_get_in(TrustsTheName(listen, lambda: TOKEN))) == 2


def strangers_who_get_in(access: Access) -> list[dict[str, str]]:
    """Requests as nginx and haproxy pass them on when nobody has told them to add anything."""
    strangers = [{"host": "127.0.0.1:8480", "connection": "close"}, {"host": "localhost"}, {"host": "fl.example.com"}]
    return [each for each in strangers if access.allows(Headers(each))]


class TestTheToken:
    def test_it_is_made_once_and_kept_from_others(self, tmp_path):
        secrets = SecretFiles(tmp_path)
        token = make_token(secrets)
        assert token is not None
        assert len(token) >= 40
        assert make_token(secrets) is None
        assert read_token(secrets) == token
        assert stat.S_IMODE((tmp_path / SECRET).stat().st_mode) == 0o600

    def test_one_that_others_could_read_is_refused(self, tmp_path):
        secrets = SecretFiles(tmp_path)
        make_token(secrets)
        (tmp_path / SECRET).chmod(0o644)
        with pytest.raises(SecretUnusable, match="open to other users"):
            read_token(secrets)

    @pytest.mark.parametrize("short", [b"", b"\n", b"secret", "ü".encode() * 40])
    def test_one_that_could_be_guessed_is_refused(self, tmp_path, short):
        secrets = SecretFiles(tmp_path)
        secrets.write(SECRET, short)
        with pytest.raises(SecretUnusable, match="nobody was let in"):
            read_token(secrets)

    def test_the_environment_may_hold_it(self, tmp_path, monkeypatch):
        monkeypatch.setenv("COVEY_DASHBOARD_TOKEN", TOKEN)
        assert read_token(SecretFiles(tmp_path)) == TOKEN

    @pytest.mark.parametrize("status", ["0.0.0.0:8480", "127.0.0.1:8480"])
    def test_a_start_says_where_and_never_the_token(self, tmp_path, status):
        home = Home.create(tmp_path / "f", f"[listen]\nstatus = '{status}'\nhosts = ['fl.example.com']\n")
        home.secrets.path(SECRET).unlink()
        told = announced(home)
        token = read_token(home.secrets)
        assert token is not None, "a federation of an older version gets one at its next start"
        assert token not in told
        assert told.endswith("/ (open it with: covey server dashboard f)")
        assert entrance(home) == f"{home.config.listen.dashboard}#token={token}"

    def test_every_federation_has_one_from_the_beginning(self, tmp_path):
        first, second = (read_token(Home.create(tmp_path / name).secrets) for name in ("f", "g"))
        assert first is not None
        assert first != second
