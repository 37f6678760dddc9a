"""What was released and not yet acknowledged: sent in the order of the ledger, the same bytes however often.

A release is stored, sealed, before it is sent; the server's countersignature is kept before it is forgotten. In
between anything may end: the next `send` finds it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from device_sdk.round_order import task_of
from device_sdk.round_record import Kind, Phase
from device_sdk.wire.errors import Refused
from device_sdk.wire.messages import Blob, ErrorCode, GridEncoding, SummaryHeader, Term, UpdateHeader
from device_sdk.wire.signing import signed
from device_sdk.wire.task_terms import mechanism_of
from privacy.canonical import canonical, parse
from privacy.receipts import Countersignature, check_pinned, issue_receipt

if TYPE_CHECKING:
    from device_sdk.kept import Kept
    from device_sdk.round_record import Round
    from device_sdk.wire.channel import Channel
    from device_sdk.wire.messages import CheckIn, ReleaseHeader
    from privacy.release import Mechanism, Release

# What a server says of one release, for good: sending it again will not help, and others may still be welcome.
_NOT_WANTED = frozenset(
    {
        ErrorCode.MALFORMED,
        ErrorCode.NOT_ASKED,
        ErrorCode.NOT_FOUND,
        ErrorCode.OUT_OF_ORDER,
        ErrorCode.RECEIPT_REFUSED,
        ErrorCode.TOO_LARGE,
        ErrorCode.WRONG_HASH,
        ErrorCode.WRONG_SIGNATURE,
    }
)


def summary_order(mechanism: Mechanism[Any], subject: str) -> bytes:
    """What the journal keeps of a summary: all that its header needs."""
    terms = [[name, value] for name, value in sorted(mechanism.terms.items())]
    return canonical({"mechanism": mechanism.name, "terms": terms, "subject": subject})


class Outbox:
    """The stored releases of one device for one server."""

    def __init__(self, kept: Kept, channel: Channel) -> None:
        self._ledger, self._journal, self._identity = kept.ledger, kept.journal, kept.identity
        self._channel = channel
        self.updates_sent: set[str] = set()
        """The tasks whose updates the server has acknowledged here."""
        self.to_be_judged: set[str] = set()
        """Those of them that the server may still say something about."""
        self.not_wanted: dict[str, Refused] = {}
        """Releases that the server does not take, by round; they were given up."""
        self.has_checked_in = False
        """Whether the server has heard a check-in that went with an update."""

    def send(self, fresh: Release | None = None, check_in: CheckIn | None = None) -> None:
        """Send everything that is stored, with what was just released; `ConnectionLost` leaves the rest for later.

        A `check_in` goes with what was just released, which is the last.
        """
        for entry in self._journal.rounds():
            if entry.phase is Phase.UPLOADED and entry.kind is Kind.SUMMARY:
                self._journal.finish(entry.task)  # ending it was interrupted
            if entry.phase is not Phase.RELEASED:
                continue
            is_fresh = fresh is not None and fresh.sequence == entry.release
            release = fresh if is_fresh else self._journal.resume(entry.task)
            if release is not None:
                self._send(entry, release, check_in if is_fresh else None)

    def keep(self, countersignature: bytes) -> None:
        """Remember how far the server has seen the ledger; `LedgerTampered` if that is further than it reaches."""
        self._ledger.keep(self._from_server(countersignature))

    def _send(self, entry: Round, release: Release, check_in: CheckIn | None) -> None:
        try:
            header, payload = self._header(entry, release), release.for_sending()
            accepted = self._channel.upload(header, payload, check_in=check_in)
        except Refused as refusal:
            if refusal.code not in _NOT_WANTED:
                raise
            self._journal.give_up(entry.task)
            self.not_wanted[entry.task] = refusal
            return
        self.has_checked_in = self.has_checked_in or (check_in is not None and accepted.checked_in)
        self._journal.uploaded(entry.task, self._from_server(accepted.countersignature), final=accepted.final)
        if entry.kind is Kind.SUMMARY:
            self._journal.finish(entry.task)  # nobody answers a summary
        else:
            self.updates_sent.add(entry.task)
            if not accepted.final:
                self.to_be_judged.add(entry.task)

    def _from_server(self, countersignature: bytes) -> Countersignature:
        """What the server says that it has seen; the ledger checks the signatures before it keeps it."""
        said, server = Countersignature.from_json(countersignature), self._identity.enrolled
        check_pinned(said, server.server, server.server_key)
        return said

    def _header(self, entry: Round, release: Release) -> ReleaseHeader:
        """The header of a release; always the same one, signature and all."""
        receipt = issue_receipt(self._ledger, release)
        common: dict[str, Any] = {
            "payload": Blob(bytes.fromhex(release.payload_hash), len(release.for_sending())),
            # As the server is shown it: the ledger's own numbers would tell of other servers.
            "ledger_head": receipt.head,
            "sequence": receipt.sequence,
            "receipt": receipt.to_json(),
        }
        device, key = self._identity.enrolled.device, self._identity.signing_key
        if entry.kind is Kind.SUMMARY:
            order = parse(entry.order)
            terms = tuple(Term(name, value) for name, value in order["terms"])
            return signed(SummaryHeader(order["mechanism"], terms, order["subject"], **common), device, key)
        task = task_of(entry)
        mechanism = mechanism_of(task)
        header = UpdateHeader(
            task=task.task,
            cohort=task.cohort,
            round=task.round,
            model_sha256=task.model.blob.sha256,
            encoding=GridEncoding(mechanism.size, mechanism.width_bytes),
            **common,
        )
        return signed(header, device, key)
