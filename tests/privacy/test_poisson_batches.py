"""Batches are drawn as the accountant assumes: every record by its own coin."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from privacy.key_stream import KeyStream
from privacy.randomness import NoiseSource, SeededSource
from privacy.training.poisson_batches import PoissonBatches

NUM_RECORDS, NUM_BATCHES = 50, 20_000
Draw = Callable[[], np.ndarray]


def source(seed: object) -> NoiseSource:
    return NoiseSource(SeededSource(str(seed)))


def poisson(rate: Fraction, seed: object = 0) -> Draw:
    return PoissonBatches(source(seed), rate, NUM_RECORDS).draw


def inclusions(draw: Draw) -> np.ndarray:
    """One row a batch, one column a record."""
    drawn = np.zeros((NUM_BATCHES, NUM_RECORDS))
    for row in drawn:
        row[draw()] = 1
    return drawn


def faults(drawn: np.ndarray, rate: Fraction) -> list[str]:
    """How batches differ from independent coins of probability `rate`; each test errs once in 100 000."""
    probability = float(rate)
    found = []
    expected = NUM_BATCHES * probability
    statistic = ((drawn.sum(0) - expected) ** 2 / (expected * (1 - probability))).sum()
    if not 1e-5 < stats.chi2.sf(statistic, NUM_RECORDS) < 1 - 1e-5:
        found.append("frequencies")
    sizes = np.bincount(drawn.sum(1).astype(int), minlength=NUM_RECORDS + 1)
    theory = stats.binom.pmf(np.arange(NUM_RECORDS + 1), NUM_RECORDS, probability) * NUM_BATCHES
    common = theory >= 10
    observed = np.append(sizes[common], sizes[~common].sum())
    if stats.chisquare(observed, np.append(theory[common], theory[~common].sum())).pvalue < 1e-5:
        found.append("sizes")
    centred = (drawn - probability) / np.sqrt(probability * (1 - probability))
    if abs((centred[1:] * centred[:-1]).mean()) > 4.5 / np.sqrt(NUM_BATCHES * NUM_RECORDS):
        found.append("successive batches")
    if abs((centred[:, 1:] * centred[:, :-1]).mean()) > 4.5 / np.sqrt(NUM_BATCHES * NUM_RECORDS):
        found.append("neighbouring records")
    return found


@pytest.mark.statistical
@pytest.mark.parametrize("rate", [Fraction(1, 25), Fraction(1, 3), Fraction(9, 10)])
def test_every_record_enters_by_its_own_coin(rate):
    assert faults(inclusions(poisson(rate)), rate) == []


def fixed_size(rng: np.random.Generator) -> Draw:
    return lambda: rng.permutation(NUM_RECORDS)[: NUM_RECORDS // 5]


def shuffled_epochs(rng: np.random.Generator) -> Draw:
    waiting: list[np.ndarray] = []

    def draw() -> np.ndarray:
        if not waiting:
            waiting.extend(np.split(rng.permutation(NUM_RECORDS), 5))
        return waiting.pop()

    return draw


def one_percent_too_often(rng: np.random.Generator) -> Draw:
    return lambda: np.flatnonzero(rng.random(NUM_RECORDS) < 0.2 * 1.02)


@pytest.mark.statistical
@pytest.mark.parametrize("broken", [fixed_size, shuffled_epochs, one_percent_too_often])
def test_sampling_that_was_not_paid_for_is_caught(broken):
    assert faults(inclusions(broken(np.random.default_rng(0))), Fraction(1, 5))


class ScriptedStream:
    """A key stream whose words are given; `draw` compares them with the rate."""

    def __init__(self, words: list[int], more: list[int]) -> None:
        self.words, self.more = words, more

    def fill(self, words: np.ndarray, zeros: np.ndarray) -> None:
        words[:] = self.words

    def word(self) -> int:
        return self.more.pop(0)


@given(st.fractions(min_value=Fraction(1, 10**9), max_value=1), st.lists(st.integers(0, 2**32 - 1), min_size=8))
def test_a_word_enters_exactly_where_its_number_lies_below_the_rate(rate, words):
    near = int(rate * 2**32)
    words = [*words, *(min(2**32 - 1, max(0, near + offset)) for offset in (-1, 1))]
    words = [word for word in words if word != near]
    batches = PoissonBatches(source("scripted"), rate, len(words))
    vars(batches)["_stream"] = ScriptedStream(words, [])
    expected = [index for index, word in enumerate(words) if Fraction(word, 2**32) < rate]
    assert batches.draw().tolist() == expected


@pytest.mark.parametrize(
    ("rate", "more", "enters"),
    [
        (Fraction(1, 3), [0x55555554], True),
        (Fraction(1, 3), [0x55555556], False),
        (Fraction(1, 3), [0x55555555, 0x55555555, 0], True),
        (Fraction(1, 3), [0x55555555, 0x55555555, 2**32 - 1], False),
        (Fraction(1, 4), [], False),  # nothing is left to compare: the number is at least 1/4
        (Fraction(1, 2**40), [0], True),
        (Fraction(1, 2**40), [2**24], False),
    ],
)
def test_a_tie_is_settled_by_the_bits_that_follow(rate, more, enters):
    batches = PoissonBatches(source("tie"), rate, 1)
    vars(batches)["_stream"] = ScriptedStream([int(rate * 2**32)], more)
    assert batches.draw().tolist() == ([0] if enters else [])
    assert more == []


def test_rate_one_takes_everybody_and_no_records_give_empty_batches():
    assert poisson(Fraction(1))().tolist() == list(range(NUM_RECORDS))
    assert PoissonBatches(source(0), Fraction(1, 2), 0).draw().tolist() == []


def test_batches_come_from_the_operating_systems_source(monkeypatch):
    def batches() -> list[list[int]]:
        np.random.default_rng(7)
        drawn = PoissonBatches(NoiseSource(), Fraction(1, 2), 200)
        return [drawn.draw().tolist() for _ in range(2)]

    (first, second), (third, _) = batches(), batches()
    assert first != second
    assert first != third


def test_the_same_seed_gives_the_same_batches():
    assert poisson(Fraction(1, 2), "a")().tolist() == poisson(Fraction(1, 2), "a")().tolist()


def test_key_stream_is_aes_in_counter_mode():
    # AES-256 of the zero block under the zero key: NIST's known answer.
    words = np.empty(4, dtype=np.uint32)
    KeyStream(bytes(32)).fill(words, np.zeros_like(words))
    assert words.tobytes().hex() == "dc95c078a2408989ad48a21492842087"
    assert KeyStream(bytes(32)).word() == 0xDC95C078
