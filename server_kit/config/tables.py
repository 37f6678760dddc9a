"""Tables of `server.toml` that are plain settings. The defaults are what an empty file means."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qs, urlsplit

from server_kit.config.checking import require
from server_kit.places import Place

if TYPE_CHECKING:
    from device_sdk.wire.messages import Blob, LocalObjective
    from server_kit.daemon.blacklist import Leniency
    from server_kit.daemon.gateway import GatewaySettings
    from server_kit.store.protocol import Quota
    from server_kit.strategy import Strategy


_FEWEST_HUNG_SECONDS = 5.0


@dataclass(frozen=True)
class FederationSettings:
    """[federation]: what is trained, how, and with how many."""

    name: str = "covey"
    model: str = "server_kit.models:digits_softmax"
    """`package.module:build`; build() gives a torch module or a mapping of names to arrays. Its code is run."""
    preset: str = "covey"
    overrides: dict[str, Any] = field(default_factory=dict)
    """Laid over the preset, table by table."""
    participants: int = 20
    """How many devices train at a time, over all cohorts."""
    begin_with: int | None = None
    """The fewest waiting devices with which a round is opened; by default as many as take part."""
    rounds: int = 0
    """After how many rounds of each cohort the server rests; 0: without end."""
    deadline_seconds: float = 600.0
    seed: int = 0
    device: str = "auto"
    """Where models are aggregated: auto, cpu, cuda or cuda:1."""

    def __post_init__(self) -> None:
        require(bool(self.name.strip()) and self.name.isprintable(), "name must be a printable text")
        module, _, build = self.model.partition(":")
        require(bool(module and build), f"model must be 'package.module:build', got {self.model!r}")
        require(self.participants >= 1, f"participants must be at least 1, got {self.participants}")
        require(self.begin_with is None or self.begin_with >= 1, "begin_with must be at least 1")
        require(self.rounds >= 0, f"rounds must be 0 (without end) or more, got {self.rounds}")
        require(0 < self.deadline_seconds < math.inf, "deadline_seconds must be above 0")
        require(self.seed >= 0, f"seed must be 0 or more, got {self.seed}")
        known = re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device, re.ASCII)
        require(known is not None, f"device must be auto, cpu, cuda or cuda:NUMBER, got {self.device!r}")

    @property
    def waiting_needed(self) -> int:
        """With how many waiting devices a round is opened."""
        return self.participants if self.begin_with is None else self.begin_with

    def strategy(self, level: Literal["record", "device"]) -> Strategy:
        """The preset as it is for this level of privacy, with the overrides; an unknown name is refused."""
        from server_kit.presets import strategy

        overrides = {"deadline_seconds": self.deadline_seconds, **self.overrides}
        return strategy(self.preset, overrides, Place("server.toml", ("federation",)), unit=level)


@dataclass(frozen=True)
class Training:
    """[training]: what a device does with its data. Either `steps` or `epochs`."""

    learning_rate: float = 0.1
    batch_size: int = 16
    steps: int | None = None
    epochs: int | None = None
    momentum: float = 0.0

    def __post_init__(self) -> None:
        require(0 < self.learning_rate < math.inf, f"learning_rate must be above 0, got {self.learning_rate}")
        require(self.batch_size >= 1, f"batch_size must be at least 1, got {self.batch_size}")
        require(self.steps is None or self.epochs is None, "give steps or epochs, not both")
        require(self.steps is None or self.steps >= 1, f"steps must be at least 1, got {self.steps}")
        require(self.epochs is None or self.epochs >= 1, f"epochs must be at least 1, got {self.epochs}")
        require(0 <= self.momentum < 1, f"momentum must be at least 0 and below 1, got {self.momentum}")
        if self.steps is None and self.epochs is None:
            object.__setattr__(self, "steps", 10)

    def objective(self, *, proximal: float = 0.0, mask: Blob | None = None, halves: bool = False) -> LocalObjective:
        """The objective of a task."""
        from device_sdk.wire.messages import LocalObjective

        return LocalObjective(
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            epochs=self.epochs,
            steps=self.steps,
            momentum=self.momentum,
            proximal=proximal,
            mask=mask,
            halves=halves,
        )


@dataclass(frozen=True)
class Aggregation:
    """[aggregation]: what keeps a few dishonest devices from carrying a model away."""

    guard: Literal["auto", "trimmed_mean", "coordinate_median", "norm_bound", "none"] = "auto"
    """What stands before the preset's own rule; see `server_kit.guarding`."""
    trim: float = 0.25
    """With "trimmed_mean", the share of values that is left out at either end of each coordinate."""
    most_records: float = 4.0
    """Level "record": how many times the records that `sampling_rate` was made for a device may hold; what is longer
    than the update of such a device is refused."""

    def __post_init__(self) -> None:
        require(0 <= self.trim < 0.5, f"trim must be at least 0 and below 0.5, got {self.trim}")
        require(1 <= self.most_records < math.inf, f"most_records must be 1 or more, got {self.most_records}")


@dataclass(frozen=True)
class StoreSettings:
    """[store]: where the server keeps what it must not forget."""

    url: str = ""
    """By default a SQLite file in the federation's directory."""
    blobs: str = ""
    """A directory or an fsspec URL for models and large updates; by default in the federation's directory."""
    keep_checkpoints: int = 3

    def __post_init__(self) -> None:
        require(
            not _holds_password(self.url),
            "url must not hold a password, for files are copied; put it into secrets/database_password (mode 0600) "
            "or into COVEY_DATABASE_PASSWORD",
        )
        require(
            not _holds_password(self.blobs),
            "blobs must not hold a password, for files are copied; give it to the storage's own library",
        )
        require(self.keep_checkpoints >= 1, f"keep_checkpoints must be at least 1, got {self.keep_checkpoints}")


def _holds_password(url: str) -> bool:
    parts = urlsplit(url)
    return parts.password is not None or any("password" in name for name in parse_qs(parts.query))


@dataclass(frozen=True)
class Guards:
    """[guards]: what one device may take, and what its misconduct costs it."""

    most_upload_bytes: int = 1 << 30
    most_calls_per_device: int = 6
    most_connections_per_device: int = 4
    most_connections_per_address: int = 4096
    """Of devices that have shown a certificate: many may share an address."""
    most_connections: int = 16384
    messages_at_once: int = 500
    messages_a_second: float = 100.0
    most_summary_bytes: int = 1 << 16
    """Of one summary; how long one must be follows from its terms."""
    most_summaries: int = 64
    """Of one device, kept at a time; then the oldest goes."""
    most_summaries_bytes: int = 1 << 20
    """Of one device, kept at a time."""
    summaries_a_day: float = 100.0
    """Of one device, beside answers to questions that it was asked."""
    silence_seconds: float = 120.0
    """A transfer in which nothing moves for so long is cut."""
    strikes: int = 3
    """False affinity claims before a device is left out."""
    ban_rounds: int = 50
    """For how many rounds it is left out."""
    certificate_days: float = 3.0
    """How long a device's certificate is good; it renews it by itself."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            require(0 < value < math.inf, f"{name} must be above 0, got {value}")

    def leniency(self) -> Leniency:
        """As the blacklist takes them."""
        from server_kit.daemon.blacklist import Leniency

        return Leniency(self.strikes, self.ban_rounds)

    def quota(self) -> Quota:
        """As the store takes them."""
        from server_kit.store.protocol import Quota

        return Quota(self.most_summaries, self.most_summaries_bytes)

    def gateway(self) -> GatewaySettings:
        """As the gateway takes them."""
        from server_kit.daemon.gateway import GatewaySettings

        return GatewaySettings(
            most_upload_bytes=self.most_upload_bytes,
            most_calls_per_device=self.most_calls_per_device,
            most_connections_per_device=self.most_connections_per_device,
            most_connections_per_address=self.most_connections_per_address,
            most_connections=self.most_connections,
            messages_at_once=self.messages_at_once,
            messages_a_second=self.messages_a_second,
            silence_seconds=self.silence_seconds,
            certificate_lifetime=timedelta(days=self.certificate_days),
        )


@dataclass(frozen=True)
class Evaluation:
    """[evaluation]: how models are tested: on the server's own data, or else by asking devices."""

    validation: Path | None = None
    """A .npz file with arrays x and y."""
    every: int = 1
    """Test each so many models of a cohort; 0: never."""

    def __post_init__(self) -> None:
        require(self.every >= 0, f"every must be 0 (never) or more, got {self.every}")


@dataclass(frozen=True)
class Supervision:
    """[supervisor]: when a process of the server counts as hung."""

    hung_seconds: float = 60.0
    """One that has given no sign of life for so long is killed and started again."""

    def __post_init__(self) -> None:
        require(
            _FEWEST_HUNG_SECONDS <= self.hung_seconds < math.inf,
            f"hung_seconds must be at least {_FEWEST_HUNG_SECONDS:g}, got {self.hung_seconds}",
        )


class LogFormat(StrEnum):
    """How log lines look."""

    AUTO = "auto"
    """Text on a terminal, JSON otherwise."""
    JSON = "json"
    TEXT = "text"


@dataclass(frozen=True)
class Log:
    """[log]: how much the server tells, and in which form."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: LogFormat = LogFormat.AUTO
