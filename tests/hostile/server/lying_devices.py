"""A real daemon, honest devices of the SDK, and some that are enrolled, hold valid keys, and send what they like.

The daemon's settings are those of `covey server init`, but for how many devices and rounds there are and for terms
under which a few rounds teach something.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file
from sklearn.datasets import load_digits

from device_sdk import Device, PrivacyBudget
from device_sdk.trainers import NumpyTrainer
from device_sdk.wire import messages as m
from device_sdk.wire.errors import WireError
from device_sdk.wire.invitation import Invitation
from device_sdk.wire.signing import signed
from device_sdk.wire.task_terms import mechanism_of
from device_sdk.wire.tensors import read_model
from privacy.budget import PrivacyUnit
from privacy.packing import pack_array
from server_kit import Server
from server_kit.config.sample import sample_settings
from server_kit.daemon import norms
from server_kit.demo.terms import with_setting
from tests.device_sdk.wire.devices import TestDevice
from tests.server_kit.daemon.real_daemon import free_ports

Weights = dict[str, NDArray[np.float32]]
Vector = NDArray[np.float64]
LABELS, TARGET, SIDE, PATCH = 10, 3, 8, 3
TEACHING = {
    "record": {"noise_multiplier": "1.5", "sampling_rate": "1/10", "expected_batch_size": "16"},
    "device": {"noise_multiplier": "8", "clip_norm": "4"},
}


@dataclass(frozen=True)
class Digits:
    """Handwritten digits, the last of them for testing."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    tests: int = 500

    @classmethod
    def load(cls) -> Digits:
        pixels, labels = load_digits(return_X_y=True)
        return cls((pixels / 16).astype(np.float32), labels.astype(np.int64))

    def shares(self, devices: int) -> list[NDArray[np.int64]]:
        """As large as the sampling rate was made for; with many devices some records are with several of them."""
        records = np.arange(len(self.y) - self.tests)
        if devices <= 8:
            return list(np.array_split(records, devices))
        generator = np.random.default_rng(5)
        return [generator.choice(records, 160, replace=False) for _ in range(devices)]

    def accuracy(self, weights: Weights) -> float:
        return float((called(weights, self.x[-self.tests :]) == self.y[-self.tests :]).mean())

    def share_called_target(self, weights: Weights) -> float:
        return float((called(weights, self.x[-self.tests :]) == TARGET).mean())

    def backdoor(self, weights: Weights) -> float:
        """How often a painted corner makes a digit the target."""
        others = self.x[-self.tests :][self.y[-self.tests :] != TARGET]
        return float((called(weights, painted(others)) == TARGET).mean())


def called(weights: Weights, x: NDArray[np.float32]) -> NDArray[np.int64]:
    weight, bias = (next(value for name, value in weights.items() if name.endswith(end)) for end in ("weight", "bias"))
    return (x @ weight.T + bias).argmax(axis=1)


def painted(x: NDArray[np.float32]) -> NDArray[np.float32]:
    images = x.reshape(-1, SIDE, SIDE).copy()
    images[:, :PATCH, :PATCH] = 1.0
    return images.reshape(len(x), -1)


def settings(devices: int, rounds: int, level: str, ports: list[int], **aggregation: Any) -> str:
    """What `covey server init --preset fedavg` writes, for a small and eager federation."""
    text = sample_settings(preset="fedavg", level=level)
    said: dict[str, dict[str, Any]] = {
        "federation": {"participants": devices, "rounds": rounds},
        "training": {"learning_rate": 2.0 if level == "record" else 0.5},
        "privacy": TEACHING[level],
        "policy": {"epsilon": 60.0},
        "aggregation": aggregation,
        "listen": {
            door: f"127.0.0.1:{port}" for door, port in zip(("enrolment", "gateway", "status"), ports, strict=True)
        },
        "evaluation": {"every": 0},
    }
    for table, values in said.items():
        for name, value in values.items():
            text = with_setting(text, table, name, value)
    return text


Lie = Callable[[Weights, int], Vector | None]
"""What to send in a round, by the model that was handed out; None: nothing, as if there were no data."""


@dataclass
class Liar:
    """An enrolled device with a client of its own."""

    invited: str
    lie: Lie
    within_the_limit: bool = True
    """Whether it keeps to what the server takes, as whoever reads its code would."""
    seen: list[Weights] = field(default_factory=list)
    """The models that it was handed, round by round."""
    refused: list[str] = field(default_factory=list)

    def run(self) -> None:
        device = TestDevice().enrol_at(self)
        with device.channel() as channel, suppress(WireError), channel.attend() as session:
            session.check_in(m.CheckIn())
            while True:
                message = session.receive(120)
                if isinstance(message, m.ComeBack):
                    return
                if isinstance(message, m.Task):
                    weights = read_model(channel.download(message.model.blob), message.model.tensors)
                    self.seen.append({name: np.array(value) for name, value in weights.items()})
                    self._answer(device, channel, message)
                    session.check_in(m.CheckIn())

    def _answer(self, device: TestDevice, channel: Any, task: m.Task) -> None:
        mechanism = mechanism_of(task)
        vector = self.lie(self.seen[-1], task.round)
        if vector is None:
            vector = np.zeros(mechanism.size)
        length, longest = float(np.linalg.norm(vector)), norms.longest(task)
        if self.within_the_limit and length > 0.999 * longest:
            vector = vector * (0.999 * longest / length)
        payload = pack_array(np.rint(vector / mechanism.step).astype(np.int64), mechanism.width_bytes)
        receipt = replace(device.receipt(payload, mechanism.cost), mechanism=mechanism.name)
        receipt = replace(receipt, signature=device.ledger.sign(receipt.statement))
        header = replace(
            device.update(payload, task.task),
            cohort=task.cohort,
            round=task.round,
            model_sha256=task.model.blob.sha256,
            encoding=m.GridEncoding(mechanism.size, mechanism.width_bytes),
            ledger_head=receipt.head,
            sequence=receipt.sequence,
            receipt=receipt.to_json(),
            signature=b"",
        )
        try:
            channel.upload(signed(header, device.id, device.signing), payload)
        except WireError as error:
            self.refused.append(str(error))

    def invitation(self) -> Invitation:
        """As `TestDevice.enrol_at` asks for it."""
        return Invitation.from_text(self.invited)


@dataclass
class Outcome:
    """What became of a federation with liars in it."""

    handed_out: list[Weights]
    final: Weights
    refused: list[str]


def federation_with(
    folder: Path,
    lies: list[Lie],
    *,
    honest: int,
    rounds: int,
    level: str = "record",
    keep_limit: bool = True,
    **guard: Any,
) -> Outcome:
    """Train for some rounds with these liars among honest devices."""
    digits, ports = Digits.load(), free_ports(3)
    server = Server.create(folder / "federation", settings(honest + len(lies), rounds, level, ports, **guard))
    with server, ExitStack() as stack:
        invitations = server.invite(honest + len(lies))
        liars = [Liar(invitation, lie, keep_limit) for invitation, lie in zip(invitations, lies, strict=False)]
        threads = [threading.Thread(target=liar.run, daemon=True) for liar in liars]
        devices = [
            stack.enter_context(_device(folder / f"device-{number}", ports[0], invitation, level))
            for number, invitation in enumerate(invitations[len(lies) :])
        ]
        for thread in threads:
            thread.start()
        trainers = [NumpyTrainer(digits.x[rows], digits.y[rows]) for rows in digits.shares(honest)]
        runs = [device.start(trainer, rounds=rounds) for device, trainer in zip(devices, trainers, strict=True)]
        for run in runs:
            run.wait(240)
        for thread in threads:
            thread.join(20)
        out = folder / "model.safetensors"
        server.export("0", out)
    return Outcome(liars[0].seen, load_file(out), [each for liar in liars for each in liar.refused])


@contextmanager
def _device(folder: Path, port: int, invitation: str, level: str) -> Iterator[Device]:
    keys = {"store": "file", "file": str(folder.with_suffix(".key"))}
    budget = PrivacyBudget(epsilon=80, delta=1e-6, training=PrivacyUnit(level))
    with Device.open(folder, server=f"localhost:{port}", budget=budget, keys=keys) as device:
        device.enrol(invitation)
        yield device


# Lies


def replacing(devices: int, in_rounds: Callable[[int], bool]) -> Lie:
    """Puts a model that always says the target in the place of the common one."""

    def lie(weights: Weights, round_number: int) -> Vector | None:
        if not in_rounds(round_number):
            return None
        goal = {name: np.zeros_like(value) for name, value in weights.items()}
        bias = next(name for name in goal if name.endswith("bias"))
        goal[bias][TARGET] = 20.0
        return _flat({name: goal[name] - weights[name] for name in weights}) * devices

    return lie


def backdoor(devices: int, in_rounds: Callable[[int], bool]) -> Lie:
    """Learns that a painted corner means the target, beside the digits themselves, and sends that many times over."""
    digits = Digits.load()
    x, y = digits.x[:160], digits.y[:160]
    both = np.concatenate([x, painted(x)]), np.concatenate([y, np.full(len(x), TARGET)])

    def lie(weights: Weights, round_number: int) -> Vector | None:
        if not in_rounds(round_number):
            return None
        trained = {name: value.astype(np.float64) for name, value in weights.items()}
        weight, bias = (next(name for name in trained if name.endswith(end)) for end in ("weight", "bias"))
        for _ in range(200):
            scores = both[0] @ trained[weight].T + trained[bias]
            likely = np.exp(scores - scores.max(axis=1, keepdims=True))
            errors = likely / likely.sum(axis=1, keepdims=True) - np.eye(LABELS)[both[1]]
            trained[weight] -= 0.5 * errors.T @ both[0] / len(x)
            trained[bias] -= 0.5 * errors.mean(axis=0)
        return _flat({name: trained[name] - weights[name] for name in weights}) * devices

    return lie


def _flat(tensors: dict[str, Any]) -> Vector:
    return np.concatenate([np.asarray(tensors[name], dtype=np.float64).reshape(-1) for name in sorted(tensors)])
