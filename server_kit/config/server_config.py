"""`server.toml`: everything an operator can set, read once and checked before anything starts.

An empty file is a working federation. A name that is none is refused with the nearest that is one; there is no
setting for a secret.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from server_kit.config.listening import Listen
from server_kit.config.policy import Policy
from server_kit.config.privacy_terms import Privacy
from server_kit.config.strangers import Enrolment
from server_kit.config.tables import (
    Aggregation,
    Evaluation,
    FederationSettings,
    Guards,
    Log,
    StoreSettings,
    Supervision,
    Training,
)
from server_kit.errors import InvalidSetting
from server_kit.places import Place
from server_kit.reading import Reader

FILE_NAME = "server.toml"


@dataclass(frozen=True)
class ServerConfig:
    """One field for each table of the file."""

    federation: FederationSettings = field(default_factory=FederationSettings)
    training: Training = field(default_factory=Training)
    privacy: Privacy = field(default_factory=Privacy)
    policy: Policy = field(default_factory=Policy)
    aggregation: Aggregation = field(default_factory=Aggregation)
    listen: Listen = field(default_factory=Listen)
    store: StoreSettings = field(default_factory=StoreSettings)
    guards: Guards = field(default_factory=Guards)
    enrolment: Enrolment = field(default_factory=Enrolment)
    supervisor: Supervision = field(default_factory=Supervision)
    evaluation: Evaluation = field(default_factory=Evaluation)
    log: Log = field(default_factory=Log)

    @classmethod
    def read(cls, path: Path) -> Self:
        """The settings in a file; `InvalidSetting` names the file, the table and the setting."""
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise InvalidSetting(f"{path.name} could not be read ({error.strerror}); nothing was started") from error
        except UnicodeDecodeError as error:
            raise InvalidSetting(f"{path.name} is not a text in UTF-8; nothing was started") from error
        return cls.of_text(text, path.name, path.absolute().parent)

    @classmethod
    def of_text(cls, text: str, name: str = FILE_NAME, folder: Path | None = None) -> Self:
        """The settings in a text; relative paths start at `folder`."""
        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise Place(name).wrong(f"is no TOML ({error})") from error
        return cls._of_tables(tables, Place(name), Reader(folder or Path(), {}))

    @classmethod
    def _of_tables(cls, tables: Mapping[str, Any], place: Place, reader: Reader) -> Self:
        kinds = {each.name: each.default_factory for each in dataclasses.fields(cls)}
        for name, table in tables.items():
            if name not in kinds:
                raise place.unknown("table", name, kinds)
            if not isinstance(table, dict):
                raise place.wrong(f"{name} must be a table, written [{name}]")
        return cls(**{name: reader.value(kinds[name], table, place, name) for name, table in tables.items()})
