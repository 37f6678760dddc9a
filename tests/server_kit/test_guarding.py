"""The guard before a preset's rule: which one it is, what it does to a round, and that it reads no more than needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from server_kit.aggregation import CasaDecay, FedAsync, FedAvg, FedBuff, FedYogi, Guarded, NormBound, QFedAvg
from server_kit.aggregation.streaming import Held
from server_kit.config import ServerConfig
from server_kit.errors import InvalidSetting
from server_kit.guarding import guard_of, guarded, usual_length
from server_kit.interfaces import Memory, Update
from server_kit.presets import PRESETS
from server_kit.round import Usable

SIZE = 50


def updates(count: int, seed: int = 0) -> list[Update]:
    generator = torch.Generator().manual_seed(seed)
    return [Update(f"d{number}", torch.randn(SIZE, generator=generator)) for number in range(count)]


class InPieces:
    """Updates that can be read in parts; counts how many numbers were read whole."""

    def __init__(self, held: list[Update]) -> None:
        self.held, self.read_whole = held, 0

    def __len__(self) -> int:
        return len(self.held)

    def __iter__(self) -> Iterator[Update]:
        for update in self.held:
            self.read_whole += len(update.delta)
            yield replace(update, delta=update.delta.clone())

    @property
    def has_parts(self) -> bool:
        return True

    def parts(self, start: int, stop: int) -> Iterator[torch.Tensor]:
        return (update.delta[start:stop].clone() for update in self.held)


def trimmed(held: list[Update], cut: int) -> torch.Tensor:
    values = torch.stack([update.delta for update in held]).double().sort(dim=0).values
    return values[cut : len(held) - cut].mean(dim=0)


@pytest.mark.parametrize(("devices", "cut"), [(1, 0), (2, 0), (3, 1), (4, 1), (5, 1), (9, 2), (20, 5), (21, 5)])
def test_a_trimmed_mean_leaves_out_a_quarter_at_either_end_and_one_of_three(devices, cut):
    held = updates(devices)
    assert Guarded(FedAvg()).cut(devices) == cut
    torch.testing.assert_close(
        Guarded(FedAvg()).aggregate(torch.zeros(SIZE), Held(held), {}), trimmed(held, cut).float()
    )


def test_a_median_is_the_middle():
    held = updates(8)
    after = Guarded(FedAvg(), "coordinate_median").aggregate(torch.zeros(SIZE), Held(held), {})
    torch.testing.assert_close(after, trimmed(held, 3).float())


def test_an_adaptive_server_takes_its_step_from_the_centre():
    held = updates(8)
    memory: Memory = {}
    plain: Memory = {}
    after = Guarded(FedYogi()).aggregate(torch.zeros(SIZE), Held(held), memory)
    centre = Update("", trimmed(held, 2).float())
    assert torch.equal(after, FedYogi().aggregate(torch.zeros(SIZE), Held([centre]), plain))
    assert torch.equal(memory["first"], plain["first"])


def test_a_buffer_is_discounted_for_staleness_before_it_is_trimmed():
    held = [replace(update, staleness=number) for number, update in enumerate(updates(6))]
    late = [replace(update, delta=update.delta * (1 + update.staleness) ** -0.5) for update in held]
    after = Guarded(FedBuff()).aggregate(torch.zeros(SIZE), Held(held), {})
    torch.testing.assert_close(after, trimmed(late, 1).float())
    dropped = Guarded(FedBuff(most_staleness=2)).aggregate(torch.zeros(SIZE), Held(held), {})
    assert not torch.equal(dropped, after)


def test_weights_are_not_believed():
    held = updates(9)
    boasting = [replace(held[0], weight=1e6), *held[1:]]
    rule = Guarded(FedAvg())
    plain = rule.aggregate(torch.zeros(SIZE), Held(held), {})
    assert torch.equal(rule.aggregate(torch.zeros(SIZE), Held(boasting), {}), plain)
    assert not torch.equal(
        FedAvg().aggregate(torch.zeros(SIZE), Held(boasting), {}), FedAvg().aggregate(torch.zeros(SIZE), Held(held), {})
    )


@pytest.mark.parametrize("liars", [1, 2])
def test_one_liar_of_nine_moves_a_guarded_model_within_the_others_and_a_mean_anywhere(liars):
    held = updates(9)
    lying = [Update("liar", torch.full((SIZE,), 1e6)) for _ in range(liars)] + held[liars:]
    honest = torch.stack([update.delta for update in held[liars:]])
    rule = NormBound(Guarded(FedAvg()), 1e9)
    after = rule.aggregate(torch.zeros(SIZE), Held(lying), {})
    assert ((after >= honest.min(dim=0).values) & (after <= honest.max(dim=0).values)).all()
    assert FedAvg().aggregate(torch.zeros(SIZE), Held(lying), {}).min() > 1e4


def test_three_liars_of_nine_are_more_than_it_holds():
    lying = [Update(f"liar{number}", torch.full((SIZE,), 1e6)) for number in range(3)] + updates(6)
    assert Guarded(FedAvg()).aggregate(torch.zeros(SIZE), Held(lying), {}).max() > 1e4


def test_a_bounded_round_may_find_its_bound_in_its_own_median():
    held = [*updates(8), Update("liar", torch.full((SIZE,), 1e6))]
    lengths = sorted(float(update.delta.norm()) for update in held)
    after = NormBound(FedAvg(weighted=False)).aggregate(torch.zeros(SIZE), Held(held), {})
    assert float(after.norm()) <= lengths[4]


@pytest.mark.parametrize(
    "rule", [Guarded(FedAvg()), NormBound(Guarded(FedAvg()), 5.0), NormBound(FedAvg(), 5.0)], ids=repr
)
def test_parts_give_what_whole_updates_give(rule):
    spoilt = [*updates(9), Update("nan", torch.full((SIZE,), torch.nan)), Update("odd", torch.zeros(3))]
    pieces = InPieces(spoilt)
    whole = rule.aggregate(torch.zeros(SIZE), Usable(Held(spoilt), torch.Size([SIZE])), {})
    assert torch.equal(rule.aggregate(torch.zeros(SIZE), Usable(pieces, torch.Size([SIZE])), {}), whole)


def test_whole_updates_are_read_once_however_many_blocks_there_are(monkeypatch):
    from server_kit.aggregation import robust

    monkeypatch.setattr(robust, "_FEWEST_VALUES", 20)
    pieces = InPieces(updates(9))
    NormBound(Guarded(FedAvg()), 5.0).aggregate(torch.zeros(SIZE), Usable(pieces, torch.Size([SIZE])), {})
    assert pieces.read_whole == 9 * SIZE


@pytest.mark.parametrize("rule", [QFedAvg(), FedAsync(), CasaDecay(), Guarded(FedAvg())], ids=repr)
def test_a_rule_that_wants_more_than_a_mean_is_refused(rule):
    with pytest.raises(InvalidSetting, match="wants more than a mean"):
        Guarded(rule)


def config(text: str) -> ServerConfig:
    return ServerConfig.of_text(text)


EXPECTED = {"qfedavg": "norm_bound", "fedasync": "norm_bound", "casa": "norm_bound", "casa_plus": "norm_bound"}
EXPECTED |= {"cfl_async": "norm_bound", "ifca_async": "norm_bound"}


@pytest.mark.parametrize("preset", sorted(PRESETS))
@pytest.mark.parametrize("level", ["record", "device"])
def test_auto_is_a_trimmed_mean_where_the_preset_takes_a_mean(preset, level):
    read = config(f'[federation]\npreset = "{preset}"\n[privacy]\nlevel = "{level}"\n')
    strategy = read.federation.strategy(level)
    assert guard_of(read.aggregation, strategy, 20) == EXPECTED.get(preset, "trimmed_mean")
    rule = guarded(strategy, read, 650).aggregator
    assert isinstance(rule, NormBound)
    assert rule.bound == usual_length(read, strategy, 650)


def test_two_updates_cannot_be_compared():
    read = config('[federation]\npreset = "fedavg"\nparticipants = 2\n')
    assert guard_of(read.aggregation, read.federation.strategy("record"), 2) == "norm_bound"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[federation]\npreset = "casa"\n[aggregation]\nguard = "trimmed_mean"', "a model is made of 1 updates"),
        ('[federation]\npreset = "qfedavg"\n[aggregation]\nguard = "coordinate_median"', "QFedAvg wants more"),
    ],
)
def test_a_guard_that_cannot_be_is_refused_in_a_sentence(text, said):
    read = config(text)
    with pytest.raises(InvalidSetting, match=said):
        guarded(read.federation.strategy("record"), read, 650)


def test_none_leaves_the_preset_as_it_is():
    read = config('[federation]\npreset = "fedyogi"\n[aggregation]\nguard = "none"')
    strategy = read.federation.strategy("record")
    assert guarded(strategy, read, 650) is strategy


def test_the_usual_length_is_that_of_a_task():
    """The aggregator and the door reckon alike."""
    from server_kit.daemon import norms
    from tests.server_kit.daemon.test_norms import task

    read = config(
        '[federation]\npreset = "fedprox"\n[training]\nlearning_rate = 2.0\n'
        '[privacy]\nnoise_multiplier = "1.5"\nsampling_rate = "1/10"'
    )
    length = usual_length(read, read.federation.strategy("record"), 650)
    assert length == pytest.approx(norms.longest(task(proximal=1.0), 1))


@pytest.mark.parametrize(("start", "stop"), [(0, 23), (0, 4), (3, 11), (10, 23), (22, 23)])
def test_some_coordinates_of_a_stored_update_are_those_of_the_whole(start, stop):
    """The payload has tensors by name, the model has them in its own order."""
    import numpy as np

    from device_sdk.wire import messages as m
    from device_sdk.wire.task_terms import mechanism_of
    from privacy.packing import pack_array
    from server_kit.daemon.stored_updates import decoded, decoded_part
    from server_kit.layout import Layout
    from server_kit.store.memory import MemoryPayload
    from tests.server_kit.daemon.test_norms import task

    layout = Layout((("z", (2, 4)), ("a", (5,)), ("m", (10,))))
    specs = tuple(m.TensorSpec(name, m.Dtype.F32, shape) for name, shape in layout.tensors)
    asked = task()
    asked = replace(asked, model=replace(asked.model, tensors=specs))
    payload = MemoryPayload(pack_array(np.arange(23, dtype=np.int64) - 11, mechanism_of(asked).width_bytes))
    whole = decoded(asked, payload, layout)
    assert torch.equal(decoded_part(asked, payload, layout, start, stop), whole[start:stop])
