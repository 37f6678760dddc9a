"""Clipped gradients in whole numbers: that one record counts for at most the clip norm is checked, not hoped.

A record's clipped gradient is a vector of whole steps of clip_norm/2**STEP_BITS, and the sum of the squares of its
coordinates is at most 4**STEP_BITS: an exact comparison, for whole numbers below 2**53 have no rounding errors in
float64. For the same reason sums over records are exact, in any order and by any library.

Floats choose the factor that a gradient is multiplied with, and nothing rests on them: what rounding or a factor that
is off has made too long is shortened until it fits, or counts as zero.

In a dense layer a gradient is the outer product of what went in and of the gradient by what came out. Both are rounded
to whole numbers by themselves, so that their product is whole; the sum over records is then one product of matrices,
and no record's gradient is written down. All of this is written once, for NumPy's arrays and torch's (`xp` is one of
the two).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from privacy.training.step_rule import STEP_BITS

SLACK = 1 + 2.0**-10
"""Factors aim a thousandth below the clip norm, so that rounding hardly ever makes a gradient too long."""
_LONGEST = 2.0**STEP_BITS
_LONGEST_SQUARED = 4.0**STEP_BITS
_EXACT_BITS = 52
_TRIES = 4

Array = Any  # float64, NumPy's or torch's
Whole = TypeVar("Whole")


def grid_step(clip_norm: float) -> float:
    """The width of the grid, in the units of a gradient."""
    return clip_norm / _LONGEST


def scales_for(xp: Any, norms: Array, clip_norm: float) -> Array:
    """What to multiply each record's gradient with to have it clipped, in grid steps; 0 where it is not finite."""
    scales = _LONGEST / (norms * SLACK).clip(min=clip_norm)
    scales[~xp.isfinite(norms)] = 0
    return scales


def within_bound(xp: Any, scales: Array, whole: Callable[[Array], tuple[Array, Whole]]) -> Whole:
    """`whole(scales)`, its scales made smaller where a record's gradient would be longer than the clip norm.

    `whole` gives each record's exact squared length, and the gradients. A record that cannot be shortened is zero.
    """
    for _ in range(_TRIES):
        squares, gradients = whole(scales)
        over = ~(squares <= _LONGEST_SQUARED)  # also where it is no number
        if not over.any():
            return gradients
        shorter = scales * (_LONGEST / root(xp, squares) * (1 - 2.0**-30))
        shorter[~xp.isfinite(squares)] = 0
        kept, scales = scales, xp.where(over, shorter, scales)
    kept[over] = 0
    return whole(kept)[1]


def rounded(xp: Any, rows: Array, scales: Array, room: Array | None = None) -> Array:
    """Rows of floats in whole numbers, float64; one whose scale is 0 is zero, whatever it holds, for 0·NaN is NaN.

    `room` is overwritten with them, if given.
    """
    found = rows * scales[:, None] if room is None else xp.multiply(rows, scales[:, None], out=room)
    xp.round(found, out=found)
    left_out = scales == 0
    if left_out.any():
        found[left_out] = 0
    return found


def squared_lengths(xp: Any, whole: Array) -> Array:
    """Of rows of whole numbers; exact up to 2**53, and beyond it far above every bound."""
    return xp.einsum("ni,ni->n", whole, whole)


def root(xp: Any, values: Array) -> Array:
    """√, correctly rounded. Torch's on a CPU is not, so a number's root might depend on its place in the vector."""
    if xp is np or not values.is_cpu:
        return xp.sqrt(values)
    return xp.from_numpy(np.sqrt(values.numpy()))


def lengths(xp: Any, rows: Array) -> Array:
    """Norms of rows. Rounded so that sums of squares are exact: no order of adding up can change them.

    The number of rows, their place and what the other rows hold then cannot either.
    """
    bits = (_EXACT_BITS - rows.shape[1].bit_length()) // 2
    units = xp.amax(xp.abs(rows), 1) * 2.0**-bits
    whole = xp.round(rows / xp.where(units > 0, units, 1.0)[:, None])
    return root(xp, squared_lengths(xp, whole)) * units


@dataclass(frozen=True, eq=False)
class OuterProducts:
    """The gradients of a dense layer: of each record `errors` ⊗ `inputs`, rows of float64."""

    xp: Any
    errors: Array
    inputs: Array
    error_lengths: Array
    input_lengths: Array

    @classmethod
    def of(cls, xp: Any, errors: Array, inputs: Array) -> OuterProducts:
        return cls(xp, errors, inputs, lengths(xp, errors), lengths(xp, inputs))

    def squared_norms(self) -> Array:
        """Of each record's gradient; not finite where it is not."""
        return (self.error_lengths * self.input_lengths) ** 2

    def whole(self, scales: Array) -> WholeProducts:
        """The gradients times `scales`, as products of whole vectors.

        A product of length L is made of two vectors of about √L. Rounding then costs both the same share of their
        length if they share L as the fourth root of their widths does: 0.36 % for a clipped gradient of 512 by 3137.
        """
        outputs, width = self.errors.shape[1], self.inputs.shape[1]
        used = scales > 0  # elsewhere lengths may be infinite, or no numbers
        lengths_of_products = self.xp.where(used, self.error_lengths * self.input_lengths * scales, 0.0)
        shares = root(self.xp, lengths_of_products) * (width / outputs) ** 0.25
        of_inputs = _divided(self.xp, shares, self.input_lengths)
        of_errors = _divided(self.xp, scales * self.input_lengths, shares)
        errors, inputs = rounded(self.xp, self.errors, of_errors), rounded(self.xp, self.inputs, of_inputs)
        return WholeProducts(self.xp, errors, inputs)


@dataclass(frozen=True, eq=False)
class WholeProducts:
    """Of each record `errors` ⊗ `inputs`, whole numbers both."""

    xp: Any
    errors: Array
    inputs: Array

    def squares(self) -> Array:
        """The squared length of each record's product."""
        return squared_lengths(self.xp, self.errors) * squared_lengths(self.xp, self.inputs)

    def total(self) -> Array:
        """The sum of all products, exactly."""
        return self.errors.T @ self.inputs


def _divided(xp: Any, above: Array, below: Array) -> Array:
    """above/below, and 0 where there is nothing to divide by."""
    return xp.where(below > 0, above / xp.where(below > 0, below, 1.0), 0.0)
