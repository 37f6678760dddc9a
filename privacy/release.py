"""How data become a release: the one order of events, and the only object that may leave a device.

    book the cost, durably  ->  draw the noise  ->  read the data  ->  store the answer, sealed  ->  send

A mechanism knows its cost before it sees data. `perform` books it in the ledger and only then lets the
mechanism touch the data; the answer is on disk before anyone can send it. The same request answers
with the same bytes and costs nothing; a crash in between has cost budget, never privacy.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, TypeVar

from privacy.errors import ReleaseRefused

if TYPE_CHECKING:
    from privacy.budget import PrivacyCost
    from privacy.ledger import Ledger
    from privacy.randomness import NoiseSource

Data_contra = TypeVar("Data_contra", contravariant=True)


@dataclass(frozen=True)
class Guarantee:
    """What a mechanism promises, in words an auditor can check: sensitivity, noise, and where the proof is."""

    sensitivity: str
    noise: str
    proof: str


@dataclass(frozen=True)
class Answer:
    """What a mechanism computed. `seeded` says that its noise can be predicted: such an answer never leaves."""

    payload: bytes
    seeded: bool = False


class Mechanism(Protocol[Data_contra]):
    """Turns private data into an answer whose cost was known beforehand."""

    @property
    def name(self) -> str:
        """Stands in the ledger, e.g. `label_histogram`."""

    @property
    def terms(self) -> dict[str, int | str]:
        """The public parameters; two mechanisms with equal terms are interchangeable."""

    @property
    def cost(self) -> PrivacyCost:
        """What every answer costs, whatever the data."""

    @property
    def guarantee(self) -> Guarantee:
        """Sensitivity, noise and proof."""

    def check(self, data: Data_contra) -> None:
        """Raise `InvalidTerms` where the data's public form (shape, type) differs from the terms."""

    def answer(self, data: Data_contra, noise: NoiseSource) -> Answer:
        """Draw the noise, then read the data. Never fails for what the data contain."""


@dataclass(frozen=True)
class Release:
    """What may leave the device: noised, booked and stored. Only `Ledger.settle` makes one."""

    sequence: int
    mechanism: str
    server: str
    purpose: str
    cost: PrivacyCost
    request: str
    head: str
    payload: bytes
    seeded: bool = False

    @cached_property
    def payload_hash(self) -> str:
        return hashlib.sha256(self.payload).hexdigest()

    def for_sending(self) -> bytes:
        """The bytes to send; refused where the noise came from a seed."""
        if self.seeded:
            raise ReleaseRefused(
                f"release {self.sequence} was noised from a seed, so anyone who knows the seed can undo it; "
                "use the OS's random source; it stays on the device"
            )
        return self.payload


@dataclass(frozen=True)
class Request:
    """Who asks for what. Equal requests are one release: the same bytes, paid for once."""

    server: str
    purpose: str
    subject: str
    """What the question is about: a task and round, or a data epoch. Chosen by schedule, never from data."""


def perform(
    ledger: Ledger, mechanism: Mechanism[Data_contra], data: Data_contra, request: Request, noise: NoiseSource
) -> Release:
    """Release `data` through `mechanism`, once: book, noise, store. See the module's order of events."""
    mechanism.check(data)
    reservation = ledger.reserve(mechanism.name, mechanism.terms, mechanism.cost, request)
    stored = ledger.stored(reservation)
    if stored is not None:
        return stored
    return ledger.settle(reservation, mechanism.answer(data, noise))
