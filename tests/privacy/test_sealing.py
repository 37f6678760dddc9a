"""Sealed bytes open under their key and in their place, and otherwise fail in one and the same way."""

import itertools

import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from hypothesis import given
from hypothesis import strategies as st

from privacy import sealing
from privacy.errors import InvalidTerms, SealBroken
from privacy.sealing import open_sealed, place, seal

KEY, OTHER_KEY = b"k" * 32, b"o" * 32


@pytest.fixture(params=["AES-GCM-SIV", "ChaCha20-Poly1305"])
def algorithm(request, monkeypatch):
    """Both ciphers; the second as on a system whose OpenSSL lacks the first."""
    if request.param == "AES-GCM-SIV":
        return 1
    monkeypatch.setattr(sealing, "AESGCMSIV", _unsupported)
    return 2


def _unsupported(key):
    raise UnsupportedAlgorithm("AES-GCM-SIV is not supported by this version of OpenSSL")


@pytest.mark.parametrize("plaintext", [b"", b"x", b"noised" * 1000])
def test_sealed_bytes_open_again(algorithm, plaintext):
    sealed = seal(KEY, plaintext, b"here")
    assert sealed[0] == algorithm
    assert open_sealed(KEY, sealed, b"here") == plaintext
    assert len(plaintext) < 10 or plaintext[:10] not in sealed


def test_every_failure_is_the_same_error(algorithm):
    sealed = seal(KEY, b"noised", b"here")
    broken = [
        (OTHER_KEY, sealed, b"here"),
        (KEY, sealed, b"there"),
        (KEY, sealed, b""),
        (KEY, b"", b"here"),
        (KEY, b"\x07" + sealed[1:], b"here"),
        (KEY, sealed + b"\0", b"here"),
        (b"short", sealed, b"here"),
        *((KEY, sealed[:length], b"here") for length in range(len(sealed))),
        *((KEY, sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :], b"here") for at in range(len(sealed))),
    ]
    messages = set()
    for key, content, associated in broken:
        with pytest.raises(SealBroken) as caught:
            open_sealed(key, content, associated)
        messages.add(str(caught.value))
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None
    assert len(messages) == 1


def test_sealing_the_same_bytes_twice_looks_different(algorithm):
    assert len({seal(KEY, b"noised", b"here") for _ in range(100)}) == 100


def test_both_ciphers_open_beside_each_other(monkeypatch):
    modern = seal(KEY, b"noised", b"here")
    with monkeypatch.context() as patched:
        patched.setattr(sealing, "AESGCMSIV", _unsupported)
        fallback = seal(KEY, b"noised", b"here")
        with pytest.raises(SealBroken):
            open_sealed(KEY, modern, b"here")
    assert [open_sealed(KEY, sealed, b"here") for sealed in (modern, fallback)] == [b"noised", b"noised"]
    assert (modern[0], fallback[0]) == (1, 2)


@pytest.mark.parametrize("key", [b"", b"k" * 16, b"k" * 31, b"k" * 33])
def test_key_of_another_length_seals_nothing(key):
    with pytest.raises(InvalidTerms, match="32 bytes"):
        seal(key, b"noised", b"here")


parts = st.lists(st.text(max_size=3) | st.integers(0, 99), max_size=3)


@given(parts, parts)
def test_different_places_are_different_bytes(one, other):
    if [str(part) for part in one] != [str(part) for part in other]:
        assert place(*one) != place(*other)


def test_parts_do_not_run_into_each_other():
    spellings = [("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), ("", "abc"), (12, 3), (1, 23)]
    for one, other in itertools.combinations(spellings, 2):
        assert place(*one) != place(*other)
