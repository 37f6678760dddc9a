"""Secret batches: every record enters every batch by its own coin, independently of all others.

This is the sampling that the accountant assumes. A shuffled epoch or a batch of fixed size is cheaper
to draw and is not what was paid for. The coins come from the device's own random source and nobody is
told how they fell, not even how many records a batch holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from privacy.key_stream import KeyStream

if TYPE_CHECKING:
    from fractions import Fraction

    import numpy as np
    from numpy.typing import NDArray

    from privacy.randomness import NoiseSource

_WORD = 32


class PoissonBatches:
    """Draws batches of indices below `num_records`; each index with probability exactly `sampling_rate`."""

    def __init__(self, noise: NoiseSource, sampling_rate: Fraction, num_records: int) -> None:
        import numpy as np

        self._stream = KeyStream(noise.stream_key())
        self._scaled_rate = sampling_rate * 2**_WORD
        self._threshold = int(self._scaled_rate)
        self._words = np.empty(num_records, dtype=np.uint32)
        self._zeros = np.zeros(num_records, dtype=np.uint32)

    def draw(self) -> NDArray[np.int64]:
        """The records of the next batch, in order; perhaps none, perhaps all."""
        import numpy as np

        self._stream.fill(self._words, self._zeros)
        chosen = self._words < self._threshold
        # Where the first 32 bits equal those of the rate, they do not decide.
        for tie in np.flatnonzero(self._words == self._threshold).tolist():
            chosen[tie] = self._settle()
        return np.flatnonzero(chosen)

    def _settle(self) -> bool:
        """Whether a uniform number whose leading bits are the rate's lies below the rate: compare the next bits."""
        rest = self._scaled_rate - self._threshold
        while rest:
            rest *= 2**_WORD
            word, bits = self._stream.word(), int(rest)
            if word != bits:
                return word < bits
            rest -= bits
        return False
