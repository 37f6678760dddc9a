"""Threads hand back results in order, use their memory again, and stop when told; no thread count of torch is lost."""

from __future__ import annotations

import threading

import pytest
import torch

from server_kit.errors import InvalidSetting
from server_kit.simulation.training import LocalTask, Trainer, train
from tests.server_kit.simulation.training.fleet import SPECS, fleet

TASK = LocalTask(0.1, batch_size=4)


def training_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("training")]


def test_memory_does_not_grow_with_the_number_of_chunks():
    spec, data = SPECS["mlp"], fleet(SPECS["mlp"], (12,) * 40)
    with Trainer(spec, workers=2, devices_per_chunk=2) as trainer:
        chunks = trainer.train_in_chunks(spec.initial(1), data, list(data), TASK, seed=1)
        places = [chunk.updates.data_ptr() for chunk in chunks]
    assert len(places) == 20
    assert len(set(places)) <= 3


def test_a_chunk_is_whole_until_the_next_one_is_asked_for():
    spec, data = SPECS["mlp"], fleet(SPECS["mlp"], (12,) * 12)
    with Trainer(spec, workers=3, devices_per_chunk=1) as trainer:
        expected = trainer.train(spec.initial(1), data, list(data), TASK, seed=1).updates
        for chunk in trainer.train_in_chunks(spec.initial(1), data, list(data), TASK, seed=1):
            for position, update in zip(chunk.positions, chunk.updates, strict=True):
                torch.testing.assert_close(update, expected[position])


def test_a_consumer_may_leave_early_and_the_trainer_goes_on():
    spec, data = SPECS["mlp"], fleet(SPECS["mlp"], (12,) * 12)
    with Trainer(spec, workers=2, devices_per_chunk=1) as trainer:
        for _ in range(5):
            chunks = trainer.train_in_chunks(spec.initial(1), data, list(data), TASK, seed=1)
            next(iter(chunks))
            del chunks
        result = trainer.train(spec.initial(1), data, list(data), TASK, seed=1)
    assert result.updates.abs().sum(dim=1).min() > 0


def test_two_passes_at_once_are_refused_and_the_first_goes_on():
    spec, data = SPECS["mlp"], fleet(SPECS["mlp"], (12,) * 12)
    with Trainer(spec, workers=1, devices_per_chunk=1) as trainer:
        chunks = trainer.train_in_chunks(spec.initial(1), data, list(data), TASK, seed=1)
        next(chunks)
        with pytest.raises(InvalidSetting, match="one pass at a time"):
            trainer.train(spec.initial(1), data, list(data), TASK, seed=1)
        assert len(list(chunks)) == 11


def test_memory_that_held_what_is_not_a_number_is_clean_again():
    for name in ("logistic", "mlp", "cnn"):
        spec = SPECS[name]
        data = fleet(spec)
        sick = fleet(spec)
        sick.x[:] = torch.nan
        with Trainer(spec, workers=1) as trainer:
            for task in (TASK, LocalTask(0.1, batch_size=4, epochs=3, momentum=0.5, clip_norm=1.0)):
                before = trainer.train(spec.initial(1), data, list(data), task, seed=1).updates
                assert trainer.train(spec.initial(1), sick, list(data), task, seed=1).updates.isnan().any()
                assert torch.equal(trainer.train(spec.initial(1), data, list(data), task, seed=1).updates, before)


def test_an_error_in_a_chunk_reaches_the_caller_and_the_trainer_goes_on():
    spec, data = SPECS["mlp"], fleet(SPECS["mlp"])
    with Trainer(spec, workers=2, devices_per_chunk=1) as trainer:
        good = data.y.clone()
        data.y[:] = 99
        with pytest.raises((RuntimeError, IndexError)):
            trainer.train(spec.initial(1), data, ["d0", "d1", "d2"], TASK, seed=1)
        data.y[:] = good
        assert trainer.train(spec.initial(1), data, ["d0"], TASK, seed=1).updates.isfinite().all()


def test_threads_stop_with_the_trainer_and_torch_keeps_its_own():
    torch.set_num_threads(2)
    spec, data = SPECS["mlp"], fleet(SPECS["mlp"])
    seen = []
    with Trainer(spec, devices_per_chunk=1) as trainer:
        trainer.train(spec.initial(1), data, list(data), TASK, seed=1)
        assert len(training_threads()) == 2
        assert torch.get_num_threads() == 2
        seen = list(trainer._workers.results([lambda *_: torch.get_num_threads()] * 4))
    assert seen == [1, 1, 1, 1]
    assert training_threads() == []
    train(spec, spec.initial(1), data, ["d0"], TASK, seed=1)
    assert training_threads() == []


def test_nobody_to_train_is_no_error():
    spec, data = SPECS["mlp"], fleet(SPECS["mlp"])
    result = train(spec, spec.initial(1), data, [], TASK, seed=1)
    assert result.updates.shape == (0, spec.layout.size)


@pytest.mark.parametrize("settings", [{"workers": 0}, {"devices_per_chunk": 0}])
def test_a_trainer_without_workers_is_refused(settings):
    with pytest.raises(InvalidSetting, match="nothing was started"):
        Trainer(SPECS["mlp"], **settings)


def test_a_start_or_mask_of_another_size_is_refused():
    spec, data = SPECS["mlp"], fleet(SPECS["mlp"])
    with pytest.raises(InvalidSetting, match="cannot hold"):
        train(spec, spec.initial(1)[:-1], data, ["d0"], TASK, seed=1)
    masked = LocalTask(0.1, mask=torch.ones(3, dtype=torch.bool))
    with pytest.raises(InvalidSetting, match="cannot hold"):
        train(spec, spec.initial(1), data, ["d0"], masked, seed=1)
