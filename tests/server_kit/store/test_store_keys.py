"""The key of a store is kept elsewhere, by its owner alone, and can be renewed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from server_kit.errors import StoreKeyRefused
from server_kit.store.keys import StoreKeys
from tests.server_kit.store.deliveries import content_of
from tests.server_kit.store.places import CANARY, KEYS


def test_another_key_does_not_open_a_store(filled):
    with pytest.raises(StoreKeyRefused):
        filled.open(StoreKeys.generate())


def test_a_renewed_key_takes_over_and_the_earlier_one_can_go(filled):
    renewed = KEYS.renewed()
    filled.open(renewed).close()
    with pytest.raises(StoreKeyRefused):
        filled.open(KEYS)
    store = filled.open(replace(renewed, earlier=()))
    assert content_of(store, "a") == CANARY
    store.close()


def test_keys_are_read_back_from_a_file_of_their_owner_alone(tmp_path):
    path = tmp_path / "store.key"
    keys = KEYS.renewed()
    keys.write(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert StoreKeys.read(path) == keys
    path.chmod(0o640)
    with pytest.raises(StoreKeyRefused, match="chmod 600"):
        StoreKeys.read(path)


@pytest.mark.parametrize("text", ["", "abc", "00" * 31, "zz" * 32, f"{'00' * 32}\n11"])
def test_a_malformed_key_is_refused_without_being_shown(tmp_path, text):
    path = tmp_path / "store.key"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(StoreKeyRefused) as caught:
        StoreKeys.read(path)
    assert not text or text not in str(caught.value)


def test_a_missing_key_file_says_so(tmp_path):
    with pytest.raises(StoreKeyRefused, match="cannot be read"):
        StoreKeys.read(tmp_path / "store.key")


def test_a_key_may_come_from_the_environment():
    assert StoreKeys.from_environment({}) is None
    assert StoreKeys.from_environment({"COVEY_STORE_KEY": KEYS.current.hex()}) == KEYS


def test_keys_do_not_show_themselves():
    assert KEYS.current.hex() not in repr(KEYS)
    assert repr(KEYS.current) not in repr(KEYS)
