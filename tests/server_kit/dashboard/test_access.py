"""On this machine anyone may look; from elsewhere only who shows the token. Nobody can change anything."""

from __future__ import annotations

import stat

import pytest

from server_kit.config import ServerConfig
from server_kit.daemon.federation_home import Home
from server_kit.daemon.secret_files import SecretFiles
from server_kit.dashboard.access import SECRET, Access, make_token, read_token
from server_kit.dashboard.announcing import announced
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
    home = Home.create(tmp_path_factory.mktemp("far") / "federation", settings)
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
    def test_no_token_is_asked_for(self, app):
        assert ask(app, "/api/overview").status == 200

    @pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "Via", "X-Forwarded-Host"])
    def test_what_a_proxy_passes_on_is_from_elsewhere(self, app, header):
        assert ask(app, "/api/overview", headers={header: "203.0.113.7"}).status == 401

    def test_another_name_of_the_server_is_from_elsewhere(self):
        listen = ServerConfig.of_text("[listen]\nhosts = ['fl.example.com']\n").listen
        assert strangers_who_get_in(Access(listen, lambda: None)) == []

    def test_an_access_that_looks_at_the_port_alone_is_caught(self):
        class LooksAtThePortAlone(Access):
            def is_local(self, headers):
                return self.listen.status_is_local

        listen = ServerConfig.of_text("[listen]\nhosts = ['fl.example.com']\n").listen
        assert len(strangers_who_get_in(LooksAtThePortAlone(listen, lambda: None))) == 3


def strangers_who_get_in(access: Access) -> list[dict[str, str]]:
    from starlette.datastructures import Headers

    strangers = [
        {"host": "fl.example.com"},
        {"host": "localhost", "x-forwarded-for": "203.0.113.7"},
        {"host": "localhost.example.com"},
    ]
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

    def test_a_start_shows_it_once(self, tmp_path):
        home = Home.create(tmp_path / "f", "[listen]\nstatus = '0.0.0.0:8480'\nhosts = ['fl.example.com']\n")
        first, second = announced(home), announced(home)
        token = read_token(home.secrets)
        assert token is not None
        assert first.startswith(f"dashboard: http://fl.example.com:8480/#token={token} ")
        assert token not in second
        assert f"secrets/{SECRET}" in second

    def test_on_loopback_there_is_none(self, tmp_path):
        home = Home.create(tmp_path / "f")
        assert announced(home) == "dashboard: http://127.0.0.1:8480/"
        assert not home.secrets.path(SECRET).exists()
