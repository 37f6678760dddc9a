"""Databases for the tests of the store. Making the tables takes longer than most tests, so it is done once."""

from __future__ import annotations

import shutil

import pytest

from server_kit.store.migrating import migrate
from server_kit.store.sqlite import Sqlite
from tests.server_kit.store.places import Place, fill
from tests.server_kit.store.postgres_server import PostgresServer


@pytest.fixture(scope="session")
def blank_database(tmp_path_factory):
    """A SQLite file with all tables and nothing in them."""
    path = tmp_path_factory.mktemp("blank") / "server.db"
    migrate(Sqlite(path))
    return path


@pytest.fixture
def sqlite_url(blank_database, tmp_path):
    shutil.copy(blank_database, tmp_path / "server.db")
    return f"sqlite:///{tmp_path}/server.db"


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL of these tests' own."""
    try:
        server = PostgresServer()
    except (FileNotFoundError, ImportError) as error:
        pytest.skip(f"PostgreSQL cannot be had here ({error}), so what the store does with it is NOT tested")
    yield server
    server.close()


@pytest.fixture
def postgres_url(postgres):
    return postgres.emptied()


@pytest.fixture
def place(sqlite_url, tmp_path):
    """Where a store is to lie."""
    return Place(sqlite_url, tmp_path / "blobs", str(tmp_path / "server.db"))


@pytest.fixture
def filled(place):
    """A closed store with two rows in each sealed column."""
    fill(place)
    return place
