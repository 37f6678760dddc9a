"""A store is opened with the tables of this version, or with a sentence that says why not."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from server_kit.errors import CorruptRecord, InvalidSetting, StoreTooNew, StoreUnavailable
from server_kit.store.keys import StoreKeys
from server_kit.store.migrating import NEWEST, configuration, migrate
from server_kit.store.opening import backend_of, open_store
from server_kit.store.protocol import Happening
from server_kit.store.schema import metadata

ROOT = Path(__file__).parents[3]
KEYS = StoreKeys.generate()
OPEN = """
import sys
from server_kit.store.keys import StoreKeys
from server_kit.store.opening import open_store
open_store(sys.argv[1], StoreKeys.parse(sys.argv[2]), sys.argv[3]).close()
"""


def opened(url, tmp_path):
    return open_store(url, KEYS, tmp_path / "blobs")


def differences(url):
    with backend_of(url).engine().connect() as connection:
        return compare_metadata(MigrationContext.configure(connection), metadata)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request):
    return request.getfixturevalue(f"{request.param}_url")


def test_the_migrations_make_the_tables_of_the_schema(url):
    assert differences(url) == []


def test_a_table_that_no_migration_makes_is_caught(sqlite_url, tmp_path):
    connection = sqlite3.connect(tmp_path / "server.db")
    connection.execute("DROP TABLE views")
    connection.close()
    assert len(differences(sqlite_url)) == 1


def test_the_last_migration_is_the_newest():
    assert ScriptDirectory.from_config(configuration()).get_heads() == [NEWEST]


def test_a_store_is_made_private_where_there_is_none(tmp_path):
    opened(f"sqlite:///{tmp_path}/new/server.db", tmp_path).close()
    assert stat.S_IMODE((tmp_path / "new" / "server.db").stat().st_mode) == 0o600


def test_what_was_stored_is_there_when_it_is_opened_again(url, tmp_path):
    store = opened(url, tmp_path)
    store.note(Happening("round", 1.0))
    store.close()
    again = opened(url, tmp_path)
    assert len(again.happenings()) == 1
    again.close()


def test_a_closed_store_says_so(sqlite_url, tmp_path):
    store = opened(sqlite_url, tmp_path)
    store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        store.happenings()


def test_a_store_of_a_newer_version_is_refused_and_not_touched(url, tmp_path):
    with backend_of(url).engine().connect() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
    with pytest.raises(StoreTooNew, match="newer version"):
        opened(url, tmp_path)
    with backend_of(url).engine().connect() as connection:
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() == "9999"
        connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{NEWEST}'")
        connection.commit()


@pytest.mark.integration
def test_many_processes_may_open_a_new_store_at_once(tmp_path):
    arguments = [f"sqlite:///{tmp_path}/server.db", KEYS.current.hex(), str(tmp_path / "blobs")]
    command = [sys.executable, "-W", "error", "-c", OPEN, *arguments]
    processes = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    assert [(process.communicate()[1], process.returncode) for process in processes] == [("", 0)] * 3
    opened(arguments[0], tmp_path).close()


def test_an_interrupted_migration_leaves_nothing(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path}/server.db"
    with monkeypatch.context() as broken:
        broken.setattr("sqlalchemy.engine.Connection.commit", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            migrate(backend_of(url))
    connection = sqlite3.connect(tmp_path / "server.db")
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == []
    connection.close()
    opened(url, tmp_path).close()


def test_a_file_that_is_no_database_is_corrupt(tmp_path):
    (tmp_path / "server.db").write_bytes(b"not a database" * 100)
    with pytest.raises(CorruptRecord):
        opened(f"sqlite:///{tmp_path}/server.db", tmp_path)


def test_a_database_that_is_not_there_is_unavailable(tmp_path):
    with pytest.raises(StoreUnavailable) as caught:
        opened("postgresql+psycopg://covey:hidden@127.0.0.1:1/none", tmp_path)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://somewhere/x", "nonsense", ""])
def test_a_url_that_cannot_hold_a_store_is_refused(url):
    with pytest.raises(InvalidSetting, match="nothing was opened"):
        backend_of(url)
