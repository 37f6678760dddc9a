"""Who can be asked when: the same answer however often it is asked, and as often as the rule says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server_kit.errors import InvalidSetting
from server_kit.simulation.availability import Always, Diurnal, DropOut, OnOff, TracedSessions
from server_kit.simulation.datasets import DatasetNotFound, InvalidDataset
from server_kit.simulation.ragged import Ragged
from server_kit.simulation.sessions import Sessions
from server_kit.simulation.traces import WEEK_SECONDS, read_bandwidths, read_compute_factors, read_sessions

HOUR, DAY = 3600.0, 86400.0
DEVICES = np.arange(500)


def trace_arrays(**changed):
    """One user-week that starts at the epoch and one that starts a day later, and a broken-off one."""
    arrays = {
        "avail80_duration_s": np.array([2 * DAY, 5 * DAY, 1 * DAY, 1 * DAY, 5 * DAY, 100.0], np.float32),
        "avail80_offset": np.array([0, 2, 5, 6]),
        "avail80_first_online": np.array([1, 0, 1], np.uint8),
        "avail80_start_epoch_s": np.array([0, 3 * WEEK_SECONDS + DAY, 0], np.int64),
    }
    return arrays | changed


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "traces.npz"
    np.savez(path, **trace_arrays())
    return path


@pytest.fixture(params=["always", "drop-out", "on-off", "diurnal", "traced"])
def availability(request, traces):
    return {
        "always": Always(),
        "drop-out": DropOut(0.3),
        "on-off": OnOff(),
        "diurnal": Diurnal(),
        "traced": TracedSessions(traces),
    }[request.param]


class TestEveryAvailability:
    def test_an_answer_is_the_same_alone_in_company_and_in_any_order(self, availability):
        presence, again = availability.draw(500, 3), availability.draw(500, 3)
        times = [0.0, 5.5 * HOUR, 30 * DAY, 1.0]
        first = [presence.available(DEVICES, time) for time in times]
        backwards = [again.available(DEVICES, time) for time in reversed(times)]
        for one, two in zip(first, reversed(backwards), strict=True):
            np.testing.assert_array_equal(one, two)
        assert [bool(presence.available(DEVICES[[i]], 5.5 * HOUR)[0]) for i in range(40)] == first[1][:40].tolist()

    def test_the_seed_decides(self, availability):
        if availability == Always():
            return
        times = np.arange(10) * 3 * HOUR
        one, two = (
            np.stack([availability.draw(500, seed).available(DEVICES, time) for time in times]) for seed in (1, 2)
        )
        assert not np.array_equal(one, two)


class TestDropOut:
    @pytest.mark.parametrize("rate", [0.0, 0.1, 1.0])
    def test_devices_are_away_at_that_rate(self, rate):
        presence = DropOut(rate, period_seconds=60).draw(500, 0)
        away = 1 - np.mean([presence.available(DEVICES, 60.0 * period) for period in range(40)])
        assert away == pytest.approx(rate, abs=0.01)

    def test_an_absence_lasts_a_period(self):
        presence = DropOut(0.5, period_seconds=60).draw(500, 0)
        np.testing.assert_array_equal(presence.available(DEVICES, 60.0), presence.available(DEVICES, 119.9))
        assert not np.array_equal(presence.available(DEVICES, 119.9), presence.available(DEVICES, 120.0))


class TestOnOff:
    def test_devices_are_on_for_their_share_of_the_time(self):
        presence = OnOff(HOUR, 3 * HOUR).draw(500, 0)
        on = np.mean([presence.available(DEVICES, time) for time in np.arange(0, 20 * DAY, 2 * HOUR)])
        assert on == pytest.approx(0.25, abs=0.02)

    def test_stretches_last_as_long_as_they_should(self):
        presence = OnOff(HOUR, 3 * HOUR).draw(500, 0)
        states = np.stack([presence.available(DEVICES, time) for time in np.arange(0, 2 * DAY, 60.0)])
        switched_on = (np.diff(states.astype(int), axis=0) == 1).sum()
        assert 500 * 2 * DAY / switched_on == pytest.approx(4 * HOUR, rel=0.1)

    def test_devices_that_share_a_pattern_are_not_in_step(self):
        presence = OnOff().draw(10000, 0)
        first, second = (presence.available(np.arange(4000) + shift, 1e6) for shift in (0, 4096))
        assert not np.array_equal(first, second)


class TestDiurnal:
    def test_nights_are_full_and_days_are_empty(self):
        presence = Diurnal(start_hour=22, spread_hours=0.5, hours=8, skip_rate=0.1).draw(500, 0)
        assert presence.available(DEVICES, 2 * HOUR).mean() == pytest.approx(0.9, abs=0.05)
        assert presence.available(DEVICES, 14 * HOUR).mean() == 0
        assert presence.available(DEVICES, 3 * DAY + 2 * HOUR).mean() == pytest.approx(0.9, abs=0.05)

    def test_who_skips_a_night_is_drawn_anew(self):
        presence = Diurnal(spread_hours=0.1, skip_rate=0.5).draw(500, 0)
        one, two = (presence.available(DEVICES, night * DAY + 2 * HOUR) for night in (0, 1))
        assert not np.array_equal(one, two)

    def test_the_sun_rises_elsewhere_at_another_time(self):
        presence = Diurnal(spread_hours=0.1, skip_rate=0, utc_offsets_hours=(-8.0,)).draw(500, 0)
        assert presence.available(DEVICES, 2 * HOUR).mean() == 0
        assert presence.available(DEVICES, 10 * HOUR).mean() == 1


def slow_oracle(first, durations, start, time):
    within = (time - start) % sum(durations)
    state = first
    for duration in durations:
        if within < duration:
            return state
        within -= duration
        state = not state
    return state


class TestSessions:
    @given(
        rows=st.lists(
            st.tuples(st.booleans(), st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(0, 100)),
            min_size=1,
            max_size=8,
        ),
        time=st.integers(0, 2000),
    )
    @settings(max_examples=100)
    def test_one_search_for_all_agrees_with_walking_through_each(self, rows, time):
        durations = np.array([value for _, values, _ in rows for value in values], dtype=np.float64)
        sessions = Sessions.of_durations(
            Ragged.of_sizes(durations, np.array([len(values) for _, values, _ in rows])),
            np.array([first for first, _, _ in rows]),
            np.array([start for _, _, start in rows], dtype=np.float64),
        )
        found = sessions.online(np.arange(len(rows)), time / 2)
        assert found.tolist() == [slow_oracle(first, values, start, time / 2) for first, values, start in rows]


class TestTraces:
    def test_weeks_stand_at_their_time_of_the_week_and_broken_ones_are_left_out(self, traces):
        sessions = read_sessions(traces)
        assert len(sessions) == 2
        both = np.arange(2)
        # The first is on for two days from the start of the week; the second is off, on, off from the second day.
        on = [sessions.online(both, day * DAY + 60).tolist() for day in range(8)]
        assert [first for first, _ in on] == [True, True, False, False, False, False, False, True]
        assert [second for _, second in on] == [False, False, True, False, False, False, False, False]

    @pytest.mark.parametrize(
        ("changed", "says"),
        [
            ({"avail80_offset": np.array([0, 2, 9])}, "offsets"),
            ({"avail80_offset": np.array([0, 2, 2, 6])}, "offsets"),
            ({"avail80_duration_s": np.array([1.0, -1.0, 1.0, 1.0, 1.0, 1.0])}, "above 0"),
            ({"avail80_duration_s": np.ones(6)}, "no whole week"),
            ({"avail80_first_online": np.array([1])}, "different lengths"),
        ],
    )
    def test_senseless_sessions_are_refused(self, tmp_path, changed, says):
        np.savez(tmp_path / "t.npz", **trace_arrays(**changed))
        with pytest.raises(InvalidDataset, match=says):
            read_sessions(tmp_path / "t.npz")

    def test_missing_parts_and_files_are_named(self, traces, tmp_path):
        with pytest.raises(InvalidDataset, match="no array 'avail100_duration_s'"):
            TracedSessions(traces, "avail100").draw(3, 0)
        with pytest.raises(InvalidDataset, match="no array 'device_latency_ms'"):
            read_compute_factors(traces)
        with pytest.raises(DatasetNotFound):
            read_sessions(tmp_path / "gone.npz")

    @pytest.mark.parametrize("mbps", [[1.0, -1.0], [1.0, np.inf], [np.nan, 1.0]])
    def test_senseless_bandwidths_are_refused(self, tmp_path, mbps):
        np.savez(tmp_path / "t.npz", bw_mbps=np.array(mbps), bw_offset=np.array([0, 2]))
        with pytest.raises(InvalidDataset, match="bandwidth"):
            read_bandwidths(tmp_path / "t.npz")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: DropOut(1.5),
        lambda: DropOut(period_seconds=0),
        lambda: OnOff(mean_on_seconds=0),
        lambda: OnOff(mean_off_seconds=float("inf")),
        lambda: Diurnal(hours=0),
        lambda: Diurnal(hours=25),
        lambda: Diurnal(skip_rate=-1),
        lambda: Diurnal(utc_offsets_hours=()),
        lambda: Diurnal(start_hour=float("nan")),
    ],
)
def test_senseless_rules_are_refused(wrong):
    with pytest.raises(InvalidSetting):
        wrong()
