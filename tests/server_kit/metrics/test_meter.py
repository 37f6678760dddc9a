"""What a process counts arrives whole at whoever reads it, from any thread and at any moment."""

from __future__ import annotations

import json
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server_kit.metric_names import COUNTERS, EVERY, GAUGES, HISTOGRAMS, OF_PROCESS, OF_STORE
from server_kit.metrics import Meter
from server_kit.snapshots import BUCKET_SECONDS, Histogram, Snapshot, read_snapshots

ROUNDS = ("covey_rounds_total", (("cohort", "0"),))
words = st.text(st.characters(codec="utf-8"), max_size=8)
series = st.tuples(st.sampled_from(sorted(EVERY)), st.lists(st.tuples(st.just("cohort"), words), max_size=1).map(tuple))
numbers = st.floats(allow_nan=False, allow_infinity=False)


def test_threads_lose_no_count():
    meter = Meter("coordinator")

    def count() -> None:
        for _ in range(2000):
            meter.count("covey_rounds_total", cohort="0")
            meter.observe("covey_round_seconds", 0.01)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    snapshot = meter.snapshot()
    assert snapshot.counters[ROUNDS] == 8000
    assert sum(snapshot.histograms["covey_round_seconds", ()].counts) == 8000


@given(st.lists(st.floats(min_value=0, max_value=1e5), max_size=50))
def test_each_duration_falls_into_the_bucket_that_holds_it(durations):
    histogram = Histogram()
    for seconds in durations:
        histogram.add(seconds)
    for place, end in enumerate(BUCKET_SECONDS):
        assert sum(histogram.counts[: place + 1]) == sum(seconds <= end for seconds in durations)
    assert sum(histogram.counts) == len(durations)
    assert histogram.sum_seconds == pytest.approx(sum(durations))


@given(
    st.builds(
        Snapshot,
        process=words,
        pid=st.integers(0, 1 << 22),
        started_at=numbers,
        at=numbers,
        rss_bytes=st.integers(0, 1 << 40),
        counters=st.dictionaries(series, numbers, max_size=4),
        gauges=st.dictionaries(series, numbers, max_size=4),
        histograms=st.dictionaries(series, st.builds(Histogram), max_size=2),
        facts=st.dictionaries(words, st.one_of(words, st.booleans(), st.integers()), max_size=3),
    )
)
def test_a_snapshot_is_read_as_it_was_written(snapshot):
    assert Snapshot.from_json(snapshot.to_json()) == snapshot


@pytest.mark.parametrize("text", ["", "[]", "{}", "7", '{"format": "covey-snapshot-1"}', '{"format": "other"}'])
def test_what_is_no_snapshot_is_left_out(tmp_path, text):
    Meter("coordinator").publish(tmp_path)
    (tmp_path / "broken.json").write_text(text)
    assert [each.process for each in read_snapshots(tmp_path)] == ["coordinator"]


def test_a_name_that_nobody_described_is_refused():
    meter = Meter("coordinator")
    for measure in (meter.count, meter.gauge, meter.observe):
        with pytest.raises(ValueError, match="metric_names"):
            measure("covey_surprise", 1)
    with pytest.raises(ValueError, match="no name of a label"):
        meter.count("covey_rounds_total", 1, **{"Bad-label": "x"})


def test_every_name_says_what_kind_it_is():
    assert all(name.startswith("covey_") and meaning.endswith(".") for name, meaning in EVERY.items())
    assert all(name.endswith("_total") for name in COUNTERS)
    assert all(name.endswith("_seconds") for name in HISTOGRAMS)
    assert not any(name.endswith("_total") for name in GAUGES)
    assert len(EVERY) == sum(map(len, (COUNTERS, GAUGES, HISTOGRAMS, OF_STORE, OF_PROCESS)))


def test_a_reader_never_sees_half_a_snapshot(tmp_path):
    meter = Meter("coordinator")
    for cohort in range(200):
        meter.count("covey_rounds_total", cohort=str(cohort))
    meter.publish(tmp_path)
    ended = threading.Event()

    def write() -> None:
        while not ended.is_set():
            meter.publish(tmp_path)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(200):
            assert len(json.loads((tmp_path / "coordinator.json").read_text())["counters"]) == 200
    finally:
        ended.set()
        writer.join()


def test_publishing_goes_on_until_the_end_and_leaves_nothing(tmp_path):
    meter = Meter("coordinator")
    with meter.publishing(tmp_path, every_seconds=0.01):
        meter.fact("accepting", value=True)
        wait_for(lambda: any(each.facts == {"accepting": True} for each in read_snapshots(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_stops_nothing(tmp_path):
    meter = Meter("coordinator")
    with meter.publishing(tmp_path / "nowhere", every_seconds=0.01):
        meter.count("covey_rounds_total", cohort="0")
    assert meter.snapshot().counters[ROUNDS] == 1


def test_who_was_killed_long_ago_is_forgotten(tmp_path):
    Meter("cohort-0").publish(tmp_path)
    assert len(read_snapshots(tmp_path, time.time() + 100)) == 1
    assert read_snapshots(tmp_path, time.time() + 1000) == []


def test_a_failed_block_is_not_timed():
    meter = Meter("coordinator")
    with pytest.raises(RuntimeError), meter.timing("covey_round_seconds"):
        raise RuntimeError
    with meter.timing("covey_round_seconds"):
        pass
    assert sum(meter.snapshot().histograms["covey_round_seconds", ()].counts) == 1


def test_a_gauge_whose_subject_is_gone_can_be_dropped():
    meter = Meter("coordinator")
    meter.gauge("covey_model_accuracy", 0.9, cohort="0.1")
    meter.forget("covey_model_accuracy", cohort="0.1")
    meter.forget("covey_model_accuracy", cohort="0.2")
    assert meter.snapshot().gauges == {}


def test_memory_is_told():
    assert Meter("coordinator").snapshot().rss_bytes > 1 << 20


def wait_for(condition) -> None:
    for _ in range(500):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("it never came")
