"""Gaussian noise rounded to whole numbers, exactly, for millions of coordinates.

What is drawn is `round(X)` with X ~ N(0, s²): adding it to whole numbers is post-processing of the
continuous Gaussian mechanism, so μ = sensitivity/s holds as an equality on paper, without a δ for the
sampler. |X| is drawn as k·B + y with B = 2**b close to s/12: the block k from a table of cumulative
weights exp(-(kB)²/2s²), y uniform in [0, B), accepted with probability exp(-y(y+2kB)/2s²).

Both comparisons use 32 random bits and floats with a margin far wider than any rounding error. The
few draws that fall inside a margin are settled with more bits and correctly rounded decimals, so no
decision ever rests on a float. What is left is a tail cut at 2**-180 and the strength of AES-256.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

from privacy.errors import InvalidTerms
from privacy.key_stream import KeyStream

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from privacy.randomness import NoiseSource

    Words = NDArray[np.uint32]

SMALLEST_DEVIATION = 64  # below it the blocks are too narrow; use `NoiseSource.discrete_gaussian`
LARGEST_DEVIATION = 2**33  # y must fit into 31 bits
_TAIL_BITS = 180
_GUIDE_BITS = 16
_CHUNK = 1 << 15  # candidates at a time: the working arrays stay in the cache
_MARGIN = 2.0**-28  # covers 2**-29 for the bits of y not drawn yet and 2**-46 for float rounding
_WORD = 32


@dataclass(frozen=True)
class _Table:
    """Everything about one standard deviation that does not change from draw to draw."""

    deviation: Fraction
    block_bits: int
    exponent_scale: float  # B² / 2s²
    exact_thresholds: tuple[int, ...]  # floor(2**(32+_TAIL_BITS) · P(block <= k))
    thresholds: Words  # their leading 32 bits
    guide: NDArray[np.int16]  # block for the leading bits of a word, -1 where it takes all of them


def check_deviation(deviation: Fraction) -> None:
    """Refuse a standard deviation that is not drawn here; mechanisms ask before anything is booked."""
    if not SMALLEST_DEVIATION <= deviation <= LARGEST_DEVIATION:
        raise InvalidTerms(
            f"grid noise needs a standard deviation from {SMALLEST_DEVIATION} to 2**33 grid steps, "
            f"got {float(deviation):g}; choose another grid or noise; nothing was drawn or booked"
        )


@lru_cache(maxsize=8)
def _table(deviation: Fraction) -> _Table:
    import numpy as np

    check_deviation(deviation)
    block_bits = (int(deviation) // 8).bit_length() - 1
    exponent_scale = Fraction(4**block_bits) / (2 * deviation**2)
    exact = _cumulative(exponent_scale)
    thresholds = np.array([min(t >> _TAIL_BITS, 2**_WORD - 1) for t in exact], dtype=np.uint32)
    return _Table(deviation, block_bits, float(exponent_scale), exact, thresholds, _guide(thresholds))


def _cumulative(exponent_scale: Fraction) -> tuple[int, ...]:
    """floor(2**(32+_TAIL_BITS)·P(block <= k)) for all blocks but a tail below 2**-_TAIL_BITS."""
    with localcontext() as context:
        context.prec = 100  # 332 bits: the sums are right far beyond the bits we keep
        scale = Decimal(exponent_scale.numerator) / Decimal(exponent_scale.denominator)
        weights = [Decimal(1)]
        while weights[-1] > Decimal(2) ** -(_TAIL_BITS + _WORD):
            weights.append((-scale * len(weights) ** 2).exp())
        total = sum(weights)
        running = Decimal(0)
        cumulative = []
        for weight in weights[:-1]:
            running += weight
            cumulative.append(int(running / total * 2 ** (_WORD + _TAIL_BITS)))
        return tuple(cumulative)


def _guide(thresholds: Words) -> NDArray[np.int16]:
    """For each value of a word's leading bits: its block, or -1 where a threshold lies inside."""
    import numpy as np

    shift = _WORD - _GUIDE_BITS
    first = np.arange(2**_GUIDE_BITS, dtype=np.uint64) << np.uint64(shift)
    low = np.searchsorted(thresholds, first, side="left")
    high = np.searchsorted(thresholds, first + np.uint64(2**shift - 1), side="right")
    return np.where(low == high, low, -1).astype(np.int16)


def rounded_gaussian(noise: NoiseSource, deviation: Fraction, size: int) -> NDArray[np.int64]:
    """`size` independent draws of round(N(0, deviation²)), exactly distributed."""
    import numpy as np

    table = _table(Fraction(deviation))
    stream = KeyStream(noise.stream_key())
    result = np.empty(size, dtype=np.int64)
    words = np.empty(3 * _candidates(size), dtype=np.uint32)
    zeros = np.zeros_like(words)
    filled = 0
    while filled < size:
        count = _candidates(size - filled)
        stream.fill(words[: 3 * count], zeros[: 3 * count])
        drawn = _accepted(table, words[: 3 * count].reshape(3, count), stream.word)[: size - filled]
        result[filled : filled + len(drawn)] = drawn
        filled += len(drawn)
    return result


def _candidates(missing: int) -> int:
    """A twentieth more than is missing, because about one in twenty is rejected; at most a chunk."""
    return min(_CHUNK, missing * 21 // 20 + 32)


def _accepted(table: _Table, words: Words, more: Callable[[], int]) -> NDArray[np.int64]:
    """The candidates that three words each give, without the rejected ones."""
    import numpy as np

    block_words, place_words, test_words = words
    block = _blocks(table, block_words, more)
    distance = _distance(table.exponent_scale, block, place_words, test_words)
    keep = distance < 0
    for i in np.flatnonzero(np.abs(distance, out=distance) <= _MARGIN).tolist():
        keep[i] = _settle(table, int(block[i]), int(place_words[i]), int(test_words[i]) >> 1, more)
    # floor(y + 1/2) from the leading bits of y, in integers
    halves = place_words >> np.uint32(_WORD - 1 - table.block_bits)
    halves += np.uint32(1)
    halves >>= np.uint32(1)
    value = block.astype(np.int64) << table.block_bits
    value += halves
    # The lowest bit of the test gives the sign: -1 is all ones, and ~v + 1 is -v.
    minus = -(test_words & np.uint32(1)).astype(np.int64)
    value ^= minus
    value -= minus
    accepted: NDArray[np.int64] = value[keep]
    return accepted


def _distance(scale: float, block: NDArray[np.int16], place_words: Words, test_words: Words) -> NDArray[np.float64]:
    """By how much each test, of 31 bits, lies above the acceptance; worked out in place, for it is most of a draw."""
    import numpy as np

    place = place_words * 2.0**-_WORD
    exponent = block * 2.0
    exponent += place
    exponent *= place
    exponent *= -scale
    distance: NDArray[np.float64] = np.multiply(test_words >> np.uint32(1), 2.0 ** -(_WORD - 1), dtype=np.float64)
    distance -= np.exp(exponent, out=exponent)
    return distance


def _blocks(table: _Table, words: Words, more: Callable[[], int]) -> NDArray[np.int16]:
    """The block of each candidate: how many thresholds lie at or below a uniform real number."""
    import numpy as np

    block: NDArray[np.int16] = table.guide.take(words >> np.uint32(_WORD - _GUIDE_BITS))
    unsure = np.flatnonzero(block < 0)
    if len(unsure):
        chosen = words[unsure]
        found = np.searchsorted(table.thresholds, chosen, side="left")
        block[unsure] = found
        inside = table.thresholds[np.minimum(found, len(table.thresholds) - 1)] == chosen
        for i in np.flatnonzero(inside).tolist():
            block[unsure[i]] = _settle_block(table, int(chosen[i]), more)
    return block


def _settle_block(table: _Table, word: int, more: Callable[[], int]) -> int:
    """The block where 32 bits did not decide: compare with all the bits we know."""
    value = word
    for _ in range(_TAIL_BITS // _WORD + 1):
        value = value << _WORD | more()
    excess = _WORD * (_TAIL_BITS // _WORD + 1) - _TAIL_BITS
    return sum(1 for threshold in table.exact_thresholds if threshold << excess <= value)


def _settle(table: _Table, block: int, place: int, test: int, more: Callable[[], int]) -> bool:
    """Whether the candidate is accepted: draw more bits of y and of the test until it is certain."""
    place_bits, test_bits = _WORD, _WORD - 1
    scale = Fraction(4**table.block_bits) / (2 * table.deviation**2)
    while True:
        place, place_bits = place << _WORD | more(), place_bits + _WORD
        test, test_bits = test << _WORD | more(), test_bits + _WORD
        low, high = (_acceptance(scale, block, Fraction(place + i, 1 << place_bits), i, test_bits) for i in (1, 0))
        if Fraction(test + 1, 1 << test_bits) <= low:
            return True
        if Fraction(test, 1 << test_bits) >= high:
            return False


def _acceptance(scale: Fraction, block: int, place: Fraction, below: int, bits: int) -> Fraction:
    """exp(-scale·place·(place + 2·block)), rounded outwards: down if `below`, else up."""
    exponent = scale * place * (place + 2 * block)
    with localcontext() as context:
        context.prec = bits
        value = (-Decimal(exponent.numerator) / Decimal(exponent.denominator)).exp()
        slack = Decimal(10) ** (3 - bits)
        return Fraction(value - slack if below else value + slack)
