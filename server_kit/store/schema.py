"""The tables, and which of their columns are sealed.

Only whole numbers, floats, text and bytes, so that both databases give back what they were given. A change here
needs a migration besides (a test compares the two).
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import BigInteger, Column, Float, Index, LargeBinary, MetaData, Table, Text

metadata = MetaData()

sealing_keys = Table(
    "sealing_keys",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("sealed", LargeBinary, nullable=False),
)
counters = Table(
    "counters",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", BigInteger, nullable=False),
)
devices = Table(
    "devices",
    metadata,
    Column("device", Text, primary_key=True),
    Column("signing_key", LargeBinary, nullable=False),
    Column("ledger_key", LargeBinary, nullable=False),
    Column("revoked", BigInteger, nullable=False),
    Column("enrolled_at_seconds", Float, nullable=False),
    Column("last_seen_seconds", Float),
)
invitations = Table(
    "invitations",
    metadata,
    Column("secret_sha256", LargeBinary, primary_key=True),
    Column("expires_at", Text, nullable=False),
    Column("used_by", Text),
)
receipts = Table(
    "receipts",
    metadata,
    Column("device_key", LargeBinary, primary_key=True),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("device", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
)
# The newest receipt of each device and how many there are, so that accepting one reads a single row.
newest_receipts = Table(
    "newest_receipts",
    metadata,
    Column("device_key", LargeBinary, primary_key=True),
    Column("device", Text, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("receipts", BigInteger, nullable=False),
)
tasks = Table(
    "tasks",
    metadata,
    Column("task", Text, primary_key=True),
    Column("device", Text, nullable=False),
    Column("cohort", Text, nullable=False),
    Column("round", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("asked_at_seconds", Float, nullable=False),
    Column("message", LargeBinary, nullable=False),
    Column("state", Text, nullable=False),
    Column("arrival", BigInteger),
    Column("arrived_at_seconds", Float),
    Column("number", BigInteger, nullable=False),
    Column("claimed", BigInteger, nullable=False),
    Index("tasks_by_state", "state", "cohort"),
)
payloads = Table(
    "payloads",
    metadata,
    Column("task", Text, primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("body", LargeBinary),
    Column("blob", Text),
    Column("blob_key", LargeBinary),
)
summaries = Table(
    "summaries",
    metadata,
    Column("device", Text, primary_key=True),
    Column("mechanism", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("terms", Text, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Column("at_seconds", Float, nullable=False),
    Column("number", BigInteger, nullable=False),
    Index("summaries_by_mechanism", "mechanism", "subject"),
)
cohorts = Table(
    "cohorts",
    metadata,
    Column("cohort", Text, primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("round", BigInteger, nullable=False),
    Column("checkpoint", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("opened_at_seconds", Float),
    Column("needed", BigInteger, nullable=False),
    Column("facts", Text, nullable=False),
)
folds = Table(
    "folds",
    metadata,
    Column("cohort", Text, primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("tasks", Text, nullable=False),
    Column("at_seconds", Float, nullable=False),
    Column("state", Text, nullable=False),
    Column("checkpoint", Text, nullable=False),
    Column("report", Text, nullable=False),
    Column("number", BigInteger, nullable=False),
    Index("folds_by_state", "state", "number"),
)
federation = Table(
    "federation",
    metadata,
    Column("part", Text, primary_key=True),
    Column("checkpoint", Text, nullable=False),
)
views = Table(
    "views",
    metadata,
    Column("device", Text, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)
feedback = Table(
    "feedback",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("device", Text, nullable=False),
    Column("message", LargeBinary, nullable=False),
    Index("feedback_by_device", "device"),
)
leases = Table(
    "leases",
    metadata,
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("until_seconds", Float, nullable=False),
)
happenings = Table(
    "happenings",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("at_seconds", Float, nullable=False),
    Column("cohort", Text, nullable=False),
    Column("facts", Text, nullable=False),
    Index("happenings_by_kind", "kind", "number"),
)
# Refusals of nobody in particular, and the sum of all, are counted under an empty device.
refusals = Table(
    "refusals",
    metadata,
    Column("device", Text, primary_key=True),
    Column("reason", Text, primary_key=True),
    Column("count", BigInteger, nullable=False),
)


@dataclass(frozen=True)
class SealedColumn:
    """A column whose bytes open only in their row; `keys` are the columns that name the row."""

    table: Table
    column: str

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.table.primary_key.columns)


RECEIPT_BODY = SealedColumn(receipts, "body")
PAYLOAD_BODY = SealedColumn(payloads, "body")
PAYLOAD_BLOB_KEY = SealedColumn(payloads, "blob_key")
SUMMARY_PAYLOAD = SealedColumn(summaries, "payload")
VIEW_BODY = SealedColumn(views, "body")
FEEDBACK_MESSAGE = SealedColumn(feedback, "message")
SEALED = (RECEIPT_BODY, PAYLOAD_BODY, PAYLOAD_BLOB_KEY, SUMMARY_PAYLOAD, VIEW_BODY, FEEDBACK_MESSAGE)
