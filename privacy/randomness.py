"""Exact integer noise from the operating system's random source.

No floating point takes part: every sampler turns fair bits into integers whose probabilities are
exactly the ones on paper, so the low bits of an answer give nothing away. The discrete Laplace and
Gaussian samplers follow Canonne, Kamath and Steinke (2020). How long a draw takes depends on the
noise, never on data: mechanisms draw their noise before they read anything.

A `SeededSource` exists for tests and simulation. What it noises is marked, and `Release` refuses to
hand it to the wire.
"""

from __future__ import annotations

import hashlib
import math
import os
import weakref
from decimal import ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction
from typing import Protocol

from privacy.errors import InvalidTerms

_POOL_BYTES = 256


class BitSource(Protocol):
    """Fair, independent bits."""

    seeded: bool

    def bits(self, count: int) -> int:
        """`count` fair bits as an integer in [0, 2**count)."""

    def key(self) -> bytes:
        """32 fresh bytes to key a stream cipher with."""


class SystemSource:
    """Bits of the operating system's CSPRNG, read in blocks."""

    seeded = False

    def __init__(self) -> None:
        self._pool = 0
        self._left = 0
        # A forked child would otherwise draw the parent's remaining bits once more.
        _system_sources.add(self)

    def forget(self) -> None:
        """Drop what was read ahead."""
        self._pool = self._left = 0

    def bits(self, count: int) -> int:
        if count > self._left:
            if count > 8 * _POOL_BYTES:
                return int.from_bytes(os.urandom((count + 7) // 8)) >> (-count % 8)
            self._pool = int.from_bytes(os.urandom(_POOL_BYTES))
            self._left = 8 * _POOL_BYTES
        value = self._pool & ((1 << count) - 1)
        self._pool >>= count
        self._left -= count
        return value

    def key(self) -> bytes:
        return os.urandom(32)


_system_sources: weakref.WeakSet[SystemSource] = weakref.WeakSet()


def _forget_read_ahead() -> None:
    for source in _system_sources:
        source.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_read_ahead)


class SeededSource:
    """Repeatable bits (SHA-256 in counter mode) for tests and simulation; marks whatever it noises."""

    seeded = True

    def __init__(self, seed: int | str) -> None:
        self._seed = hashlib.sha256(f"covey-seeded-noise:{seed}".encode()).digest()
        self._counter = 0
        self._pool = 0
        self._left = 0

    def _block(self) -> bytes:
        self._counter += 1
        return hashlib.sha256(self._seed + self._counter.to_bytes(8)).digest()

    def bits(self, count: int) -> int:
        while count > self._left:
            self._pool |= int.from_bytes(self._block()) << self._left
            self._left += 256
        value = self._pool & ((1 << count) - 1)
        self._pool >>= count
        self._left -= count
        return value

    def key(self) -> bytes:
        return self._block()


class NoiseSource:
    """Draws exact noise from a `BitSource`. Not shared between threads: make one for each."""

    def __init__(self, source: BitSource | None = None) -> None:
        self._source: BitSource = SystemSource() if source is None else source
        self._bits = self._source.bits

    @property
    def seeded(self) -> bool:
        return self._source.seeded

    def stream_key(self) -> bytes:
        """A fresh key for a stream of noise too long to draw one by one (`privacy.grid_gaussian`)."""
        return self._source.key()

    def below(self, bound: int) -> int:
        """Uniform on [0, bound)."""
        width = (bound - 1).bit_length()
        bits = self._bits
        value = bits(width)
        while value >= bound:
            value = bits(width)
        return value

    def bernoulli(self, numerator: int, denominator: int) -> bool:
        """True with probability numerator/denominator."""
        return self.below(denominator) < numerator

    def bernoulli_exp(self, numerator: int, denominator: int) -> bool:
        """True with probability exp(-numerator/denominator), for a ratio of any size."""
        while numerator > denominator:
            if not self._bernoulli_exp_below_one(1, 1):
                return False
            numerator -= denominator
        return self._bernoulli_exp_below_one(numerator, denominator)

    def _bernoulli_exp_below_one(self, numerator: int, denominator: int) -> bool:
        # Von Neumann: the first k at which Bernoulli(x/k) fails is odd with probability exp(-x).
        # `below` stands here written out: this is the innermost loop of every draw.
        bits = self._bits
        k = 1
        bound = denominator
        while True:
            width = (bound - 1).bit_length()
            value = bits(width)
            while value >= bound:
                value = bits(width)
            if value >= numerator:
                return k & 1 == 1
            k += 1
            bound += denominator

    def geometric_exp(self, numerator: int, denominator: int) -> int:
        """k >= 0 with probability proportional to exp(-k·numerator/denominator)."""
        # First exp(-u/denominator) on a fine scale of 1/denominator, then whole units of e^-1; the
        # result on that scale is geometric, and its floor by `numerator` is the one asked for.
        while True:
            fine = self.below(denominator)
            if self._bernoulli_exp_below_one(fine, denominator):
                break
        whole = 0
        while self._bernoulli_exp_below_one(1, 1):
            whole += 1
        return (fine + denominator * whole) // numerator

    def discrete_laplace(self, scale: Fraction) -> int:
        """z with probability proportional to exp(-|z|/scale)."""
        if scale <= 0:
            raise InvalidTerms("noise needs a scale above 0; nothing was drawn")
        while True:
            magnitude = self.geometric_exp(scale.denominator, scale.numerator)
            negative = self._bits(1)
            # Zero has two signs; keeping both would count it twice.
            if not (negative and magnitude == 0):
                return -magnitude if negative else magnitude

    def discrete_laplace_vector(self, scale: Fraction, size: int) -> list[int]:
        """`size` independent draws."""
        return [self.discrete_laplace(scale) for _ in range(size)]

    def discrete_gaussian(self, variance: Fraction) -> int:
        """z with probability proportional to exp(-z²/(2·variance))."""
        if variance <= 0:
            raise InvalidTerms("noise needs a variance above 0; nothing was drawn")
        # Rejection from a discrete Laplace of about the same width.
        width = math.isqrt(variance.numerator // variance.denominator) + 1
        laplace = Fraction(width)
        while True:
            z = self.discrete_laplace(laplace)
            # exp(-(|z| - variance/width)² / (2·variance)), as one exact ratio
            offset = abs(z) - variance / width
            exponent = offset * offset / (2 * variance)
            if self.bernoulli_exp(exponent.numerator, exponent.denominator):
                return z

    def discrete_gaussian_vector(self, variance: Fraction, size: int) -> list[int]:
        """`size` independent draws."""
        return [self.discrete_gaussian(variance) for _ in range(size)]


def exp_floor(exponent: Fraction, bits: int) -> int:
    """floor(exp(exponent)·2**bits), exactly: the precision grows until the floor is certain."""
    digits = 20 + int(bits * 0.302) + max(0, int(exponent * 0.4343) + 1)
    while True:
        with localcontext() as context:
            context.prec = digits
            context.rounding = ROUND_FLOOR
            ratio = Decimal(exponent.numerator) / Decimal(exponent.denominator)
            slack = abs(ratio).scaleb(2 - digits) if ratio else Decimal(0)
            low = int((ratio - slack).exp().next_minus() * 2**bits)
            high = int((ratio + slack).exp().next_plus() * 2**bits)
        if low == high or exponent == 0:
            return high if exponent else 1 << bits
        digits *= 2
