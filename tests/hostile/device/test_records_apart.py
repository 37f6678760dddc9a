"""One record never changes what others contribute: not their gradients, not their votes, not by a single bit.

The server makes the models, so it can make ones that turn last bits into gradients and votes. One record more, one that
raises, one of another shape: whatever it is, the others count for exactly what they would have counted for.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from device_sdk.ballot import Ballot
from device_sdk.evaluating import Polling
from device_sdk.trainers import InvalidSettings, ModelMismatch, NumpyTrainer, TorchTrainer
from device_sdk.trainers import dense_rows as rows_of_numpy
from device_sdk.trainers.protocol import go_on
from device_sdk.wire import messages as m
from device_sdk.wire.tensors import blob_of, model_bytes, model_specs
from privacy import NoiseSource, SeededSource
from privacy.mechanisms.dp_sgd import DpSgd
from privacy.training.dense_update import add_clipped_sum, add_whole_gradients

RNG = np.random.default_rng(0)
RECORDS, FEATURES, HIDDEN = 38, 64, 32
INPUTS = RNG.uniform(0, 1, (RECORDS, FEATURES)).astype(np.float32)
LABELS = np.zeros(RECORDS, dtype=np.int64)


def same_function_twice(seed):
    """Two models that compute the same, added up in another order: which is better rests on rounding alone."""
    rng = np.random.default_rng(seed)
    first, last = ((rng.normal(size=shape) * 2).astype(np.float32) for shape in ((HIDDEN, FEATURES), (2, HIDDEN)))
    order = rng.permutation(HIDDEN)
    return {"a0.weight": first, "a1.weight": last}, {"a0.weight": first[order], "a1.weight": last[:, order]}


def by_rounding(seed):
    """A function minus itself, then a huge weight: a record's gradient is all or nothing, as the last bits fall."""
    rng = np.random.default_rng(seed)
    half = (rng.normal(size=(HIDDEN, FEATURES)) * 2).astype(np.float32)
    sizes, order = (rng.normal(size=HIDDEN) * 2).astype(np.float32), rng.permutation(HIDDEN)
    return {
        "a0.weight": np.concatenate([half, half[order]]),
        "a1.weight": np.concatenate([sizes, -sizes[order]])[None],
        "a2.weight": np.array([[0.0], [1e12]], np.float32),
    }


def trainer(count):
    return NumpyTrainer(INPUTS[:count], LABELS[:count])


def votes_that_flip(counts, models):
    """Of records that stay, when the last one is removed."""
    ballots = {}
    for count in {count - gone for count in counts for gone in (0, 1)}:
        ballot = Ballot(count)
        for choice, model in enumerate(models):
            ballot.cast(choice, trainer(count).record_losses(model))
        ballots[count] = ballot.votes
    return sum(a != b for n in counts for a, b in zip(ballots[n][: n - 1], ballots[n - 1], strict=True))


def whole_sum(data, chosen, weights):
    sums = {name: np.zeros(part.shape) for name, part in weights.items()}
    add_whole_gradients(data.factors(weights, np.asarray(chosen)), 1.0, sums)
    return np.concatenate([sums[name].ravel() for name in sorted(sums)])


def farthest_moved(seeds):
    """By removing one record, in clip norms."""
    worst = 0.0
    for seed in seeds:
        weights = by_rounding(seed)
        with_all = whole_sum(trainer(RECORDS).training_data(weights), np.arange(RECORDS), weights)
        without = whole_sum(trainer(RECORDS - 1).training_data(weights), np.arange(RECORDS - 1), weights)
        worst = max(worst, float(np.linalg.norm(with_all - without)) / 2**24)
    return worst


@pytest.fixture
def as_many_rows_as_records(monkeypatch):
    """The twin: what a batch holds decides how many rows a product of matrices sees."""
    monkeypatch.setattr(
        rows_of_numpy.RowsApart,
        "_each",
        lambda self, inputs, labels, compute: iter([(len(labels), compute((inputs, labels)))] if len(labels) else []),
    )


COUNTS = [*range(2, RECORDS + 1)]


def test_no_vote_changes_when_another_record_is_removed():
    assert sum(votes_that_flip(COUNTS, same_function_twice(seed)) for seed in range(4)) == 0


def test_votes_change_where_rows_are_as_many_as_records(as_many_rows_as_records):
    flipped = sum(votes_that_flip(COUNTS, same_function_twice(seed)) for seed in range(4))
    if not flipped:
        pytest.skip("this machine's BLAS adds up in one order for every number of rows")


def test_removing_a_record_moves_a_sum_by_no_more_than_the_clip_norm():
    assert farthest_moved(range(60)) <= 1


def test_removing_a_record_moves_a_sum_by_more_where_rows_are_as_many_as_records(as_many_rows_as_records):
    if farthest_moved(range(60)) <= 1:
        pytest.skip("this machine's BLAS adds up in one order for every number of rows")


@pytest.mark.parametrize("odd", [math.nan, math.inf, 1e38, 1e-45, 0.0])
def test_replacing_a_record_leaves_the_others_as_they_were(odd):
    weights = by_rounding(3)
    changed = INPUTS.copy()
    changed[7] = odd
    alone = np.array([7])
    for inputs in (INPUTS, changed):
        data = NumpyTrainer(inputs, LABELS).training_data(weights)
        others = whole_sum(data, np.arange(RECORDS), weights) - whole_sum(data, alone, weights)
        expected = whole_sum(trainer(RECORDS).training_data(weights), np.delete(np.arange(RECORDS), 7), weights)
        assert np.array_equal(others, expected)


def test_subnormal_factors_do_not_let_a_record_count_twice():
    weights = {"l.weight": np.zeros((2, 8), np.float32), "l.bias": np.zeros(2, np.float32)}
    for clip_norm, size in itertools.product(np.geomspace(1e-12, 1e-5, 12), np.geomspace(1e30, 1.19e38, 12)):
        data = NumpyTrainer(np.full((1, 8), size, np.float32), np.array([0])).training_data(weights)
        sums = {name: np.zeros(part.shape) for name, part in weights.items()}
        add_clipped_sum(data.factors(weights, np.array([0])), float(clip_norm), sums)
        assert np.sqrt(sum(np.square(part).sum() for part in sums.values())) <= clip_norm


class Tags(nn.Module):
    """A word that it does not know makes it raise."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(50, 8), nn.Linear(8, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.words(tokens).mean(1))


TOKENS = torch.from_numpy(np.random.default_rng(1).integers(0, 50, (200, 6)))
TARGETS = torch.zeros(200, dtype=torch.int64)
TAGS = {name: np.zeros(tuple(part.shape), np.float32) for name, part in Tags().named_parameters()}
MODELS = [TAGS | {"out.bias": np.array(bias, np.float32)} for bias in ([1, -1], [-1, 1])]


def with_an_unknown_word(number):
    tokens = TOKENS.clone()
    tokens[number, 0] = 50
    return tokens


def polled(tokens):
    tagger = TorchTrainer(Tags(), nn.CrossEntropyLoss(), (tokens, TARGETS))
    blobs = {blob_of(content).sha256: content for content in map(model_bytes, MODELS)}
    models = tuple(m.ModelReference(1, blob_of(model_bytes(w)), model_specs(w)) for w in MODELS)
    poll = Polling(lambda blob: memoryview(blobs[blob.sha256]), tagger.record_losses, go_on)
    return poll.of(models), poll.failure, tagger.unreadable_records


def test_a_record_that_makes_the_model_raise_loses_its_own_vote_and_no_other():
    votes, failure, noted = polled(TOKENS)
    assert (len(votes), failure, noted) == (200, None, False)
    odd_votes, odd_failure, odd_noted = polled(with_an_unknown_word(123))
    assert (len(odd_votes), odd_failure, odd_noted) == (200, None, True)
    assert [vote for number, vote in enumerate(odd_votes) if number != 123] == votes[:123] + votes[124:]
    assert odd_votes[123] == 0


def test_one_vote_for_all_would_be_lost_if_nobody_looked_for_the_record(monkeypatch):
    def not_halving(attempt, places):
        yield places, attempt(places)

    monkeypatch.setattr("device_sdk.trainers.torch_evaluation.without_those_that_raise", not_halving)
    assert polled(with_an_unknown_word(123))[0] == []


def update_of(data, weights, *, seed="apart"):
    terms = DpSgd({name: part.shape for name, part in weights.items()}, 1, "0.00001", 1, 3, 10, "0.5", grid_bits=20)
    terms.check(data)
    return terms.decode_steps(terms.answer(data, NoiseSource(SeededSource(seed))).payload)


def test_a_record_that_raises_in_training_leaves_the_others_as_they_were():
    random = {name: np.random.default_rng(2).normal(size=part.shape).astype(np.float32) for name, part in TAGS.items()}
    odd = TorchTrainer(Tags(), nn.CrossEntropyLoss(), (with_an_unknown_word(31), TARGETS))
    # A label that does not exist makes no model raise, and counts as zero too.
    targets = TARGETS.clone()
    targets[31] = 7
    ordinary = TorchTrainer(Tags(), nn.CrossEntropyLoss(), (TOKENS, targets))
    assert np.array_equal(*(update_of(each.training_data(random), random) for each in (odd, ordinary)))
    assert odd.unreadable_records
    assert not ordinary.unreadable_records


class Items(Dataset[Any]):
    """Images that are read one by one."""

    def __init__(self, odd=None, number=7, count=40):
        self.odd, self.number, self.count = odd, number, count

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        if number == self.number and self.odd is not None:
            return self.odd()
        return torch.from_numpy(INPUTS[number % RECORDS]), number % 10


def unreadable():
    raise OSError("a broken file")


ODD_ITEMS = {
    "raises": unreadable,
    "another shape": lambda: (torch.zeros(63), 1),
    "another type": lambda: (torch.zeros(64, dtype=torch.int64), 1),
    "a target of another type": lambda: (torch.zeros(64), 0.5),
    "no pair": lambda: torch.zeros(64),
    "three parts": lambda: (torch.zeros(64), 1, 2),
    "text": lambda: ("image", "label"),
    "nothing": lambda: None,
}
SOFTMAX = {name: np.zeros(tuple(p.shape), np.float32) for name, p in nn.Linear(FEATURES, 10).named_parameters()}


def of_items(items, **settings):
    return TorchTrainer(nn.Linear(FEATURES, 10), nn.CrossEntropyLoss(), items, **settings)


@pytest.mark.parametrize("number", [0, 7, 39])
@pytest.mark.parametrize("odd", ODD_ITEMS)
def test_a_record_that_cannot_be_read_counts_as_zero_inside_the_mechanism(odd, number):
    reading, counting_nothing = (
        of_items(Items(ODD_ITEMS[odd], number)),
        of_items(Items(lambda: (torch.from_numpy(INPUTS[number % RECORDS]), 99), number)),
    )
    updates = [update_of(each.training_data(SOFTMAX), SOFTMAX) for each in (reading, counting_nothing)]
    assert np.array_equal(*updates)
    assert (reading.unreadable_records, counting_nothing.unreadable_records) == (True, False)
    losses, expected = (of_items(Items(each, number)).record_losses(SOFTMAX) for each in (ODD_ITEMS[odd], None))
    assert math.isinf(losses[number])
    assert np.array_equal(np.delete(losses, number), np.delete(expected, number))


class AnySize(nn.Module):
    """Takes images of any size, so it cannot tell which one is meant."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.out = nn.Conv1d(1, 2, 3, padding=1), nn.Linear(2, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.out(self.mix(inputs.unsqueeze(1)).mean(2))


def test_the_form_of_a_record_is_declared_and_not_that_of_the_first():
    weights = {name: np.ones(tuple(p.shape), np.float32) / 9 for name, p in AnySize().named_parameters()}
    odd = Items(lambda: (torch.zeros(63), 1), number=0)
    declared = TorchTrainer(AnySize(), nn.CrossEntropyLoss(), odd, example=(torch.zeros(64), 0))
    losses = declared.record_losses(weights)
    assert np.isinf(losses).tolist() == [True] + [False] * 39
    for count in (0, 1, 40):
        undeclared = TorchTrainer(AnySize(), nn.CrossEntropyLoss(), Items(count=count))
        for ask in (undeclared.training_data, undeclared.record_losses):
            with pytest.raises(InvalidSettings, match=r"example=.*nothing was booked"):
                ask(weights)


class ComparesRecords(nn.Linear):
    """Takes from each record the mean of all."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs - inputs.mean(0))


@pytest.mark.parametrize("count", [0, 1, 38])
def test_which_models_are_taken_does_not_depend_on_whether_there_is_a_record(count):
    few = NumpyTrainer(INPUTS[:count], LABELS[:count])
    few.check_model({"l.weight": (2, FEATURES)})
    with pytest.raises(ModelMismatch, match="numbers a record"):
        few.check_model({"l.weight": (2, FEATURES + 1)})
    inputs, targets = torch.from_numpy(INPUTS[:count]), torch.zeros(count, dtype=torch.int64)
    mixing = TorchTrainer(ComparesRecords(FEATURES, 10), nn.CrossEntropyLoss(), (inputs, targets))
    with pytest.raises(ModelMismatch, match="vote of its own"):
        mixing.record_losses({name: np.random.default_rng(3).normal(size=part.shape) for name, part in SOFTMAX.items()})


def test_a_trainer_without_records_still_says_how_wide_they_are():
    NumpyTrainer([], [], num_features=5).check_model({"l.weight": (2, 5)})
    for wrong in (lambda: NumpyTrainer([], []), lambda: NumpyTrainer(INPUTS, LABELS, num_features=5)):
        with pytest.raises(InvalidSettings, match=r"num_features.*nothing was kept"):
            wrong()
