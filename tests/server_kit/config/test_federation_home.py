"""The federation's directory: private, whole or not there, and one daemon's."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from server_kit.config import FILE_NAME, ServerConfig
from server_kit.daemon.authority import SERVER_LIFETIME, Authority
from server_kit.daemon.federation_home import Home
from server_kit.daemon.secret_files import variable_of
from server_kit.daemon.server_certificate import RENEW_BEFORE, expires_at, renew_after_seconds, serves
from server_kit.errors import HomeBusy, HomeError, InvalidSetting, SecretUnusable
from tests.architecture.repository import ROOT

HOLD = """
import sys
from pathlib import Path
from server_kit.daemon.federation_home import Home
with Home.open(Path(sys.argv[1])).running():
    print("running", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def home(tmp_path):
    return Home.create(tmp_path / "federation")


class TestMaking:
    def test_a_new_federation_opens_with_all_it_needs(self, home):
        home.authority()
        home.server_certificate()
        home.signing_key()
        home.feedback_seal()
        store = home.open_store()
        assert store.devices() == []
        store.close()

    def test_nobody_else_can_read_any_of_it_whatever_the_umask(self, tmp_path):
        before = os.umask(0)
        try:
            home = Home.create(tmp_path / "federation")
        finally:
            os.umask(before)
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [home.directory, *home.directory.rglob("*")]}
        assert {path.name: mode for path, mode in modes.items() if mode & 0o077} == {}

    def test_no_two_federations_share_a_secret(self, tmp_path):
        one, other = Home.create(tmp_path / "one"), Home.create(tmp_path / "other")
        for path in one.secrets.directory.iterdir():
            assert path.read_bytes() != other.secrets.path(path.name).read_bytes()
        assert one.authority().fingerprint != other.authority().fingerprint

    @pytest.mark.parametrize("content", ["file", "directory"])
    def test_a_directory_that_holds_anything_is_left_alone(self, tmp_path, content):
        target = tmp_path / "federation"
        target.mkdir()
        (target / "kept").mkdir() if content == "directory" else (target / "kept").write_text("precious")
        with pytest.raises(HomeError, match="not an empty directory"):
            Home.create(target)
        assert [path.name for path in tmp_path.rglob("*")] == ["federation", "kept"]

    def test_an_empty_directory_is_taken(self, tmp_path):
        (tmp_path / "federation").mkdir()
        assert Home.create(tmp_path / "federation").config == ServerConfig()

    @pytest.mark.parametrize("fault", ["settings", "authority", "interrupt"])
    def test_what_fails_leaves_nothing_behind(self, tmp_path, monkeypatch, fault):
        def fail() -> Authority:
            raise KeyboardInterrupt if fault == "interrupt" else OSError("no room")

        if fault != "settings":
            monkeypatch.setattr(Authority, "create", fail)
        with pytest.raises((InvalidSetting, HomeError, KeyboardInterrupt)):
            Home.create(tmp_path / "federation", "[nonsense]" if fault == "settings" else "")
        assert list(tmp_path.iterdir()) == []

    def test_a_directory_without_settings_is_no_federation(self, tmp_path):
        with pytest.raises(HomeError, match="covey server init"):
            Home.open(tmp_path)

    def test_the_settings_are_those_of_the_file(self, tmp_path):
        text = "[federation]\nparticipants = 3\n"
        home = Home.create(tmp_path / "federation", text)
        assert (home.directory / FILE_NAME).read_text() == text
        assert home.config.federation.participants == 3
        (home.directory / FILE_NAME).write_text("[federation]\nparticipants = 4\n")
        assert home.read_settings().federation.participants == 4


class TestSecrets:
    @pytest.mark.parametrize("name", ["authority.key", "signing.key", "feedback.key", "store.key", "server.pem"])
    def test_one_that_others_can_read_is_refused(self, home, name):
        home.secrets.path(name).chmod(0o640)
        with pytest.raises(SecretUnusable, match=r"open to other users \(mode 0640\); chmod 600"):
            use_all(home)
        assert len(home.secrets.exposed()) == 1

    @pytest.mark.parametrize("name", ["authority.key", "signing.key", "feedback.key"])
    def test_one_that_is_missing_is_named(self, home, name):
        home.secrets.path(name).unlink()
        with pytest.raises(SecretUnusable, match=r"authority|signing\.key|feedback\.key"):
            use_all(home)

    def test_a_link_is_not_followed(self, home, tmp_path):
        path = home.secrets.path("signing.key")
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(SecretUnusable, match="could not be read"):
            home.signing_key()

    def test_a_damaged_one_is_refused_and_not_repeated(self, home):
        home.secrets.write("signing.key", b"0123456789")
        with pytest.raises(SecretUnusable, match="64 hexadecimal digits") as caught:
            home.signing_key()
        assert "0123456789" not in str(caught.value)

    def test_the_environment_wins(self, home, monkeypatch):
        assert variable_of("signing.key") == "COVEY_SIGNING_KEY"
        before = home.signing_key().public_key
        monkeypatch.setenv("COVEY_SIGNING_KEY", "07" * 32)
        assert home.signing_key().public_key != before
        home.secrets.path("signing.key").unlink()
        home.signing_key()

    def test_another_federations_authority_key_is_refused(self, home, tmp_path):
        home.secrets.write("authority.key", Home.create(tmp_path / "other").secrets.read("authority.key"))
        with pytest.raises(SecretUnusable, match="another's"):
            home.authority()

    def test_no_secret_stands_in_the_settings(self, home):
        settings = (home.directory / FILE_NAME).read_bytes()
        for path in home.secrets.directory.iterdir():
            assert path.read_bytes().strip()[:32] not in settings


def use_all(home: Home) -> None:
    home.authority()
    home.server_certificate()
    home.signing_key()
    home.feedback_seal()
    home.store_keys()


class TestStoreUrl:
    URL = "postgresql+psycopg://covey@db.example.com:5433/covey?sslmode=require"

    def test_by_default_it_is_a_file_in_the_directory(self, home):
        assert home.store_url == f"sqlite:///{home.directory}/covey.db"

    def test_the_password_comes_from_a_private_file_or_the_environment(self, tmp_path, monkeypatch):
        home = Home.create(tmp_path / "federation")
        (home.directory / FILE_NAME).write_text(f"[store]\nurl = '{self.URL}'\n")
        home = Home.open(home.directory)
        assert home.store_url == self.URL
        home.secrets.write("database_password", b"p@ss/word\n")
        assert home.store_url == self.URL.replace("covey@", "covey:p%40ss%2Fword@")
        monkeypatch.setenv("COVEY_DATABASE_PASSWORD", "other")
        assert home.store_url == self.URL.replace("covey@", "covey:other@")


class TestCertificate:
    def test_it_stays_the_same_until_it_is_due(self, home):
        first = home.server_certificate()
        assert home.server_certificate() == first
        assert renew_after_seconds(first) > 50 * 86400

    def test_it_is_renewed_long_before_it_ends(self, home):
        first = home.server_certificate()
        later = expires_at(first) - RENEW_BEFORE + timedelta(minutes=1)
        second = home.server_certificate(later)
        assert second != first
        assert expires_at(second) >= later + SERVER_LIFETIME - timedelta(minutes=1)
        assert renew_after_seconds(first, later) == 0

    def test_it_names_the_hosts_of_the_settings(self, home):
        first = home.server_certificate()
        (home.directory / FILE_NAME).write_text("[listen]\nhosts = ['fl.example.com', '10.1.2.3', '::1']\n")
        second = Home.open(home.directory).server_certificate()
        assert second != first
        parsed = x509.load_pem_x509_certificate(second.certificate)
        names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert {str(name.value) for name in names} == {"fl.example.com", "10.1.2.3", "::1"}

    def test_a_key_always_has_its_certificate(self, home):
        shown = home.server_certificate()
        key = serialization.load_pem_private_key(shown.private_key, None)
        assert x509.load_pem_x509_certificate(shown.certificate).public_key() == key.public_key()

    def test_one_of_another_authority_is_not_shown(self, home):
        foreign = Authority.create().issue_server(home.config.listen.hosts)
        assert not serves(foreign, home.authority(), home.config.listen.hosts, datetime.now(UTC))
        home.secrets.write("server.pem", foreign.certificate + foreign.private_key)
        assert home.server_certificate().certificate != foreign.certificate

    @pytest.mark.parametrize("damage", ["cut", "certificate", "key"])
    def test_a_damaged_file_is_replaced(self, home, damage):
        whole = home.secrets.read("server.pem")
        other = Authority.create().issue_server(["localhost"])
        damaged = {
            "cut": whole[:100],
            "certificate": whole.replace(b"\nMII", b"\nAAA", 1),
            "key": home.server_certificate().certificate + other.private_key,
        }
        home.secrets.write("server.pem", damaged[damage])
        assert serves(home.server_certificate(), home.authority(), home.config.listen.hosts, datetime.now(UTC))


class TestOneDaemon:
    def test_a_second_one_is_refused_in_another_process(self, home):
        command = [sys.executable, "-c", HOLD, str(home.directory)]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            assert other.stdin is not None
            assert other.stdout.readline() == "running\n"
            assert home.is_running()
            with pytest.raises(HomeBusy, match="a daemon runs in federation already"), home.running():
                pass
            other.kill()
            other.wait()
        assert not home.is_running()
        with home.running():
            assert home.is_running()

    def test_whoever_only_asks_does_not_keep_a_daemon_from_starting(self, home):
        ended = threading.Event()

        def ask() -> None:
            while not ended.is_set():
                home.is_running()

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            for _ in range(100):
                with home.running():
                    pass
        finally:
            ended.set()
            asking.join()
