"""Random words by the million: AES-256 in counter mode, under a key that is drawn fresh and used once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Words = NDArray[np.uint32]


class KeyStream:
    """32-bit words of AES-256-CTR; single words for the rare draws that are settled by hand."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        # The key is used once, so the counter may start at zero.
        self._encryptor = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()

    def fill(self, words: Words, zeros: Words) -> None:
        """Overwrite `words` (as long as `zeros`) with key stream."""
        self._encryptor.update_into(zeros.data.cast("B"), words.data.cast("B"))

    def word(self) -> int:
        return int.from_bytes(self._encryptor.update(bytes(4)))
