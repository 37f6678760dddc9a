"""What the dashboard shows is what the store and the processes say, and names no device."""

from __future__ import annotations

import json
import time

import pytest

from server_kit.daemon.federation_home import Home
from server_kit.dashboard.chronicle import Chronicle
from server_kit.dashboard.cohort_views import thinned
from server_kit.dashboard.views import spread_bins
from server_kit.errors import StoreUnavailable
from server_kit.observer import create_app
from server_kit.observer.store_reader import StoreReader
from server_kit.privacy_spend import SpendSpread
from server_kit.store.memory import MemoryStore
from server_kit.store.protocol import Happening
from tests.server_kit.dashboard.believable import DEVICES, REASONS, ROUNDS
from tests.server_kit.dashboard.entering import TokenShown
from tests.server_kit.observer.asking import ask
from tests.server_kit.store.deliveries import key_of

DOCUMENTS = ["/api/overview", "/api/tracks", "/api/cohorts/0.0.0", "/api/devices", "/api/privacy", "/api/health"]


class TestCohorts:
    def test_the_tree_has_sizes_and_states(self, app):
        cohorts = {each["cohort"]: each for each in ask(app, "/api/overview").json()["cohorts"]}
        assert list(cohorts) == ["0", "0.0", "0.0.0", "0.0.1", "0.1", "0.1.0", "0.1.1"]
        assert {name: each["state"] for name, each in cohorts.items() if each["state"] == "merged"} == {
            "0.1.0": "merged",
            "0.1.1": "merged",
        }
        assert (cohorts["0.1"]["devices"], cohorts["0.1"]["round"], cohorts["0.1"]["parent"]) == (26, ROUNDS, "0")

    def test_the_round_in_progress_says_who_is_awaited_and_how_long(self, app):
        found = next(each for each in ask(app, "/api/overview").json()["cohorts"] if each["cohort"] == "0.1")["open"]
        assert (found["selected"], found["arrived"], found["needed"], found["late"]) == (9, 4, 8, 0)
        assert found["deadline_at"] - found["opened_at"] == pytest.approx(120)

    def test_a_cohort_that_does_not_train_has_none(self, app):
        assert ask(app, "/api/cohorts/0.1.0").json()["open"] is None

    def test_a_page_has_what_its_ancestors_did(self, app):
        found = ask(app, "/api/cohorts/0.0.0").json()
        assert found["lineage"] == ["0", "0.0", "0.0.0"]
        assert [each["cohort"] for each in found["before"]] == ["0", "0.0"]
        assert len(found["series"]["accuracy"]) == len(found["series"]["loss"]) == 50
        assert sum(found["mix"].values()) == 20 * 7

    def test_splits_and_merges_are_told_newest_first(self, app):
        told = ask(app, "/api/overview").json()["changes"]
        assert [(each["kind"], each["cohort"]) for each in told] == [
            ("split", "0.0"),
            ("merge", "0.1"),
            ("split", "0.1"),
            ("split", "0"),
        ]
        assert (told[0]["children"], told[0]["sizes"]) == (["0.0.0", "0.0.1"], [21, 17])

    @pytest.mark.parametrize("name", ["9", "0.7", "..", "%00", "0.1.0.0.0"])
    def test_one_that_never_was_is_not_found(self, app, name):
        assert ask(app, f"/api/cohorts/{name}").status == 404


class TestDevices:
    def test_every_state_is_counted(self, app):
        found = ask(app, "/api/devices").json()
        assert sum(found["states"].values()) == len(DEVICES)
        assert (found["states"]["revoked"], found["states"]["never"]) == (2, 4)
        assert found["refusals"] == REASONS

    def test_a_state_can_be_chosen(self, app):
        found = ask(app, "/api/devices?state=revoked").json()
        assert [each["state"] for each in found["devices"]] == ["revoked", "revoked"]

    def test_pages_hold_each_device_once(self, app):
        shown = [each["device"] for page in (1, 2) for each in ask(app, f"/api/devices?page={page}").json()["devices"]]
        assert sorted(shown) == sorted(device[:10] for device in DEVICES)

    @pytest.mark.parametrize("query", ["page=0", "page=-1", "page=x", "page=99999999", "state=%27", "page=" + "9" * 40])
    def test_a_page_that_is_none_is_the_nearest(self, app, query):
        assert ask(app, f"/api/devices?{query}").json()["page"] in {1, 2}

    @pytest.mark.parametrize("path", DOCUMENTS)
    def test_no_document_names_a_device_or_its_keys(self, app, path):
        assert named_in(ask(app, path).text) == []

    def test_a_document_that_does_would_be_caught(self):
        assert named_in(json.dumps({"device": DEVICES[3]})) == [DEVICES[3]]


def named_in(text: str) -> list[str]:
    return [each for each in DEVICES if each in text or each[:11] in text or key_of(each).hex()[:16] in text]


class TestPrivacy:
    def test_the_spread_is_of_all_devices_and_beside_the_limit(self, app):
        found = ask(app, "/api/privacy").json()
        assert sum(each["devices"] for each in found["bins"]) == found["devices"] == 58
        assert found["limit"] == 8.0
        assert found["over"] == 0
        assert found["bins"][-1]["to"] > found["limit"]

    def test_the_first_page_does_not_wait_for_the_sum_and_has_it_soon(self, app):
        for _ in range(200):
            if (spend := ask(app, "/api/overview").json()["spend"]) is not None:
                break
            time.sleep(0.05)
        assert (spend["devices"], spend["limit"]) == (58, 8.0)
        assert 0 < spend["median"] <= spend["most"] <= 8.0

    def test_no_device_falls_out_of_the_bins(self):
        spread = SpendSpread({0.0: 1, 0.5: 2, 1.0: 3})
        bins = spread_bins(spread, 1.0)
        assert sum(each["devices"] for each in bins) == 6
        assert (bins[0]["devices"], bins[-1]["devices"]) == (1, 3)


class TestWithoutMuchToShow:
    def test_an_empty_federation_has_documents(self, tmp_path):
        home, store = Home.create(tmp_path / "f"), MemoryStore()
        app = TokenShown(create_app(home, StoreReader(home, open_store=lambda: store)), home)
        for path in ("/api/overview", "/api/tracks", "/api/devices", "/api/privacy", "/api/health"):
            assert ask(app, path).status == 200
        overview = ask(app, "/api/overview").json()
        assert (overview["running"], overview["cohorts"], overview["read_to"]) == (False, [], 0)

    def test_without_its_store_it_says_so(self, home):
        def broken() -> MemoryStore:
            raise StoreUnavailable("the disk said no; nothing was read")

        app = TokenShown(create_app(home, StoreReader(home, open_store=broken)), home)
        assert ask(app, "/api/overview").json()["store_up"] is False
        assert ask(app, "/api/health").json()["ready"]["faults"] == ["the store cannot be read"]
        assert ask(app, "/api/devices").status == 404


class TestChronicle:
    def test_a_cohort_that_trains_again_has_two_spans(self, home):
        store = home.open_store()
        chronicle = Chronicle()
        chronicle.read_on(store)
        store.close()
        spans = chronicle.track("0.1").spans
        assert [end is None for _, end in spans] == [False, True]
        assert all(end is not None for _, end in chronicle.track("0.1.0").spans)

    def test_it_is_read_on_and_never_twice(self):
        store, chronicle = MemoryStore(), Chronicle()
        for number in range(1, 6):
            store.note(Happening("tested", float(number), "0", {"round": number, "accuracy": number / 10}))
            chronicle.read_on(store)
        assert [point[0] for point in chronicle.track("0").accuracy] == [1, 2, 3, 4, 5]

    def test_it_does_not_grow_without_end(self):
        store, chronicle = MemoryStore(), Chronicle()
        for number in range(1, 5000):
            store.note(Happening("tested", float(number), "0", {"round": number, "accuracy": 0.5}))
        chronicle.read_on(store)
        points = chronicle.track("0").accuracy
        assert len(points) <= 600
        assert points[-1][0] == 4999
        assert [point[0] for point in points] == sorted(point[0] for point in points)

    @pytest.mark.parametrize("facts", [{}, {"accuracy": "high"}, {"accuracy": float("inf")}, {"round": None, "mix": 3}])
    def test_facts_of_another_version_do_no_harm(self, facts):
        chronicle = Chronicle()
        chronicle._take(Happening("round", 1.0, "0", facts))
        assert chronicle.track("0").accuracy == []

    @pytest.mark.parametrize("count", [0, 1, 239, 240, 241, 600])
    def test_a_chart_has_the_first_and_the_newest(self, count):
        points = thinned([[number] for number in range(count)])
        assert len(points) == min(count, 240)
        assert points[:1] == [[number] for number in range(count)][:1]
        assert points[-1:] == [[number] for number in range(count)][-1:]
