"""What every store does; the tests of each implementation inherit these."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from server_kit.daemon.invitations import StoredInvitation
from server_kit.errors import LeaseLost, StoreConflict
from server_kit.store.protocol import (
    Asking,
    CohortState,
    Digest,
    FeedbackRecord,
    FoldState,
    Happening,
    Quota,
    Store,
    TaskState,
)
from tests.server_kit.store.deliveries import (
    cohort,
    content_of,
    enrolled,
    fold,
    key_of,
    receipt,
    summary,
    task,
    update,
)

LARGE = bytes(range(256)) * 9_000  # more than two pieces of a mebibyte


def asked(store: Store, *names: str, cohort_name: str = "0") -> None:
    store.ask(Asking([task(name, cohort=cohort_name) for name in names], [cohort(cohort_name)]))


def arrived(store: Store, *names: str, content: bytes | Path = b"update") -> None:
    asked(store, *names)
    assert all(store.accept([update(name, name, content=content) for name in names], 150.0))


def states(store: Store, *names: str) -> list[TaskState]:
    return [found.state for found in map(store.task, names) if found is not None]


class IntakeContract:
    def test_an_accepted_update_waits_with_its_bytes_and_its_receipt(self, store):
        arrived(store, "a")
        found = store.task("a")
        assert (found.state, found.arrival, found.arrived_at_seconds) == (TaskState.ARRIVED, 1, 150.0)
        assert content_of(store, "a") == b"update"
        assert store.last_receipt(key_of("a")) == receipt("a", 1, b"update")

    def test_updates_are_numbered_in_the_order_of_their_acceptance(self, store):
        asked(store, "a", "b", "c")
        store.accept([update("c", "c"), update("a", "a")], 150.0)
        store.accept([update("b", "b")], 151.0)
        assert [found.task for found in store.tasks()] == ["c", "a", "b"]

    def test_a_release_that_does_not_follow_the_newest_receipt_leaves_no_trace(self, store):
        asked(store, "a", "b")
        stranger = receipt("a", 7)
        verdicts = store.accept([update("a", "a", 8, after=stranger), update("b", "b")], 150.0)
        assert verdicts == [False, True]
        assert states(store, "a", "b") == [TaskState.OUT, TaskState.ARRIVED]
        assert store.last_receipt(key_of("a")) is None

    def test_the_same_release_is_accepted_once(self, store):
        asked(store, "a")
        assert store.accept([update("a", "a"), update("a", "a")], 150.0) == [True, False]
        assert store.accept([update("a", "a")], 151.0) == [False]
        assert store.task("a").arrived_at_seconds == 150.0

    def test_a_device_may_send_several_releases_at_once_in_order(self, store):
        asked(store, "a")
        first = update("a", "a")
        assert store.accept([first, summary("a", sequence=2, after=first.receipt)], 150.0) == [True, True]
        assert [found.sequence for found in store.receipts()] == [1, 2]

    def test_an_older_number_never_follows_a_newer_one(self, store):
        store.accept([summary("a", sequence=5)], 150.0)
        assert store.accept([summary("a", sequence=5, after=receipt("a", 5, b"histogram"))], 151.0) == [False]
        assert store.accept([summary("a", sequence=4, after=receipt("a", 5, b"histogram"))], 151.0) == [False]

    @pytest.mark.parametrize("end", [TaskState.LOST, TaskState.DECLINED])
    def test_what_comes_after_its_task_has_ended_is_late_and_its_bytes_are_not_kept(self, store, end):
        asked(store, "a")
        assert store.end_task("a", end)
        assert store.accept([update("a", "a")], 150.0) == [True]
        assert states(store, "a") == [TaskState.LATE]
        assert store.find_receipt(key_of("a"), 1) is not None
        with pytest.raises(StoreConflict):
            store.payload("a")

    def test_an_update_for_a_task_of_nobody_or_of_another_device_is_paid_for_and_not_used(self, store):
        asked(store, "a")
        assert store.accept([update("b", "a"), update("c", "unheard of")], 150.0) == [True, True]
        assert states(store, "a") == [TaskState.OUT]
        assert store.last_receipt(key_of("b")) is not None

    def test_a_second_release_for_a_task_changes_nothing_about_it(self, store):
        arrived(store, "a")
        first = store.last_receipt(key_of("a"))
        assert store.accept([update("a", "a", 2, after=first, content=b"another")], 160.0) == [True]
        assert content_of(store, "a") == b"update"
        assert store.task("a").arrived_at_seconds == 150.0

    def test_a_file_is_taken_away_once_it_is_stored(self, store, tmp_path):
        path = tmp_path / "upload"
        path.write_bytes(LARGE)
        arrived(store, "a", content=path)
        assert not path.exists()
        assert content_of(store, "a") == LARGE

    def test_the_file_of_a_refused_release_stays(self, store, tmp_path):
        path = tmp_path / "upload"
        path.write_bytes(LARGE)
        asked(store, "a")
        assert store.accept([update("a", "a", 2, after=receipt("a", 1), content=path)], 150.0) == [False]
        assert path.read_bytes() == LARGE

    @pytest.mark.parametrize("size", [0, 1, 256 << 10, (256 << 10) + 1, 1 << 20, (1 << 20) + 1])
    def test_a_payload_of_any_size_comes_back_whole(self, store, size):
        content = (b"0123456789abcdef!" * (1 + size // 17))[:size]
        arrived(store, "a", content=content)
        assert content_of(store, "a") == content

    def test_a_summary_takes_the_place_of_the_one_before(self, store):
        first = summary("a", content=b"old")
        second = summary("a", sequence=2, after=first.receipt, content=b"new")
        store.accept([first], 150.0)
        store.accept([second, summary("b")], 151.0)
        found = store.summaries("label_histogram", "epoch 1")
        assert [(one.device, one.payload, one.at_seconds) for one in found] == [
            ("a", b"new", 151.0),
            ("b", b"histogram", 151.0),
        ]
        assert found[0].terms == {"labels": 10, "epsilon": "1/2"}

    def test_without_a_subject_the_newest_summary_of_each_device_is_given(self, store):
        first = summary("a", "epoch 2", content=b"two")
        second = summary("a", "epoch 1", 2, first.receipt, content=b"one")
        store.accept([first, second, summary("b", mechanism="other")], 150.0)
        assert [one.payload for one in store.summaries("label_histogram")] == [b"one"]
        assert [one.payload for one in store.summaries("label_histogram", "epoch 2")] == [b"two"]

    def test_a_device_has_a_quota_of_summaries_and_its_histogram_goes_last(self, store):
        most = Quota().most_summaries
        told = [summary("a", "histogram", 1, content=b"kept")]
        for sequence in range(2, most + 12):
            told.append(summary("a", f"question {sequence}", sequence, told[-1].receipt, mechanism="answer"))
        for start in range(0, len(told), 20):
            store.accept(told[start : start + 20], 150.0)
        assert store.accept([summary("b", mechanism="answer")], 150.0) == [True]
        asked = range(2, most + 12)
        kept = [sequence for sequence in asked if store.summaries("answer", f"question {sequence}")]
        assert [one.payload for one in store.summaries("label_histogram")] == [b"kept"]
        assert kept == list(asked)[1 - most :]
        assert [one.device for one in store.summaries("answer")] == ["a", "b"]
        assert len(list(store.receipts())) == len(told) + 1

    def test_a_device_has_a_quota_of_bytes(self, store):
        size = Quota().most_summary_bytes // 3
        first = summary("a", "1", 1, content=bytes(size))
        told = [first]
        for sequence in range(2, 6):
            told.append(summary("a", str(sequence), sequence, told[-1].receipt, content=bytes(size)))
        store.accept(told, 150.0)
        kept = [sequence for sequence in range(1, 6) if store.summaries("label_histogram", str(sequence))]
        assert kept[-1] == 5
        assert 1 <= len(kept) <= 3

    def test_what_was_read_can_be_forgotten_and_stays_paid_for(self, store):
        store.accept([summary("a", "question"), summary("b", "question"), summary("c", "another")], 150.0)
        assert store.forget_answers("label_histogram", "question") == 2
        assert [one.device for one in store.summaries("label_histogram")] == ["c"]
        assert len(list(store.receipts())) == 3

    def test_whose_ledger_it_is(self, store):
        store.accept([summary("a")], 150.0)
        assert store.device_of(key_of("a")) == "a"
        assert store.device_of(key_of("b")) is None

    def test_receipts_come_by_device_and_number(self, store):
        for device in ("a", "b", "c"):
            first = summary(device, sequence=2)
            store.accept([first, summary(device, sequence=10, after=first.receipt)], 150.0)
        keys = sorted(map(key_of, ("a", "b", "c")))
        expected = [(key, number) for key in keys for number in (2, 10)]
        assert [(one.device_key, one.sequence) for one in store.receipts()] == expected
        assert [(one.device_key, one.sequence) for one in store.receipts_of(key_of("b"))] == [
            (key_of("b"), 2),
            (key_of("b"), 10),
        ]
        assert store.receipts_of(key_of("d")) == []
        assert store.find_receipt(key_of("a"), 10).sequence == 10
        assert store.find_receipt(key_of("a"), 3) is None

    def test_refusals_are_counted_by_reason_and_by_enrolled_device(self, store):
        store.register.add(enrolled("a"))
        for device in ("a", "a", "stranger", None):
            store.count_refusal("too large", device, 150.0)
        store.count_refusals({("too large", "a"): 3, ("replayed", "a"): 1, ("replayed", None): 2}, 151.0)
        assert store.refusals() == {"too large": 7, "replayed": 3}
        assert [one.refusals for one in store.devices()] == [{"too large": 5, "replayed": 1}]

    def test_devices_show_when_they_were_here_and_what_they_sent(self, store):
        for device in ("b", "a"):
            store.register.add(enrolled(device))
        store.seen(["a", "stranger"], 170.0)
        store.accept([summary("a")], 150.0)
        first, second = store.devices()
        assert (first.device, first.last_seen_seconds, first.releases) == ("a", 170.0, 1)
        assert (second.device, second.last_seen_seconds, second.releases) == ("b", None, 0)
        assert first.enrolled_at_seconds == 1000.0


class RoundsContract:
    def test_tasks_are_out_until_they_end_and_end_once(self, store):
        asked(store, "a", "b")
        assert store.task("a") == task("a")
        assert [found.task for found in store.tasks()] == ["a", "b"]
        assert store.end_task("a", TaskState.DECLINED)
        assert not store.end_task("a", TaskState.LOST)
        assert not store.end_task("unheard of", TaskState.LOST)
        assert states(store, "a", "b") == [TaskState.DECLINED, TaskState.OUT]
        assert store.task("unheard of") is None

    def test_a_task_can_only_end_as_declined_or_lost(self, store):
        asked(store, "a")
        with pytest.raises(StoreConflict):
            store.end_task("a", TaskState.FOLDED)

    def test_tasks_are_chosen_by_cohort_and_state(self, store):
        asked(store, "a", "b")
        asked(store, "c", cohort_name="0.1")
        store.accept([update("b", "b"), update("c", "c")], 150.0)
        assert [found.task for found in store.tasks("0")] == ["b", "a"]
        assert [found.task for found in store.tasks(None, TaskState.ARRIVED)] == ["b", "c"]
        assert [found.task for found in store.tasks("0.1", TaskState.OUT)] == []

    def test_asking_books_tasks_cohorts_and_losses_at_once(self, store):
        asked(store, "a", "b")
        store.accept([update("b", "b")], 150.0)
        store.ask(Asking([task("c")], [cohort(version=3, needed=[1, "x"])], lost=["a", "b", "unheard of"]))
        assert states(store, "a", "b", "c") == [TaskState.LOST, TaskState.ARRIVED, TaskState.OUT]
        assert store.cohorts() == [cohort(version=3, needed=[1, "x"])]

    @pytest.mark.parametrize("names", [("b", "a"), ("b", "b")])
    def test_a_task_is_booked_once_or_nothing_is(self, store, names):
        asked(store, "a")
        with pytest.raises(StoreConflict):
            asked(store, *names, cohort_name="0.7")
        assert store.task("b") is None
        assert [found.cohort for found in store.cohorts()] == ["0"]

    def test_a_step_is_decided_once_whoever_asks(self, store):
        arrived(store, "a", "b")
        lease = store.acquire("0", "worker", 10.0, 100.0)
        begun = store.begin_fold(fold(("b", "a")), [], lease)
        assert begun == fold(("b", "a"))
        assert store.begin_fold(fold(("a",)), ["b"], lease) == begun
        assert store.folds(FoldState.BEGUN) == [begun]
        assert states(store, "a", "b") == [TaskState.ARRIVED, TaskState.ARRIVED]

    def test_updates_that_are_not_chosen_are_late_and_scrubbed(self, store):
        arrived(store, "a", "b")
        lease = store.acquire("0", "worker", 10.0, 100.0)
        store.begin_fold(fold(("a",)), ["b", "unheard of"], lease)
        assert states(store, "a", "b") == [TaskState.ARRIVED, TaskState.LATE]
        assert content_of(store, "a") == b"update"
        with pytest.raises(StoreConflict):
            store.payload("b")

    def test_without_a_step_only_free_updates_of_the_cohort_end_late(self, store):
        arrived(store, "a", "b", "c")
        asked(store, "out")
        old, lease = (store.acquire("0", "worker", 10.0, 100.0) for _ in range(2))
        store.begin_fold(fold(("a",)), [], lease)
        with pytest.raises(LeaseLost):
            store.end_late("0", ["b"], old)
        store.end_late("0.1", ["b"], lease)
        assert states(store, "b") == [TaskState.ARRIVED]
        store.end_late("0", ["a", "b", "out", "unheard of"], lease)
        ended = [TaskState.ARRIVED, TaskState.LATE, TaskState.ARRIVED, TaskState.OUT]
        assert states(store, "a", "b", "c", "out") == ended
        assert content_of(store, "a") == b"update"
        with pytest.raises(StoreConflict):
            store.payload("b")

    def test_an_update_is_folded_into_one_model_only(self, store):
        arrived(store, "a", "b")
        lease = store.acquire("0", "worker", 10.0, 100.0)
        store.begin_fold(fold(("a",)), [], lease)
        for greedy in (fold(("a", "b"), 1), fold(("b", "b"), 1), fold(("unheard of",), 1), fold(("b",), 0, "0.1")):
            with pytest.raises(StoreConflict):
                store.begin_fold(greedy, [], lease)
        assert store.folds(FoldState.BEGUN) == [fold(("a",))]

    @pytest.mark.parametrize("content", [b"small", LARGE])
    def test_a_finished_step_scrubs_its_updates_and_keeps_their_ids(self, store, content):
        arrived(store, "a", content=content)
        lease = store.acquire("0", "worker", 10.0, 100.0)
        begun = store.begin_fold(fold(("a",)), [], lease)
        done = replace(begun, checkpoint="0-1", report="report")
        store.finish_fold(done, lease, cohort(version=1))
        assert store.folds(FoldState.DONE) == [replace(done, state=FoldState.DONE)]
        assert store.cohorts() == [cohort(version=1)]
        assert states(store, "a") == [TaskState.FOLDED]
        assert store.task("a").message == b""
        assert store.find_receipt(key_of("a"), 1) is not None
        with pytest.raises(StoreConflict):
            store.payload("a")
        assert store.accept([update("a", "a")], 300.0) == [False]

    def test_a_step_is_finished_once(self, store):
        arrived(store, "a")
        lease = store.acquire("0", "worker", 10.0, 100.0)
        with pytest.raises(StoreConflict):
            store.finish_fold(fold(("a",)), lease, cohort(version=1))
        begun = store.begin_fold(fold(("a",)), [], lease)
        store.finish_fold(begun, lease, cohort(version=1))
        with pytest.raises(StoreConflict):
            store.finish_fold(begun, lease, cohort(version=9))
        assert store.cohorts() == [cohort(version=1)]

    def test_a_worker_that_lost_its_lease_changes_nothing(self, store):
        arrived(store, "a")
        old = store.acquire("0", "worker", 10.0, 100.0)
        new = store.acquire("0", "other", 10.0, 111.0)
        with pytest.raises(LeaseLost):
            store.begin_fold(fold(("a",)), [], old)
        begun = store.begin_fold(fold(("a",)), [], new)
        with pytest.raises(LeaseLost):
            store.finish_fold(begun, old, cohort(version=1))
        assert store.folds(FoldState.DONE) == []
        assert content_of(store, "a") == b"update"

    def test_a_digest_becomes_true_at_once(self, store):
        arrived(store, "a")
        asked(store, "b", "c")
        lease = store.acquire("0", "worker", 10.0, 100.0)
        begun = store.begin_fold(fold(("a",)), [], lease)
        store.finish_fold(begun, lease, cohort(version=1))
        gone = replace(cohort(version=1), state=CohortState.SPLIT)
        store.digest(
            Digest(
                ("0", 0),
                "federation-7",
                [gone, cohort("0.0"), cohort("0.1")],
                {"b": "0.1", "a": "0.1"},
                {"b": {"loss": 0.5, "of": [1, None]}},
                [FeedbackRecord("a", b"well done")],
                [Happening("split", 210.0, "0", {"into": 2})],
            )
        )
        assert [found.state for found in store.folds(FoldState.DIGESTED)] == [FoldState.DIGESTED]
        assert store.federation() == "federation-7"
        assert [found.cohort for found in store.cohorts()] == ["0.0", "0.1"]
        assert [found.cohort for found in store.all_cohorts()] == ["0", "0.0", "0.1"]
        assert [store.task(name).cohort for name in ("a", "b", "c")] == ["0", "0.1", "0"]
        assert store.views() == {"b": {"loss": 0.5, "of": [1, None]}}
        assert store.happenings() == [Happening("split", 210.0, "0", {"into": 2}, 1)]

    def test_a_step_is_digested_once_and_only_when_done(self, store):
        arrived(store, "a")
        lease = store.acquire("0", "worker", 10.0, 100.0)
        begun = store.begin_fold(fold(("a",)), [], lease)
        digest = Digest(("0", 0), "federation-7", happenings=[Happening("round", 210.0)])
        with pytest.raises(StoreConflict):
            store.digest(digest)
        store.finish_fold(begun, lease, cohort(version=1))
        store.digest(digest)
        with pytest.raises(StoreConflict):
            store.digest(replace(digest, federation="federation-8"))
        assert store.federation() == "federation-7"
        assert len(store.happenings()) == 1

    def test_an_update_in_a_begun_step_does_not_move(self, store):
        arrived(store, "a", "b")
        lease = store.acquire("0", "worker", 10.0, 100.0)
        store.begin_fold(fold(("a",)), [], lease)
        store.digest(Digest(None, "federation-1", moved={"a": "0.1", "b": "0.1"}))
        assert [store.task(name).cohort for name in ("a", "b")] == ["0", "0.1"]

    def test_a_cohort_never_goes_back(self, store):
        arrived(store, "a", "b")
        lease = store.acquire("0", "worker", 10.0, 100.0)
        stale = cohort()
        store.finish_fold(store.begin_fold(fold(("a",)), [], lease), lease, cohort(version=1))
        with pytest.raises(StoreConflict):
            store.ask(Asking([task("c")], [stale]))
        with pytest.raises(StoreConflict):
            store.digest(Digest(("0", 0), "federation-1", [stale]))
        assert store.task("c") is None
        assert store.cohorts() == [cohort(version=1)]
        assert len(store.folds(FoldState.DONE)) == 1

    def test_a_step_that_a_cohort_has_begun_when_it_ends_is_undone(self, store):
        arrived(store, "a", "b")
        lease = store.acquire("0", "worker", 10.0, 100.0)
        begun = store.begin_fold(fold(("a",)), [], lease)
        gone = replace(cohort(), state=CohortState.MERGED)
        store.digest(Digest(None, "federation-1", [gone, cohort("0.1")], {"a": "0.1", "b": "0.1"}))
        with pytest.raises(StoreConflict):
            store.finish_fold(begun, lease, cohort(version=1))
        assert [found.cohort for found in store.cohorts()] == ["0.1"]
        assert store.begin_fold(fold(("a", "b"), 0, "0.1"), [], lease).tasks == ("a", "b")
        assert content_of(store, "a") == b"update"

    @pytest.mark.parametrize("end", [TaskState.FOLDED, TaskState.LATE])
    def test_a_digest_ends_updates_outside_of_steps_and_scrubs_them(self, store, end):
        arrived(store, "a", "b")
        asked(store, "c")
        lease = store.acquire("0", "worker", 10.0, 100.0)
        store.begin_fold(fold(("b",)), [], lease)
        store.digest(Digest(None, "federation-1", ended=dict.fromkeys(("a", "b", "c", "unheard of"), end)))
        assert states(store, "a", "b", "c") == [end, TaskState.ARRIVED, TaskState.OUT]
        with pytest.raises(StoreConflict):
            store.payload("a")

    def test_a_founding_needs_no_step(self, store):
        assert store.federation() is None
        store.digest(Digest(None, "federation-0", [cohort()]))
        assert store.federation() == "federation-0"
        assert store.cohorts() == [cohort()]

    def test_a_view_takes_the_place_of_the_one_before(self, store):
        store.digest(Digest(None, "1", views={"a": {"x": 1}, "b": {}}))
        store.digest(Digest(None, "2", views={"a": {"y": 2}}))
        assert store.views() == {"a": {"y": 2}, "b": {}}

    def test_feedback_is_given_once(self, store):
        given = [FeedbackRecord("a", b"1"), FeedbackRecord("b", b"2"), FeedbackRecord("a", b"3")]
        store.digest(Digest(None, "1", feedback=given))
        assert store.feedback(["a", "c"]) == [given[0], given[2]]
        assert store.feedback(["a", "b"]) == [given[1]]
        assert store.feedback(["a", "b"]) == []


class LeasesContract:
    def test_a_lease_keeps_others_out_until_it_ends(self, store):
        lease = store.acquire("0", "worker", 10.0, 100.0)
        assert (lease.epoch, lease.until_seconds) == (1, 110.0)
        assert store.acquire("0", "other", 10.0, 109.0) is None
        assert store.acquire("1", "other", 10.0, 109.0).epoch == 1
        assert store.acquire("0", "other", 10.0, 110.0).epoch == 2

    def test_a_holder_that_starts_again_locks_its_former_self_out(self, store):
        old = store.acquire("0", "worker", 10.0, 100.0)
        assert store.acquire("0", "worker", 10.0, 101.0).epoch == 2
        with pytest.raises(LeaseLost):
            store.renew(old, 10.0, 102.0)

    def test_a_lease_that_nobody_took_can_be_renewed(self, store):
        lease = store.acquire("0", "worker", 10.0, 100.0)
        renewed = store.renew(lease, 10.0, 500.0)
        assert (renewed.epoch, renewed.until_seconds) == (1, 510.0)
        assert store.held() == [renewed]
        assert store.renew(lease, 10.0, 501.0).until_seconds == 511.0

    def test_a_released_lease_is_free_and_gives_no_right(self, store):
        lease = store.acquire("0", "worker", 10.0, 100.0)
        store.release(lease)
        assert store.held() == []
        with pytest.raises(LeaseLost):
            store.renew(lease, 10.0, 101.0)
        assert store.acquire("0", "other", 10.0, 101.0).epoch == 2
        store.release(lease)
        assert [held.holder for held in store.held()] == ["other"]

    def test_one_of_many_who_ask_at_once_gets_it(self, store):
        got = in_threads(8, lambda number: store.acquire("0", f"worker {number}", 10.0, 100.0))
        assert sum(lease is not None for lease in got) == 1


class PeopleContract:
    def test_a_device_is_enrolled_once_and_stays_as_it_is(self, store):
        assert store.register.find("a") is None
        assert store.register.add(enrolled("a")) == enrolled("a")
        assert store.register.add(replace(enrolled("a"), ledger_key=b"another")) == enrolled("a")
        assert store.register.find("a") == enrolled("a")

    def test_a_revocation_shows_at_once(self, store):
        store.register.add(enrolled("a"))
        assert store.register.revoke("a")
        assert not store.register.revoke("unheard of")
        assert store.register.find("a").revoked
        assert store.devices()[0].revoked

    def test_an_invitation_belongs_to_the_first_who_claims_it_in_time(self, store):
        now = datetime(2026, 11, 16, 12, tzinfo=UTC)
        good = StoredInvitation(b"1" * 32, now + timedelta(microseconds=1))
        old = StoredInvitation(b"2" * 32, now)
        for one in (good, old):
            store.invitations.add(one)
        assert store.invitations.claim(b"1" * 32, "a", now) == replace(good, used_by="a")
        assert store.invitations.claim(b"1" * 32, "b", now) == replace(good, used_by="a")
        assert store.invitations.claim(b"2" * 32, "a", now) == old
        assert store.invitations.claim(b"3" * 32, "a", now) is None

    def test_happenings_are_numbered_and_read_on_from_any_of_them(self, store):
        for number in range(5):
            store.note(Happening("round" if number % 2 else "split", float(number), facts={"n": number}))
        assert [one.number for one in store.happenings(after=2)] == [3, 4, 5]
        assert [one.facts["n"] for one in store.happenings(kind="round")] == [1, 3]
        assert [one.number for one in store.happenings(limit=2)] == [1, 2]


class ThreadsContract:
    def test_updates_of_many_threads_are_each_kept_once(self, store):
        names = [f"{number}" for number in range(40)]
        asked(store, *names)
        in_threads(8, lambda number: store.accept([update(name, name) for name in names[number * 5 :][:10]], 150.0))
        assert sorted(found.arrival for found in store.tasks(None, TaskState.ARRIVED)) == list(range(1, 41))


class StoreContract(IntakeContract, RoundsContract, LeasesContract, PeopleContract, ThreadsContract):
    """All of it."""


def in_threads(count, deed):
    """What `deed(number)` gave in each of `count` threads that began together."""
    results, start = [None] * count, threading.Barrier(count)

    def run(number):
        start.wait()
        results[number] = deed(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
