"""`covey server check` finds what was destroyed, says what is lost and what to do, and exits with 1."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from server_kit.checkpoints import OF_FEDERATION, of_cohort, pack_cohort
from server_kit.daemon.check import Verdict, check_home
from server_kit.daemon.checks import check_blobs, check_store
from server_kit.daemon.federation_home import Home
from server_kit.daemon.kept_checks import check_checkpoints, check_kept, check_pages
from server_kit.models import initial_model
from server_kit.round import CohortState as Running
from server_kit.store.parcels import LARGE_BYTES
from server_kit.store.protocol import Asking, Digest
from tests.server_kit.store.deliveries import cohort, enrolled, name_of, task, update

CHECKS = (("pages", check_pages), ("records", check_kept), ("checkpoints", check_checkpoints))
DEVICES = [name_of(number) for number in range(1, 40)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Home:
    """A federation with checkpoints of three versions, updates in rows and in a blob, and receipts."""
    home = Home.create(tmp_path_factory.mktemp("kept") / "federation")
    store, checkpoints = home.open_store(), home.open_checkpoints()
    weights = initial_model(home.config.federation.model, 0).weights
    names = [
        checkpoints.write(of_cohort("0"), version, pack_cohort(Running("0", weights, version=version, round=version)))
        for version in (2, 3, 4)
    ]
    mine = checkpoints.write(OF_FEDERATION, 4, pack_cohort(Running("0", weights)))
    record = replace(cohort("0", 4), checkpoint=names[-1])
    store.digest(Digest(None, mine, cohorts=[record]))
    for number, device in enumerate(DEVICES):
        store.register.add(enrolled(device))
        store.ask(Asking([task(f"task-{number}", device, "0")], [record]))
    assert all(store.accept([update(device, f"task-{number}") for number, device in enumerate(DEVICES[:-1])], 1.0))
    large = update(DEVICES[-1], f"task-{len(DEVICES) - 1}", content=bytes(LARGE_BYTES + 1))
    assert store.accept([large], 1.0) == [True]
    store.close()
    return home


@pytest.fixture
def home(whole: Home, tmp_path: Path) -> Home:
    shutil.copytree(whole.directory, tmp_path / "federation")
    return Home.open(tmp_path / "federation")


def findings(home: Home) -> dict[str, list[str]]:
    """What is wrong, by check."""
    wrong: dict[str, list[str]] = {}
    for finding in check_home(home, CHECKS):
        if finding.verdict is Verdict.FAIL:
            wrong.setdefault(finding.check, []).append(finding.sentence)
    return wrong


def files(home: Home, folder: str) -> list[Path]:
    return sorted(path for path in (home.directory / "blobs" / folder).rglob("*") if path.is_file())


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


DESTROYED: list[Callable[[Path], None]] = [Path.unlink, damage, cut]
HOW = ["deleted", "one bit flipped", "cut"]


def test_nothing_is_found_where_nothing_is_wrong(home):
    assert findings(home) == {}


@pytest.mark.parametrize("destroy", DESTROYED, ids=HOW)
def test_all_checkpoints_destroyed(home, destroy):
    for path in files(home, "checkpoints"):
        destroy(path)
    wrong = findings(home)["checkpoints"]
    assert len(wrong) == 2, "of the cohort, and of the federation"
    assert all("the server cannot start; restore a backup" in sentence for sentence in wrong)


@pytest.mark.parametrize("destroy", DESTROYED, ids=HOW)
def test_the_newest_checkpoint_destroyed(home, destroy):
    destroy(files(home, "checkpoints/cohort-0")[-1])
    (sentence,) = findings(home)["checkpoints"]
    assert "would fall back to checkpoint 3 of cohort-0" in sentence


@pytest.mark.parametrize("destroy", DESTROYED, ids=HOW)
def test_a_blob_of_an_update_destroyed(home, destroy):
    (path,) = files(home, "updates")
    destroy(path)
    (sentence,) = findings(home)["records"]
    assert "the bytes of 1 updates are missing or damaged" in sentence
    assert "backup" in sentence


def test_all_blobs_gone(home):
    shutil.rmtree(home.directory / "blobs")
    assert set(findings(home)) == {"records", "checkpoints"}


def test_every_page_of_the_database_is_looked_at(home):
    """Each page in turn is filled with rubbish; whatever it held, something is found wrong."""
    path, found = home.directory / "covey.db", []
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (size,), (pages,) = (database.execute(f"PRAGMA {name}").fetchone() for name in ("page_size", "page_count"))
    database.close()
    before = path.read_bytes()
    for page in range(pages):
        path.write_bytes(before[: page * size] + b"\xa5" * size + before[(page + 1) * size :])
        for leftover in ("covey.db-wal", "covey.db-shm"):
            (home.directory / leftover).unlink(missing_ok=True)
        if findings(home).keys() & {"pages", "records", "checkpoints"}:
            found.append(page)
    assert found == list(range(pages))


def test_a_value_altered_in_its_row_is_found(home):
    with sqlite3.connect(home.directory / "covey.db") as database:
        (body, device) = database.execute("SELECT body, device_key FROM receipts LIMIT 1").fetchone()
        altered = bytes(body[:-1]) + bytes([body[-1] ^ 1])
        database.execute("UPDATE receipts SET body = ? WHERE device_key = ?", (altered, device))
    database.close()
    (sentence,) = findings(home)["records"]
    assert sentence.startswith("1 values in receipts cannot be read")


def test_a_check_that_only_writes_and_reads_a_blob_of_its_own_is_caught(home):
    """The broken twin: what was shipped once."""
    for path in files(home, "checkpoints"):
        path.unlink()
    found = check_home(home, (("database", check_store), ("blobs", check_blobs)))
    assert all(finding.verdict is Verdict.OK for finding in found)
