"""The observer tells how the server does, says so when it cannot know, and tells nothing about a device."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from server_kit.daemon.federation_home import Home
from server_kit.errors import StoreUnavailable
from server_kit.metric_names import EVERY
from server_kit.metrics import Meter
from server_kit.observer import create_app
from server_kit.observer.health import is_alive, is_ready
from server_kit.observer.store_reader import StoreReader
from server_kit.store.memory import MemoryStore
from server_kit.store.protocol import CohortState, Digest
from tests.architecture.repository import ROOT
from tests.server_kit.dashboard.entering import TokenShown, bearer
from tests.server_kit.observer.asking import ask
from tests.server_kit.store.deliveries import cohort, enrolled, key_of, name_of, update


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return Home.create(tmp_path_factory.mktemp("observed") / "federation")


@pytest.fixture
def run(home):
    for path in home.run.glob("*.json"):
        path.unlink()
    return home.run


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def app(home, run, store):
    return TokenShown(create_app(home, StoreReader(home, open_store=lambda: store)), home)


def publish(run) -> None:
    for process in ("supervisor", "coordinator"):
        meter = Meter(process)
        meter.beat()
        meter.publish(run)


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class TestHealth:
    def test_it_is_alive_while_its_processes_publish(self, app, run):
        publish(run)
        reply = ask(app, "/healthz")
        assert (reply.status, reply.json()) == (200, {"ok": True, "faults": []})

    @pytest.mark.parametrize("missing", ["supervisor", "coordinator"])
    def test_without_one_of_them_it_is_not(self, app, run, missing):
        publish(run)
        (run / f"{missing}.json").unlink()
        reply = ask(app, "/healthz")
        assert (reply.status, reply.json()["faults"]) == (503, [f"{missing} has published nothing"])

    def test_one_that_hangs_is_noticed(self, run):
        publish(run)
        snapshots = [Meter("supervisor").snapshot(), replace(Meter("coordinator").snapshot(), at=time.time() - 40)]
        assert is_alive(snapshots, time.time()).faults == ("coordinator has been silent for 40 s",)

    def test_one_that_publishes_and_does_not_work_is_noticed(self):
        coordinator = Meter("coordinator")
        coordinator.beat()
        snapshots = [Meter("supervisor").snapshot(), coordinator.snapshot()]
        later = [replace(each, at=each.at + 300) for each in snapshots]
        assert is_alive(snapshots, time.time()).good
        assert is_alive(later, later[0].at).faults == ("coordinator has hung for 300 s",)

    def test_it_is_ready_when_the_coordinator_has_its_lease(self, app, run, store):
        publish(run)
        assert store.acquire("coordinator", "me", 60, time.time()) is not None
        assert ask(app, "/readyz").status == 200

    def test_without_the_lease_it_is_not_ready(self, app, run, store):
        publish(run)
        store.acquire("coordinator", "me", 1, time.time() - 10)
        reply = ask(app, "/readyz")
        assert (reply.status, reply.json()["faults"]) == (503, ["no coordinator holds its lease"])

    def test_a_store_that_cannot_be_read_is_not_ready(self):
        assert "the store cannot be read" in is_ready([], None, time.time(), time.time()).faults


class TestMetrics:
    def test_what_processes_count_is_exposed_by_process(self, app, run):
        meter = Meter("coordinator")
        meter.count("covey_rounds_total", 3, cohort="0.1")
        meter.gauge("covey_devices_connected", 40)
        for seconds in (0.002, 0.3, 4000.0):
            meter.observe("covey_round_seconds", seconds, cohort="0.1")
        meter.publish(run)
        found = samples(ask(app, "/metrics").text)
        of = (("cohort", "0.1"), ("process", "coordinator"))
        assert found["covey_rounds_total", of] == 3
        assert found["covey_devices_connected", (("process", "coordinator"),)] == 40
        assert found["covey_round_seconds_count", of] == 3
        assert found["covey_round_seconds_bucket", (of[0], ("le", "0.5"), of[1])] == 2
        assert found["covey_round_seconds_bucket", (of[0], ("le", "+Inf"), of[1])] == 3

    def test_what_the_store_knows_is_exposed(self, app, store):
        fill(store)
        found = samples(ask(app, "/metrics").text)
        assert found["covey_devices_enrolled", ()] == 1
        assert found["covey_devices_revoked", ()] == 1
        assert found["covey_refusals_total", (("reason", "replayed"),)] == 2
        assert found["covey_cohorts_by_state", (("state", "split"),)] == 1
        assert found["covey_cohort_version", (("cohort", "0.0"),)] == 4
        assert found["covey_releases_total", ()] == 1
        assert 0 < found["covey_privacy_epsilon", (("rank", "most"),)] <= 0.002
        assert found["covey_store_up", ()] == 1

    def test_no_device_is_ever_named(self, app, run, store):
        fill(store)
        publish(run)
        text = ask(app, "/metrics").text
        for number in (1, 2):
            assert name_of(number) not in text
            assert key_of(name_of(number)).hex() not in text

    def test_every_family_is_described(self, app, run, store):
        fill(store)
        publish(run)
        families = {
            family.name: family.documentation for family in text_string_to_metric_families(ask(app, "/metrics").text)
        }
        described = {name.removesuffix("_total"): meaning for name, meaning in EVERY.items()}
        assert families.items() <= described.items()

    def test_without_its_store_it_tells_what_it_can(self, home, run):
        def broken() -> MemoryStore:
            raise StoreUnavailable("the disk said no; nothing was read")

        publish(run)
        app = TokenShown(create_app(home, StoreReader(home, open_store=broken)), home)
        found = samples(ask(app, "/metrics").text)
        assert found["covey_store_up", ()] == 0
        assert ("covey_process_resident_bytes", (("process", "supervisor"),)) in found
        assert ask(app, "/healthz").status == 200
        assert ask(app, "/readyz").json()["faults"] == ["the store cannot be read"]

    def test_a_label_of_its_own_is_not_overwritten(self, app, run):
        meter = Meter("supervisor")
        meter.count("covey_restarts_total", process="worker")
        meter.publish(run)
        assert samples(ask(app, "/metrics").text)["covey_restarts_total", (("process", "worker"),)] == 1

    def test_the_store_is_asked_seldom(self, home):
        opened, now = [], [0.0]
        store = MemoryStore()

        def open_store() -> MemoryStore:
            opened.append(store)
            return store

        reader = StoreReader(home, open_store=open_store, clock=lambda: now[0])
        first = reader.facts()
        store.count_refusal("replayed", None, 0.0)
        assert reader.facts() is first
        now[0] = 6.0
        again = reader.facts()
        assert again is not None
        assert again.refusals == {"replayed": 1}
        assert len(opened) == 1


class TestDoors:
    @pytest.mark.parametrize("host", ["evil.example.com", "169.254.169.254", "localhost", "127.0.0.1:8480"])
    def test_a_page_of_somebody_else_cannot_ask_through_a_browser(self, app, host):
        assert ask(app.app, "/metrics", host).status == 401
        assert ask(app, "/metrics", host).status == 200

    def test_answers_are_not_kept_by_others(self, app):
        assert ask(app, "/healthz").headers["cache-control"] == "no-store"

    def test_there_is_nothing_else(self, app):
        assert ask(app, "/secrets").status == 404


@pytest.mark.integration
def test_the_process_serves_until_it_is_told_to_stop(tmp_path, free_port):
    home = Home.create(tmp_path / "federation", f"[listen]\nstatus = '127.0.0.1:{free_port}'\n")
    command = [sys.executable, "-m", "server_kit.observer", str(home.directory)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as observer:
        try:
            assert samples(fetched(f"http://127.0.0.1:{free_port}/metrics", bearer(home)))["covey_store_up", ()] == 1
            with pytest.raises(urllib.error.HTTPError, match="503"):
                urllib.request.urlopen(f"http://127.0.0.1:{free_port}/healthz", timeout=10)
        finally:
            observer.terminate()
        _, errors = observer.communicate(timeout=30)
    assert observer.returncode in {0, -15}
    assert all(json.loads(line)["process"] == "observer" for line in errors.splitlines())


def fetched(url: str, headers: dict[str, str]) -> str:
    for _ in range(300):
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as reply:
                return reply.read().decode()
        except urllib.error.URLError:
            time.sleep(0.1)
    pytest.fail("the observer never answered")


def fill(store: MemoryStore) -> None:
    """Two devices, one of them revoked; a cohort that has split; an update; refusals."""
    for number in (1, 2):
        store.register.add(enrolled(name_of(number)))
    store.register.revoke(name_of(2))
    parent = replace(cohort("0", 3), state=CohortState.SPLIT)
    store.digest(Digest(None, "federation", cohorts=[parent, cohort("0.0", 4), cohort("0.1", 5)]))
    store.accept([update(name_of(1), "nobody asked")], time.time())
    for _ in range(2):
        store.count_refusal("replayed", name_of(1), time.time())
