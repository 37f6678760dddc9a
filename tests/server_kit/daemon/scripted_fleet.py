"""Devices for chaos: threads that speak the real wire, keep what they were not thanked for, and never give up."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np

from device_sdk.wire.cancelling import Stop
from device_sdk.wire.channel import Channel, ChannelSettings
from device_sdk.wire.errors import Refused, WireError
from device_sdk.wire.messages import CheckIn, GridEncoding, Task, UpdateHeader
from device_sdk.wire.signing import signed
from device_sdk.wire.task_terms import mechanism_of
from privacy.packing import pack_array
from tests.device_sdk.wire.devices import TestDevice
from tests.server_kit.daemon.real_daemon import COORDINATES, RealDaemon

QUICK = ChannelSettings(first_backoff_seconds=0.05, most_backoff_seconds=0.5, connect_seconds=10, silence_seconds=30)


@dataclass
class Fleet:
    """What all devices have sent, and been thanked for."""

    daemon: RealDaemon
    gateway: str
    thanked: dict[int, UpdateHeader] = field(default_factory=dict)
    """By coordinate."""
    refused: dict[int, str] = field(default_factory=dict)
    stop: Stop = field(default_factory=Stop)
    failures: list[BaseException] = field(default_factory=list)
    _coordinates: Any = field(default_factory=itertools.count)
    _threads: list[threading.Thread] = field(default_factory=list)

    def begin(self, count: int) -> None:
        for _ in range(count):
            device = ScriptedDevice(self, self.daemon.device())
            thread = threading.Thread(target=device.live, daemon=True)
            thread.start()
            self._threads.append(thread)

    def end(self) -> None:
        """Nobody begins anything new; what was begun is brought to its end first."""
        self.ending.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive(), "a device cannot get rid of its update"
        assert not self.failures, self.failures

    def __post_init__(self) -> None:
        self.ending = threading.Event()

    def next_coordinate(self) -> int:
        place = next(self._coordinates)
        assert place < COORDINATES, "there are more updates than coordinates"
        return int(place)


@dataclass
class ScriptedDevice:
    """One device. Killed, it begins anew with what it has not been thanked for, as an outbox on disk would."""

    fleet: Fleet
    device: TestDevice
    unsent: tuple[int, UpdateHeader, bytes] | None = None

    def live(self) -> None:
        self.device.gateway = self.fleet.gateway
        chance = Random(self.device.id)
        while not (self.fleet.ending.is_set() and self.unsent is None):
            try:
                # Some lives are short: the channel is thrown away in the middle of whatever it does.
                self._one_life(rounds=chance.choice([1, 3, 30]))
            except WireError:
                continue
            except BaseException as error:
                self.fleet.failures.append(error)
                raise

    def _one_life(self, rounds: int) -> None:
        with self.device.channel(QUICK) as channel:
            self._send(channel)
            if self.fleet.ending.is_set():
                return
            with channel.attend(timeout_seconds=10) as session:
                for _ in range(rounds):
                    session.check_in(CheckIn())
                    task = session.receive(5)
                    if not isinstance(task, Task):
                        return
                    self._prepare(task)
                    self._send(channel)
                    if self.fleet.ending.is_set():
                        return

    def _prepare(self, task: Task) -> None:
        place, width = self.fleet.next_coordinate(), mechanism_of(task).width_bytes
        values = np.zeros(COORDINATES, dtype=np.int64)
        values[place] = 1
        payload = pack_array(values, width)
        header = replace(
            self.device.update(payload, task.task, mechanism_of(task)),
            cohort=task.cohort,
            round=task.round,
            model_sha256=task.model.blob.sha256,
            encoding=GridEncoding(COORDINATES, width),
            signature=b"",
        )
        self.unsent = (place, signed(header, self.device.id, self.device.signing), payload)

    def _send(self, channel: Channel) -> None:
        if self.unsent is None:
            return
        place, header, payload = self.unsent
        try:
            channel.upload(header, payload, timeout_seconds=10)
        except Refused as refusal:
            if refusal.retry_after_seconds:
                raise
            self.fleet.refused[place] = refusal.code.name
        else:
            self.fleet.thanked[place] = header
        self.unsent = None
