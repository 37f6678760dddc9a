"""Keys come from a vault or from a private file, show themselves nowhere, and never fall back to anything."""

import copy
import os
import pickle

import pytest

from privacy.errors import LedgerUnavailable
from privacy.keys import LedgerKeys, SigningKey


def test_keys_survive_a_vault_and_a_file(tmp_path):
    keys = LedgerKeys.create_file(tmp_path / "keys")
    for again in (LedgerKeys.from_bytes(keys.to_bytes()), LedgerKeys.from_file(tmp_path / "keys")):
        assert again.to_bytes() == keys.to_bytes()
        assert again.public_key == keys.public_key


def test_new_keys_are_new():
    assert len({LedgerKeys.generate().to_bytes() for _ in range(50)}) == 50


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
def test_key_file_is_private_whatever_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        LedgerKeys.create_file(tmp_path / "keys")
    finally:
        os.umask(before)
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o622, 0o601])
def test_key_file_open_to_others_is_refused(tmp_path, mode):
    LedgerKeys.create_file(tmp_path / "keys")
    (tmp_path / "keys").chmod(mode)
    with pytest.raises(LedgerUnavailable, match="chmod 600"):
        LedgerKeys.from_file(tmp_path / "keys")


def test_existing_file_is_never_replaced(tmp_path):
    keys = LedgerKeys.create_file(tmp_path / "keys")
    with pytest.raises(LedgerUnavailable, match="File exists"):
        LedgerKeys.create_file(tmp_path / "keys")
    assert LedgerKeys.from_file(tmp_path / "keys").to_bytes() == keys.to_bytes()


def test_links_pipes_and_folders_are_refused(tmp_path):
    LedgerKeys.create_file(tmp_path / "keys")
    (tmp_path / "link").symlink_to(tmp_path / "keys")
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "folder").mkdir(mode=0o700)
    for name in ("link", "pipe", "folder", "missing"):
        with pytest.raises(LedgerUnavailable, match="nothing was opened"):
            LedgerKeys.from_file(tmp_path / name)
    with pytest.raises(LedgerUnavailable, match="could not be written"):
        LedgerKeys.create_file(tmp_path / "link")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_key_file_of_another_user_is_refused(tmp_path):
    LedgerKeys.create_file(tmp_path / "keys")
    os.chown(tmp_path / "keys", 12345, 12345)
    with pytest.raises(LedgerUnavailable, match="another user"):
        LedgerKeys.from_file(tmp_path / "keys")


@pytest.mark.parametrize(
    "change", [lambda it: b"", lambda it: it[:-1], lambda it: it + b"\0", lambda it: b"x" + it[1:]]
)
def test_other_bytes_are_not_keys(change):
    with pytest.raises(LedgerUnavailable, match="not ledger keys"):
        LedgerKeys.from_bytes(change(LedgerKeys.generate().to_bytes()))


@pytest.mark.parametrize("keys", [LedgerKeys.generate(), SigningKey.generate()], ids=["ledger", "signing"])
def test_secrets_are_neither_shown_nor_pickled(keys):
    secret = keys.to_bytes()
    for shown in (repr(keys), str(keys), f"{keys}"):
        assert not any(secret[at : at + 4].hex() in shown for at in range(20, len(secret) - 4))
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="not pickled"):
            attempt(keys)
