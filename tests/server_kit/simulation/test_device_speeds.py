"""How long devices take follows from the seed, the device and the round, and from what they have to do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server_kit.errors import InvalidSetting
from server_kit.simulation.chance import generator, uniforms
from server_kit.simulation.device_speeds import FactorSpeeds, HaccsSpeeds, TracedSpeeds, UniformSpeeds
from server_kit.simulation.latency import Latency, RangedLinks, TracedLinks
from server_kit.simulation.ragged import Ragged

DEVICES = np.arange(200)


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "traces.npz"
    np.savez(
        path,
        device_latency_ms=np.array([10.0, 20.0, 40.0], np.float32),
        bw_mbps=np.array([8.0, 0.0, 8.0, 4.0, 4.0, 0.0, 0.0], np.float32),
        bw_offset=np.array([0, 3, 5, 7]),
    )
    return path


@pytest.fixture(params=["uniform", "haccs", "factors", "traced"])
def speeds(request, traces):
    return {
        "uniform": UniformSpeeds((1, 4), (5, 50)),
        "haccs": HaccsSpeeds(),
        "factors": FactorSpeeds(),
        "traced": TracedSpeeds(traces),
    }[request.param]


def seconds(latency, devices=DEVICES, round_number=3, *, bytes_down=1e6, bytes_up=1e6, steps=10):
    return latency.seconds(devices, round_number, bytes_down=bytes_down, bytes_up=bytes_up, steps=steps)


def steady_mbps(latency):
    assert isinstance(latency.links, RangedLinks)
    np.testing.assert_array_equal(latency.links.low_mbps, latency.links.high_mbps)
    return latency.links.low_mbps


def is_the_same_alone_and_in_company(latency, devices=DEVICES) -> bool:
    together = seconds(latency, devices)
    alone = [seconds(latency, devices[[place]])[0] for place in reversed(range(len(devices)))]
    return np.array_equal(together, alone[::-1])


class TestEverySpeed:
    def test_a_time_is_the_same_alone_and_in_company(self, speeds):
        assert is_the_same_alone_and_in_company(speeds.draw(200, 7))

    def test_the_seed_decides(self, speeds):
        first, again, other = (seconds(speeds.draw(200, seed)) for seed in (1, 1, 2))
        np.testing.assert_array_equal(first, again)
        assert not np.array_equal(first, other)

    def test_more_to_do_takes_longer(self, speeds):
        latency = speeds.draw(200, 7)
        base = seconds(latency)
        assert (base > 0).all()
        for more in ({"bytes_down": 5e6}, {"bytes_up": 5e6}, {"steps": 20}):
            assert (seconds(latency, **more) > base).all()

    def test_devices_may_differ_in_what_they_have_to_do(self, speeds):
        latency = speeds.draw(200, 7)
        steps, sizes = np.arange(200), np.linspace(1e3, 1e6, 200)
        mixed = seconds(latency, steps=steps, bytes_up=sizes)
        assert mixed[17] == seconds(latency, DEVICES[[17]], steps=17, bytes_up=sizes[17])[0]


class DrawsAsItGoes:
    """Its delays come from one stream, so they depend on who was asked before."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def seconds(self, devices, round_number, *, bytes_down, bytes_up, steps):
        return self.rng.random(len(devices))


def test_a_fleet_that_draws_as_it_goes_is_caught():
    assert not is_the_same_alone_and_in_company(DrawsAsItGoes())


class TestUniformSpeeds:
    def test_the_formula_is_the_one_that_is_written_down(self):
        latency = UniformSpeeds((2, 2), (8, 8), answer_seconds=0.5, step_seconds=0.1).draw(3, 0)
        # 1 MB down and 2 MB up at 8 Mbps are 3 s, ten steps at twice 0.1 s are 2 s, two answers are 1 s.
        assert seconds(latency, np.arange(3), bytes_down=1e6, bytes_up=2e6).tolist() == pytest.approx([6.0] * 3)


class TestHaccsSpeeds:
    def test_shares_and_ranges_are_those_of_the_table(self):
        latency = HaccsSpeeds().draw(1000, 0)
        factors = latency.compute_factors
        for low, high, share in ((1.0, 1.0, 0.6), (1.5, 2.0, 0.2), (2.0, 2.5, 0.15), (2.5, 3.0, 0.05)):
            assert ((factors >= low) & (factors <= high)).sum() == pytest.approx(1000 * share, abs=1)
        mbps = steady_mbps(latency)
        for low, high, share in ((75, 100, 0.6), (50, 75, 0.2), (25, 50, 0.15), (1, 25, 0.05)):
            assert ((mbps >= low) & (mbps < high)).sum() == pytest.approx(1000 * share, abs=1)
        assert 0.02 <= latency.answer_seconds.min() <= latency.answer_seconds.max() <= 0.2

    def test_slow_to_compute_is_not_slow_to_send(self):
        latency = HaccsSpeeds().draw(5000, 0)
        assert abs(np.corrcoef(latency.compute_factors, steady_mbps(latency))[0, 1]) < 0.08


class TestFactorSpeeds:
    def test_there_are_three_kinds_in_equal_numbers(self):
        kinds, counts = np.unique(FactorSpeeds().draw(300, 0).compute_factors, return_counts=True)
        assert kinds.tolist() == [1.0, 1.81, 11.6]
        assert counts.tolist() == [100, 100, 100]

    def test_delays_come_with_their_chance_and_their_length(self):
        calm, rough = FactorSpeeds(delay_chance=0), FactorSpeeds(delay_chance=0.1, delay_seconds=10)
        devices = np.arange(2000)
        late = np.concatenate(
            [seconds(rough.draw(2000, 1), devices, r) - seconds(calm.draw(2000, 1), devices, r) for r in range(5)]
        )
        assert np.isclose(late, 0).sum() + np.isclose(late, 10).sum() == 10000
        assert np.isclose(late, 10).mean() == pytest.approx(0.1, abs=0.02)

    def test_bandwidth_varies_from_round_to_round_within_its_range(self):
        latency = FactorSpeeds(mbps=((10, 40),), link_shares=(1,), delay_chance=0, step_seconds=0).draw(50, 0)
        times = np.stack([seconds(latency, np.arange(50), r, bytes_down=1e6, bytes_up=0) for r in range(20)])
        assert (times.std(axis=0) > 0).all()
        assert 8 / 40 <= times.min() < times.max() <= 8 / 10


class TestTracedSpeeds:
    def test_factors_are_relative_to_the_median_phone(self, traces):
        assert set(TracedSpeeds(traces).draw(500, 0).compute_factors) == {0.5, 1.0, 2.0}

    def test_a_link_that_never_carries_anything_is_not_used(self, traces):
        links = TracedSpeeds(traces).draw(500, 0).links
        assert isinstance(links, TracedLinks)
        assert len(links.traces) == 2
        assert np.isfinite(seconds(TracedSpeeds(traces).draw(500, 0), np.arange(500))).all()

    @given(
        mbps=st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=1, max_size=12).filter(any),
        share=st.floats(0, 1, exclude_max=True),
        megabits=st.floats(0.01, 60),
    )
    @settings(max_examples=150)
    def test_what_a_trace_carries_in_that_time_is_what_was_sent(self, mbps, share, megabits):
        links = TracedLinks(Ragged.of_sizes(np.array(mbps), np.array([len(mbps)])), np.array([0]), 0)
        start = share * len(mbps)
        end = start + links._seconds(0, share, megabits)

        def carried(until: float) -> float:
            laps, rest = divmod(until, len(mbps))
            whole = int(rest)
            return laps * sum(mbps) + sum(mbps[:whole]) + (rest - whole) * mbps[whole % len(mbps)]

        assert carried(end) - carried(start) == pytest.approx(megabits, abs=1e-6)

    def test_nothing_to_send_takes_no_time(self, traces):
        links = TracedSpeeds(traces).draw(5, 0).links
        assert links.transfer_seconds(np.arange(5), 0, np.zeros(1), "upload").tolist() == [0.0] * 5


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: UniformSpeeds((0, 1)),
        lambda: UniformSpeeds((2, 1)),
        lambda: UniformSpeeds(step_seconds=-1),
        lambda: UniformSpeeds(answer_seconds=-1),
        lambda: HaccsSpeeds(shares=(0.5, 0.5)),
        lambda: HaccsSpeeds(mbps=((0, 1),) * 4),
        lambda: FactorSpeeds(factors=(1.0,)),
        lambda: FactorSpeeds(shares=(0, 0, 0)),
        lambda: FactorSpeeds(link_shares=(1,)),
        lambda: FactorSpeeds(delay_chance=2),
    ],
)
def test_senseless_speeds_are_refused(wrong):
    with pytest.raises(InvalidSetting):
        wrong()


class TestChance:
    def test_uniforms_are_uniform_and_unrelated(self):
        devices = np.arange(20000)
        first, other_round, other_purpose = (
            uniforms(0, "delay", devices, 1),
            uniforms(0, "delay", devices, 2),
            uniforms(0, "other", devices, 1),
        )
        assert np.histogram(first, 20, (0, 1))[0].min() > 850
        for other in (other_round, other_purpose, np.roll(first, 1)):
            assert abs(np.corrcoef(first, other)[0, 1]) < 0.03

    def test_moments_may_differ_between_devices_and_be_before_the_start(self):
        devices, moments = np.array([4, 5, 6]), np.array([-1, 0, 7])
        mixed = uniforms(9, "night", devices, moments)
        assert mixed.tolist() == [uniforms(9, "night", devices[[i]], int(moments[i]))[0] for i in range(3)]

    def test_each_purpose_has_a_stream_of_its_own(self):
        assert generator(1, "a").random() == generator(1, "a").random()
        assert generator(1, "a").random() != generator(1, "b").random()
        assert generator(1, "a").random() != generator(2, "a").random()


def test_a_latency_is_plain_data():
    latency = Latency(0, 1.0, np.ones(2), UniformSpeeds().draw(2, 0).links, np.zeros(2))
    assert seconds(latency, np.arange(2), bytes_down=0, bytes_up=0, steps=3).tolist() == [3.0, 3.0]
