"""What stands in a ledger: five kinds of event, their one spelling as bytes, and the chain that ties them.

    hash of an entry = SHA-256("covey-ledger-v1" ‖ hash of the entry before ‖ body)

Two statements are signed about how far a ledger has come, under two tags. The one about its end stays in the
device's files. The other goes out with receipts and comes back in countersignatures; nobody can make an end of it.

A body has one spelling (`privacy.canonical`). Nothing in an entry is derived from data: what was asked,
what it costs, and the hash of an answer that was noised already.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from privacy.accounting.limits import BudgetLimits, Spend
from privacy.canonical import (
    Fields,
    as_text,
    as_whole,
    canonical,
    parse,
    take_hex,
    take_list,
    take_text,
    take_whole,
    take_wholes,
)
from privacy.errors import InvalidTerms
from privacy.ledger.terms import budget_fields, cost_fields, spend_list, take_budget, take_cost

if TYPE_CHECKING:
    from privacy.budget import PrivacyBudget, PrivacyCost

FORMAT_VERSION = 2
FIRST_VERSION = 1
"""Ledgers that were opened before there was a mark; their ends were signed as receipts are."""
BEFORE_GENESIS = bytes(32)
_MOST_BYTES = 1 << 20
_CHAIN_TAG = b"covey-ledger-v1"
_HEAD_TAG = "covey-head-v1"
_END_TAG = "covey-end-v1"
_OPEN_TAG = "covey-open-v1"
_TERMS_TAG = "covey-terms-v1"
_REQUEST_TAG = "covey-request-v1"


def link(previous: bytes, body: bytes) -> bytes:
    """The hash that ties `body` to everything before it."""
    return hashlib.sha256(_CHAIN_TAG + previous + body).digest()


def terms_digest(mechanism: str, terms: dict[str, int | str]) -> str:
    """The public parameters of a mechanism, as one hash."""
    return _digest([_TERMS_TAG, mechanism, _pairs(terms)])


def request_digest(server: str, purpose: str, subject: str, mechanism: str, terms: dict[str, int | str]) -> str:
    """Who asks what about which subject, as one hash: equal requests are one release."""
    return _digest([_REQUEST_TAG, server, purpose, subject, mechanism, _pairs(terms)])


@dataclass(frozen=True)
class Head:
    """An entry of a ledger under the device's signature: as its end, or as a server was shown it."""

    ledger: str
    sequence: int
    digest: bytes
    signature: bytes

    @property
    def statement(self) -> bytes:
        """What is signed for a server."""
        return head_statement(self.ledger, self.sequence, self.digest)

    @property
    def end_statement(self) -> bytes:
        """What is signed where this is the end."""
        return end_statement(self.ledger, self.sequence, self.digest)


def head_statement(ledger: str, sequence: int, digest: bytes) -> bytes:
    """What a device signs for a server: this ledger has come so far, at least."""
    return canonical([_HEAD_TAG, ledger, sequence, digest.hex()])


def end_statement(ledger: str, sequence: int, digest: bytes) -> bytes:
    """What a device signs for itself: this ledger ends here. It never leaves the device."""
    return canonical([_END_TAG, ledger, sequence, digest.hex()])


@dataclass(frozen=True)
class Opened:
    """The first entry: the budget, once and for all, and what a predecessor had spent of it.

    It carries a signature of its own, so that the budget can still be believed when the chain
    behind it is broken and a person starts over.
    """

    kind: ClassVar[str] = "open"

    ledger: str
    device_key: str
    budget: PrivacyBudget
    limits: BudgetLimits
    carried: Spend
    carried_by_server: tuple[tuple[str, Spend], ...] = ()
    quotas: tuple[tuple[str, int], ...] = ()
    predecessor: tuple[tuple[str, str], ...] = ()
    """Name and SHA-256 of each broken file that this ledger continues; empty for a first ledger."""
    shown: tuple[tuple[str, int], ...] = ()
    """Key and last number of each excerpt that goes on (`privacy.ledger.excerpts`)."""
    lost: int = 0
    """The most releases that a predecessor may have made and that nobody can read any more."""
    version: int = FORMAT_VERSION
    signature: str = ""

    @property
    def statement(self) -> bytes:
        """What the device signs: these are the terms of this ledger."""
        return canonical({**self.to_fields(), "signature": _OPEN_TAG})

    def to_fields(self) -> Fields:
        excerpts = {"shown": [list(shown) for shown in self.shown], "lost": self.lost}
        return {
            "version": self.version,
            "ledger": self.ledger,
            "device_key": self.device_key,
            **budget_fields(self.budget),
            "limits": [*spend_list(self.limits), self.limits.renyi_order_milli],
            "carried": spend_list(self.carried),
            "carried_by_server": [[server, *spend_list(spend)] for server, spend in self.carried_by_server],
            "quotas": [list(pair) for pair in self.quotas],
            "predecessor": [list(pair) for pair in self.predecessor],
            **({} if self.version == FIRST_VERSION else excerpts),
            "signature": self.signature,
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        version = take_whole(fields, "version")
        if version not in {FIRST_VERSION, FORMAT_VERSION}:
            raise ValueError("unknown format version")
        excerpts: Fields = {"shown": [], "lost": 0} if version == FIRST_VERSION else fields
        budget = take_budget(fields)
        return cls(
            ledger=take_text(fields, "ledger"),
            device_key=take_text(fields, "device_key"),
            budget=budget,
            limits=BudgetLimits(budget.relation, *take_wholes(fields, "limits", 4)),
            carried=Spend(*take_wholes(fields, "carried", 3)),
            carried_by_server=tuple(
                (as_text(server), Spend(*map(as_whole, spend)))
                for server, *spend in take_list(fields, "carried_by_server")
            ),
            quotas=tuple((as_text(server), as_whole(share)) for server, share in take_list(fields, "quotas")),
            predecessor=tuple((as_text(name), as_text(sha)) for name, sha in take_list(fields, "predecessor")),
            shown=tuple((as_text(key), as_whole(number)) for key, number in take_list(excerpts, "shown")),
            lost=take_whole(excerpts, "lost"),
            version=version,
            signature=take_text(fields, "signature"),
        )


@dataclass(frozen=True)
class Reserved:
    """A spend, booked before any noise is drawn. It counts whatever happens next."""

    kind: ClassVar[str] = "reserve"

    mechanism: str
    terms: str
    cost: PrivacyCost
    purpose: str
    server: str
    request: str
    spend: Spend
    spent: Spend
    spent_by_server: Spend
    shown: str = ""
    """The key of the excerpt that the release goes into; none where the server is shown the ledger itself."""

    def to_fields(self) -> Fields:
        return {
            "mechanism": self.mechanism,
            "terms": self.terms,
            **cost_fields(self.cost),
            "purpose": self.purpose,
            "server": self.server,
            "request": self.request,
            "spend": spend_list(self.spend),
            "spent": spend_list(self.spent),
            "spent_by_server": spend_list(self.spent_by_server),
            **({"shown": self.shown} if self.shown else {}),
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(
            mechanism=take_text(fields, "mechanism"),
            terms=take_text(fields, "terms"),
            cost=take_cost(fields),
            purpose=take_text(fields, "purpose"),
            server=take_text(fields, "server"),
            request=take_text(fields, "request"),
            spend=Spend(*take_wholes(fields, "spend", 3)),
            spent=Spend(*take_wholes(fields, "spent", 3)),
            spent_by_server=Spend(*take_wholes(fields, "spent_by_server", 3)),
            shown=take_hex(fields, "shown").hex() if "shown" in fields else "",
        )


@dataclass(frozen=True)
class Released:
    """The one answer to a reservation exists and is stored; only now may it be sent."""

    kind: ClassVar[str] = "release"

    reserve: int
    payload_hash: str
    sealed_hash: str
    """SHA-256 of the sealed bytes, so that whoever has no key can still check what is stored."""
    seeded: bool

    def to_fields(self) -> Fields:
        return {
            "reserve": self.reserve,
            "payload_hash": self.payload_hash,
            "sealed_hash": self.sealed_hash,
            "seeded": int(self.seeded),
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(
            reserve=take_whole(fields, "reserve"),
            payload_hash=take_text(fields, "payload_hash"),
            sealed_hash=take_text(fields, "sealed_hash"),
            seeded=bool(take_whole(fields, "seeded")),
        )


@dataclass(frozen=True)
class QuotaSet:
    """The most that one server may use, in millionths of every limit."""

    kind: ClassVar[str] = "quota"

    server: str
    share_ppm: int

    def to_fields(self) -> Fields:
        return {"server": self.server, "share_ppm": self.share_ppm}

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(server=take_text(fields, "server"), share_ppm=take_whole(fields, "share_ppm"))


@dataclass(frozen=True)
class Decided:
    """A person decided something about this ledger, and why."""

    kind: ClassVar[str] = "decision"

    reason: str

    def to_fields(self) -> Fields:
        return {"reason": self.reason}

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(reason=take_text(fields, "reason"))


Event = Opened | Reserved | Released | QuotaSet | Decided
_KINDS: dict[str, type[Event]] = {kind.kind: kind for kind in (Opened, Reserved, Released, QuotaSet, Decided)}


@dataclass(frozen=True)
class Entry:
    """One event in its place. `at` (UTC seconds) informs a reader; nothing is decided by it."""

    sequence: int
    at: int
    event: Event

    def body(self) -> bytes:
        encoded = canonical({"seq": self.sequence, "at": self.at, "kind": self.event.kind, **self.event.to_fields()})
        if len(encoded) > _MOST_BYTES:
            raise InvalidTerms("a ledger entry would be larger than 1 MiB; nothing was booked")
        return encoded

    @classmethod
    def from_body(cls, body: bytes) -> Entry:
        """The entry that `body` spells; `ValueError` for anything `body()` would not write."""
        fields = parse(body)
        sequence, at = take_whole(fields, "seq"), take_whole(fields, "at")
        kind = _KINDS.get(take_text(fields, "kind"))
        if kind is None:
            raise ValueError("unknown kind of entry")
        entry = cls(sequence, at, kind.from_fields(fields))
        if fields:
            raise ValueError("unknown fields")
        return entry


def _pairs(terms: dict[str, int | str]) -> list[list[int | str]]:
    return [[name, terms[name]] for name in sorted(terms)]


def _digest(value: list[Any]) -> str:
    return hashlib.sha256(canonical(value)).hexdigest()
