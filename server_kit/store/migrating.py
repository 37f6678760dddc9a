"""Bring a database to the tables of this version, once, whoever opens it first; refuse one of a newer version."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import inspect, text

from server_kit.errors import StoreTooNew

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import Connection

    from server_kit.store.database import Backend

NEWEST = "0001"
_FOLDER = Path(__file__).parent / "migrations"
_VERSION = text("SELECT version_num FROM alembic_version")


def migrate(backend: Backend) -> None:
    """Make or change the tables as far as needed, in one transaction, while nobody else does."""
    engine = backend.engine()
    try:
        with engine.connect() as connection:
            if version_of(connection) != NEWEST:
                connection.rollback()
                backend.begin_writing(connection.connection.driver_connection)
                _upgrade(connection)
    finally:
        engine.dispose()


def version_of(connection: Connection) -> str | None:
    """The number of the last step that was made; None for an empty database."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.execute(_VERSION).scalar()
    return found


def configuration() -> Config:
    """Where Alembic finds the steps."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    return config


def _upgrade(connection: Connection) -> None:
    # Heavy, and needed on the day of an upgrade only.
    from alembic import command
    from alembic.script import ScriptDirectory

    config = configuration()
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    found = version_of(connection)
    if found is not None and found not in known:
        raise StoreTooNew(
            f"this store was written by a newer version of Covey (step {found}, this version knows {NEWEST}); install "
            "that version or restore a backup; nothing was changed"
        )
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    connection.commit()
