"""Sealing: bytes at rest that open only under their key and in their place.

    algorithm (1 byte) ‖ nonce or salt ‖ ciphertext and tag

AES-256-GCM-SIV, because a nonce that repeats after a restored backup or a copied virtual machine then
reveals no more than that two records are equal. Where OpenSSL lacks it, ChaCha20-Poly1305 under a
key of its own for each record (HKDF with a fresh 32-byte salt), so that no nonce can repeat at all.
What a record belongs to (`place`) is authenticated with it: moved elsewhere it does not open. Every
failure is the same `SealBroken`, so that nobody learns which check failed.
"""

from __future__ import annotations

import os

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from privacy.errors import InvalidTerms, SealBroken

KEY_BYTES = 32
_TAG = b"covey-seal-v1"
_GCM_SIV, _CHACHA = b"\x01", b"\x02"
_NONCE_BYTES, _SALT_BYTES = 12, 32
# Each ChaCha key seals one record, so its nonce need not vary.
_ONLY_NONCE = bytes(_NONCE_BYTES)


def place(*parts: str | int) -> bytes:
    """Where a record belongs, as associated data: each part under its length, so that no two places coincide."""
    encoded = [str(part).encode() for part in parts]
    return b"".join([len(part).to_bytes(4) + part for part in encoded])


def seal(key: bytes, plaintext: bytes, associated: bytes) -> bytes:
    """`plaintext`, readable only with `key` and together with the same `associated` bytes."""
    if len(key) != KEY_BYTES:
        raise InvalidTerms(f"a sealing key has {KEY_BYTES} bytes, got {len(key)}; nothing was sealed")
    try:
        cipher = AESGCMSIV(key)
    except UnsupportedAlgorithm:
        salt = os.urandom(_SALT_BYTES)
        subkey = _record_cipher(key, salt)
        return _CHACHA + salt + subkey.encrypt(_ONLY_NONCE, plaintext, _bound(_CHACHA, associated))
    nonce = os.urandom(_NONCE_BYTES)
    return _GCM_SIV + nonce + cipher.encrypt(nonce, plaintext, _bound(_GCM_SIV, associated))


def open_sealed(key: bytes, sealed: bytes, associated: bytes) -> bytes:
    """What `seal` was given; `SealBroken` for altered, moved, truncated or foreign bytes alike."""
    # A view: a model's update is megabytes, and slicing bytes would copy it.
    body = memoryview(sealed)
    algorithm = bytes(body[:1])
    try:
        if algorithm == _GCM_SIV:
            nonce, ciphertext = bytes(body[1 : 1 + _NONCE_BYTES]), body[1 + _NONCE_BYTES :]
            return AESGCMSIV(key).decrypt(nonce, ciphertext, _bound(algorithm, associated))
        if algorithm == _CHACHA:
            salt, ciphertext = bytes(body[1 : 1 + _SALT_BYTES]), body[1 + _SALT_BYTES :]
            return _record_cipher(key, salt).decrypt(_ONLY_NONCE, ciphertext, _bound(algorithm, associated))
    except (InvalidTag, UnsupportedAlgorithm, ValueError):
        pass
    # Outside the handler: the cause would tell one failure from another.
    raise SealBroken(
        "a sealed record does not open: it was altered, moved, or sealed under another key; nothing was read"
    )


def _bound(algorithm: bytes, associated: bytes) -> bytes:
    return _TAG + algorithm + associated


def _record_cipher(key: bytes, salt: bytes) -> ChaCha20Poly1305:
    return ChaCha20Poly1305(HKDF(SHA256(), KEY_BYTES, salt, _TAG).derive(key))
