"""How many rows are computed at once: always the same number, so that no record changes how others are computed.

Libraries of linear algebra add up in another order for another number of rows, and some for the last rows of a
batch. One record more would then change the last bits of what all others contribute, and a model made for it turns
last bits into whole gradients. So every batch is filled up to a fixed number of rows with made-up records, and that
number is only trusted after a trial: one made-up record in every row must come out the same, bit for bit, in all.
The trial rests on one assumption, that the order of operations follows from shapes and places, not from values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NOBODY = -1
"""In the place of a record's number: a row that is only filled up."""

Found = TypeVar("Found")


def rows_at_once(wanted: int, alike: Callable[[int], bool]) -> int:
    """`wanted`, or else the next power of two below, at which all rows come out alike; one row is always its own."""
    rows = wanted
    while rows > 1 and not alike(rows):
        rows = 1 << (rows - 1).bit_length() - 1
    return rows


def in_rows(chosen: NDArray[np.int64], rows: int) -> Iterator[NDArray[np.int64]]:
    """The chosen records in parts of exactly `rows` places, the last ones of which may be nobody's."""
    import numpy as np

    for start in range(0, len(chosen), rows):
        part = chosen[start : start + rows]
        yield np.concatenate([part, np.full(rows - len(part), NOBODY, dtype=np.int64)])


def without_those_that_raise(
    attempt: Callable[[Sequence[int]], Found], places: Sequence[int]
) -> Iterator[tuple[Sequence[int], Found | None]]:
    """What `attempt` finds for some places at a time; None for a place that makes it raise by itself.

    What the attempt is made on has been tried on made-up records, so an error comes from what a record contains, such
    as an index that does not exist. Halving finds it.
    """
    if not places:
        return
    try:
        found = attempt(places)
    except MemoryError:
        raise
    except Exception as error:  # what a model may raise is not ours to list
        if type(error).__name__ == "OutOfMemoryError":  # torch's, which need not be there
            raise
        if len(places) == 1:
            yield places, None
            return
        half = (len(places) + 1) // 2
        for part in (places[:half], places[half:]):
            yield from without_those_that_raise(attempt, part)
        return
    # Not inside `try`: an error of whoever is handed this is not the record's.
    yield places, found
