"""A vault's key comes from the one place that was chosen, or the device says why not; it never looks elsewhere."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import types

import pytest

from device_sdk.errors import KeyUnavailable, WrongKey
from device_sdk.key_stores import Argon2Cost, FileKeyStore, OsKeyStore, PassphraseKeyStore
from device_sdk.key_stores.system import SAFE_BACKENDS
from device_sdk.vault import Vault
from tests.device_sdk.secret_service import need_programs, secret_service

CHEAP = Argon2Cost(iterations=2, lanes=1, memory_kib=19 * 1024)
PASSPHRASE = "correct horse battery"


class Backend:
    """What a keyring backend does, kept in memory; its class is given the name of a real one."""

    def __init__(self):
        self.kept = {}

    def set_password(self, service, name, password):
        self.kept[service, name] = password

    def get_password(self, service, name):
        return self.kept.get((service, name))

    def delete_password(self, service, name):
        del self.kept[service, name]


class Forgetful(Backend):
    def set_password(self, service, name, password):
        pass


class Locked(Backend):
    def set_password(self, service, name, password):
        raise RuntimeError(f"no session for {password}")


def named(kind, full_name):
    module, _, name = full_name.rpartition(".")
    return type(name, (kind,), {"__module__": module})


@pytest.fixture
def offer(monkeypatch):
    """Let the system offer a backend of this full name."""

    def offered(full_name, kind=Backend, **attributes):
        backend = named(kind, full_name)()
        for name, value in attributes.items():
            setattr(backend, name, value)
        keyring = types.ModuleType("keyring")
        keyring.get_keyring = lambda: backend  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "keyring", keyring)
        return backend

    return offered


@pytest.fixture
def system_store(tmp_path, monkeypatch):
    """The system's own, with a real one behind it."""
    need_programs()
    with secret_service(tmp_path / "home", monkeypatch):
        yield OsKeyStore()


STORES = {
    "os": lambda request, folder: request.getfixturevalue("system_store"),
    "passphrase": lambda request, folder: PassphraseKeyStore(lambda: PASSPHRASE, CHEAP),
    "file": lambda request, folder: FileKeyStore(folder / "device.key"),
}


OPENING = """
import sys
from pathlib import Path
from device_sdk.key_stores import OsKeyStore
from device_sdk.vault import Vault
with Vault.open(Path(sys.argv[1]), OsKeyStore()) as vault:
    print(vault.table("server", "table").get("a").decode())
"""


def opened_by_another(state):
    """What another process says that opens a vault with the system's key store."""
    return subprocess.run([sys.executable, "-c", OPENING, str(state)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("kind", STORES)
class TestEveryStore:
    """What each kind of store promises."""

    @pytest.fixture
    def store(self, kind, request, tmp_path):
        return STORES[kind](request, tmp_path)

    def test_a_key_is_found_again(self, store, kind):
        key, parameters = store.create("name")
        assert len(key) == 32
        assert store.fetch("name", parameters) == key
        assert store.kind == kind

    def test_two_keys_differ_and_are_kept_side_by_side(self, store):
        one, of_one = store.create("one")
        two, of_two = store.create("two")
        assert one != two
        assert (store.fetch("one", of_one), store.fetch("two", of_two)) == (one, two)

    def test_discarding_takes_one_key_and_may_be_repeated(self, store):
        store.create("one")
        two, of_two = store.create("two")
        store.discard("one")
        store.discard("one")
        assert store.fetch("two", of_two) == two

    def test_a_vault_opens_with_it(self, store, tmp_path):
        with Vault.open(tmp_path / "state", store) as vault:
            vault.table("server", "table").put("a", b"content")
            vault.rotate()
        with Vault.open(tmp_path / "state", store) as vault:
            assert vault.table("server", "table").get("a") == b"content"

    def test_it_is_not_pickled_and_shows_no_secret(self, store):
        key, _ = store.create("name")
        assert PASSPHRASE not in repr(store)
        assert key.hex() not in repr(store)
        with pytest.raises(TypeError):
            pickle.dumps(store)


def test_the_systems_store_is_asked_by_another_process_too(system_store, tmp_path):
    with Vault.open(tmp_path / "state", system_store) as vault:
        vault.table("server", "table").put("a", b"content")
        device = vault.device
    assert opened_by_another(tmp_path / "state").stdout.strip() == "content"
    system_store.discard(f"{device}-1")
    assert "does not hold this vault's key" in opened_by_another(tmp_path / "state").stderr


@pytest.mark.parametrize("full_name", sorted(SAFE_BACKENDS))
def test_known_system_stores_are_used(offer, full_name):
    backend = offer(full_name)
    key, _ = OsKeyStore().create("name")
    assert OsKeyStore().fetch("name", "") == key
    assert list(backend.kept) == [("covey", "name")]


@pytest.mark.parametrize(
    "full_name",
    [
        "keyrings.alt.file.PlaintextKeyring",
        "keyring.backends.fail.Keyring",
        "keyring.backends.null.Keyring",
        "x.Keyring",
    ],
)
def test_a_store_that_does_not_protect_is_refused(offer, full_name):
    backend = offer(full_name)
    with pytest.raises(KeyUnavailable, match=full_name.rpartition(".")[0]):
        OsKeyStore().create("name")
    assert backend.kept == {}


def test_in_a_chain_only_the_protecting_store_is_used(offer):
    plain = named(Backend, "keyrings.alt.file.PlaintextKeyring")()
    safe = named(Backend, "keyring.backends.macOS.Keyring")()
    offer("keyring.backends.chainer.ChainerBackend", backends=[plain, safe])
    OsKeyStore().create("name")
    assert plain.kept == {}
    assert len(safe.kept) == 1


def test_without_the_package_the_error_names_it_and_nothing_else_is_tried(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(KeyUnavailable, match="pip install keyring"):
        Vault.open(tmp_path / "state", OsKeyStore())
    assert not list(tmp_path.rglob("*key*"))


def test_a_store_that_keeps_nothing_is_noticed(offer):
    offer("keyring.backends.macOS.Keyring", Forgetful)
    with pytest.raises(KeyUnavailable):
        OsKeyStore().create("name")


def test_what_a_backend_raises_is_named_by_its_type_alone(offer):
    offer("keyring.backends.macOS.Keyring", Locked)
    with pytest.raises(KeyUnavailable, match=r"refused \(RuntimeError\)") as caught:
        OsKeyStore().create("name")
    assert "session" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_wrong_passphrase_is_a_wrong_key(tmp_path):
    with Vault.open(tmp_path / "state", PassphraseKeyStore(lambda: PASSPHRASE, CHEAP)):
        pass
    with pytest.raises(WrongKey, match="passphrase"):
        Vault.open(tmp_path / "state", PassphraseKeyStore(lambda: PASSPHRASE + "!", CHEAP))


def test_a_passphrase_in_another_unicode_form_is_the_same():
    composed, decomposed = "gru\u0308n wie die Wiese", "gr\u00fcn wie die Wiese"
    key, parameters = PassphraseKeyStore(lambda: composed, CHEAP).create("name")
    assert PassphraseKeyStore(lambda: decomposed, CHEAP).fetch("name", parameters) == key


def test_the_cost_of_the_time_of_creation_is_used_later():
    key, parameters = PassphraseKeyStore(lambda: PASSPHRASE, CHEAP).create("name")
    assert PassphraseKeyStore(lambda: PASSPHRASE).fetch("name", parameters) == key


def test_a_passphrase_is_asked_for_once_and_a_rotation_uses_that_one(tmp_path):
    typed = iter([PASSPHRASE, "mistyped the second time"])
    with Vault.open(tmp_path / "state", PassphraseKeyStore(lambda: next(typed), CHEAP)) as vault:
        vault.rotate()
    with Vault.open(tmp_path / "state", PassphraseKeyStore(lambda: PASSPHRASE, CHEAP)):
        pass


def test_a_short_passphrase_is_refused():
    with pytest.raises(KeyUnavailable, match="at least 12"):
        PassphraseKeyStore(lambda: "short", CHEAP).create("name")


@pytest.mark.parametrize("parameters", ["", "2,1,19456", "2,1,19456,zz", "a,b,c,d"])
def test_altered_parameters_are_refused(parameters):
    with pytest.raises(WrongKey):
        PassphraseKeyStore(lambda: PASSPHRASE, CHEAP).fetch("name", parameters)


def test_altered_parameters_cannot_exhaust_memory():
    with pytest.raises(KeyUnavailable, match="1 GiB"):
        PassphraseKeyStore(lambda: PASSPHRASE, CHEAP).fetch("name", f"2,1,{1 << 40},{'00' * 16}")


def test_a_key_file_is_private_from_the_start(tmp_path):
    before = os.umask(0)
    try:
        FileKeyStore(tmp_path / "device.key").create("name")
    finally:
        os.umask(before)
    assert (tmp_path / "device.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666])
def test_a_key_file_that_others_can_read_is_refused(tmp_path, mode):
    store = FileKeyStore(tmp_path / "device.key")
    store.create("name")
    (tmp_path / "device.key").chmod(mode)
    with pytest.raises(KeyUnavailable, match="chmod 600"):
        store.fetch("name", "")


def test_a_key_file_that_is_a_link_a_pipe_or_garbage_is_refused(tmp_path):
    FileKeyStore(tmp_path / "real").create("name")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name, content in {"words": b"not a key file\n", "bytes": b"\xff\xfe", "short": b"name AAAA\n"}.items():
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o600)
    for name in ("link", "pipe", "words", "bytes", "short"):
        with pytest.raises(KeyUnavailable):
            FileKeyStore(tmp_path / name).fetch("name", "")


def test_devices_that_share_a_key_file_do_not_lose_each_others_keys(tmp_path):
    def make(number):
        for again in range(5):
            FileKeyStore(tmp_path / "device.key").create(f"{number}-{again}")

    threads = [threading.Thread(target=make, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len((tmp_path / "device.key").read_text().splitlines()) == 20


def test_a_key_file_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "keys").write_text("a file in the way")
    with pytest.raises(KeyUnavailable, match="could not be written"):
        FileKeyStore(tmp_path / "keys" / "device.key").create("name")


def test_a_missing_key_file_is_not_made_up(tmp_path):
    store = FileKeyStore(tmp_path / "device.key")
    with Vault.open(tmp_path / "state", store):
        pass
    (tmp_path / "device.key").unlink()
    with pytest.raises(KeyUnavailable, match="put back the file"):
        Vault.open(tmp_path / "state", store)
    assert not (tmp_path / "device.key").exists()
