"""A device's settings: a frozen value, read from TOML and from keyword arguments, which win.

    server = "fl.example.com:8443"
    state = "state"
    [budget]
    epsilon = 8
    delta = 1e-6
    [keys]
    store = "file"
    file = "device.key"

Nothing is guessed: an unknown name is refused with the nearest valid one, a value of another type with the type that
is expected. There is no setting for a passphrase: a file is no place for one. Relative paths are relative to the
working directory, in a file too.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from device_sdk.affinity import Exploration
from device_sdk.errors import InvalidConfig
from device_sdk.events import emit
from device_sdk.question_policy import QuestionPolicy
from device_sdk.task_limits import TaskLimits
from privacy.budget import PrivacyBudget
from privacy.errors import InvalidTerms

if TYPE_CHECKING:
    from device_sdk.key_stores import KeyStore

Settings = TypeVar("Settings")
_LONGEST_HOST = 256


class KeyStoreKind(StrEnum):
    """Where the vault's key is kept; see `device_sdk.key_stores`."""

    OS = "os"
    PASSPHRASE = "passphrase"  # noqa: S105 - the name of a store
    FILE = "file"


@dataclass(frozen=True)
class KeySettings:
    """Which store keeps the vault's key."""

    store: KeyStoreKind = KeyStoreKind.OS
    file: Path | None = None
    """Only for the store `file`, and then needed."""

    def __post_init__(self) -> None:
        is_file = self.store is KeyStoreKind.FILE
        _require(not is_file or self.file is not None, "store 'file' needs file (--key-file): where the key is kept")
        _require(is_file or self.file is None, "file (--key-file) belongs to store 'file' (--key-store file)")

    def open(self, passphrase: Callable[[], str] | None = None) -> KeyStore:
        """The chosen store; `passphrase` asks for one where that was chosen."""
        from device_sdk.key_stores import FileKeyStore, OsKeyStore, PassphraseKeyStore

        if self.store is KeyStoreKind.FILE and self.file is not None:
            emit("key_file_used", store=self.store.value)
            return FileKeyStore(self.file)
        if self.store is KeyStoreKind.PASSPHRASE:
            _require(passphrase is not None, "the store 'passphrase' needs a function that asks for it")
            return PassphraseKeyStore(typing.cast("Callable[[], str]", passphrase))
        return OsKeyStore()


@dataclass(frozen=True)
class ConditionSettings:
    """How patient training is with conditions that fail; the conditions themselves are functions of the app."""

    least_battery_level: float = 0.2
    ask_every_seconds: float = 5.0
    patience_seconds: float = 600.0

    def __post_init__(self) -> None:
        _require(0 <= self.least_battery_level <= 1, "least_battery_level lies between 0 and 1")
        _require(self.ask_every_seconds > 0, "ask_every_seconds is above 0")
        _require(self.patience_seconds >= 0, "patience_seconds is not negative")


@dataclass(frozen=True)
class RoundSettings:
    """What a round may take."""

    most_attempts: int = 3
    """How often training is begun for one task: one that kills the app each time is given up."""
    most_model_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        _require(self.most_attempts >= 1, "most_attempts is at least 1")
        _require(self.most_model_bytes >= 1, "most_model_bytes is at least 1")


@dataclass(frozen=True)
class ScheduleSettings:
    """When answers leave; see `device_sdk.answer_schedule`."""

    first_seconds: float = 0.25
    """The first moment at which an answer leaves after its task came; it doubles from there. 0: when it is done."""

    def __post_init__(self) -> None:
        _require(0 <= self.first_seconds < math.inf, "first_seconds is not negative")


@dataclass(frozen=True)
class DeviceConfig:
    """Everything an app or a person can set."""

    server: str
    """host:port, and the name under which the vault keeps what belongs to it."""
    state: Path
    budget: PrivacyBudget
    keys: KeySettings = field(default_factory=KeySettings)
    conditions: ConditionSettings = field(default_factory=ConditionSettings)
    exploration: Exploration = field(default_factory=Exploration)
    rounds: RoundSettings = field(default_factory=RoundSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    limits: TaskLimits = field(default_factory=TaskLimits)
    questions: QuestionPolicy = field(default_factory=QuestionPolicy)

    def __post_init__(self) -> None:
        host, _, port = self.server.rpartition(":")
        named = bool(host) and len(host) < _LONGEST_HOST and host.isprintable()
        _require(named and port.isdecimal() and 0 < int(port) < 1 << 16, "server is host:port")
        for name, value in vars(self.exploration).items():
            _require(0 <= value <= 1, f"exploration.{name} lies between 0 and 1")

    @classmethod
    def of(cls, **settings: Any) -> Self:
        """From keyword arguments: values, mappings or settings objects."""
        return built(cls, settings, "")

    @classmethod
    def read(cls, path: Path, **settings: Any) -> Self:
        """From a TOML file; `settings` win over it, name by name."""
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidConfig(f"{path.name} could not be read ({error.strerror}); nothing was started") from error
        except ValueError as error:
            raise InvalidConfig(f"{path.name} is not TOML: {error}; nothing was started") from None
        return built(cls, _merged(found, settings), path.name)


def built(kind: type[Settings], values: Mapping[str, Any], where: str) -> Settings:
    """A settings object of `kind` from `values`; `InvalidConfig` names the setting, after `where` it was found."""
    hints = typing.get_type_hints(kind)
    fields = {known.name: known for known in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name in values:
        if name not in fields:
            raise _invalid(where, f"unknown setting {name!r}{_nearest(name, fields)}")
    needed = [
        name
        for name, known in fields.items()
        if known.default is dataclasses.MISSING and known.default_factory is dataclasses.MISSING and name not in values
    ]
    if needed:
        raise _invalid(where, f"{needed[0]} is not given")
    given = {name: _fitted(hints[name], value, _within(where, name)) for name, value in values.items()}
    try:
        return kind(**given)
    except InvalidTerms as error:
        raise _invalid(where, str(error)) from None
    except InvalidConfig as error:
        # A section says what is wrong; only here is known where it stands.
        raise _invalid(where, str(error)) from None


def _fitted(kind: Any, value: Any, where: str) -> Any:
    if isinstance(kind, types.UnionType):
        return None if value is None else _fitted(typing.get_args(kind)[0], value, where)
    if dataclasses.is_dataclass(kind):
        if type(value) is kind:
            return value
        return built(typing.cast("type[Any]", kind), _a(Mapping, value, where, "a table"), where)
    if issubclass(kind, StrEnum):
        known = {str(member) for member in kind}
        text = _a(str, value, where, "a text")
        if text not in known:
            raise _invalid(where, f"unknown value {text!r}{_nearest(text, known)}")
        return kind(text)
    if kind is Path:
        return Path(_a((str, Path), value, where, "a path"))
    if kind is bool:
        if not isinstance(value, bool):
            raise _invalid(where, f"expected true or false, got {type(value).__name__}")
        return value
    if kind is float:
        return float(_a((int, float), value, where, "a number"))
    return _a(kind, value, where, {int: "a whole number", str: "a text"}[kind])


def _a(kind: Any, value: Any, where: str, description: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, kind):
        raise _invalid(where, f"expected {description}, got {type(value).__name__}")
    return value


def _merged(found: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(found)
    for name, value in settings.items():
        old = found.get(name)
        merged[name] = {**old, **value} if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def _nearest(name: str, known: typing.Iterable[str]) -> str:
    names = sorted(known)
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {nearest[0]!r}?" if nearest else f"; there are {', '.join(names)}"


def _within(where: str, name: str) -> str:
    return f"{where} [{name}]" if where else f"[{name}]"


def _invalid(where: str, what: str) -> InvalidConfig:
    return InvalidConfig(f"{where}: {what}" if where else what)


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise InvalidConfig(f"{what}; nothing was started")
