"""The first tables."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Float, LargeBinary, Text

revision = "0001"
down_revision = None


def upgrade() -> None:
    _make_keys_and_people()
    _make_releases()
    _make_rounds()
    _make_the_rest()


def _make_keys_and_people() -> None:
    op.create_table(
        "sealing_keys",
        Column("id", BigInteger, primary_key=True, autoincrement=False),
        Column("sealed", LargeBinary, nullable=False),
    )
    op.create_table(
        "counters",
        Column("name", Text, primary_key=True),
        Column("value", BigInteger, nullable=False),
    )
    op.create_table(
        "devices",
        Column("device", Text, primary_key=True),
        Column("signing_key", LargeBinary, nullable=False),
        Column("ledger_key", LargeBinary, nullable=False),
        Column("revoked", BigInteger, nullable=False),
        Column("enrolled_at_seconds", Float, nullable=False),
        Column("last_seen_seconds", Float),
    )
    op.create_table(
        "invitations",
        Column("secret_sha256", LargeBinary, primary_key=True),
        Column("expires_at", Text, nullable=False),
        Column("used_by", Text),
    )
    op.create_table(
        "refusals",
        Column("device", Text, primary_key=True),
        Column("reason", Text, primary_key=True),
        Column("count", BigInteger, nullable=False),
    )


def _make_releases() -> None:
    op.create_table(
        "receipts",
        Column("device_key", LargeBinary, primary_key=True),
        Column("sequence", BigInteger, primary_key=True, autoincrement=False),
        Column("device", Text, nullable=False),
        Column("body", LargeBinary, nullable=False),
    )
    op.create_table(
        "newest_receipts",
        Column("device_key", LargeBinary, primary_key=True),
        Column("device", Text, nullable=False),
        Column("sequence", BigInteger, nullable=False),
        Column("digest", LargeBinary, nullable=False),
        Column("receipts", BigInteger, nullable=False),
    )
    op.create_table(
        "tasks",
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
    )
    op.create_index("tasks_by_state", "tasks", ["state", "cohort"])
    op.create_table(
        "payloads",
        Column("task", Text, primary_key=True),
        Column("size_bytes", BigInteger, nullable=False),
        Column("body", LargeBinary),
        Column("blob", Text),
        Column("blob_key", LargeBinary),
    )
    op.create_table(
        "summaries",
        Column("device", Text, primary_key=True),
        Column("mechanism", Text, primary_key=True),
        Column("subject", Text, primary_key=True),
        Column("terms", Text, nullable=False),
        Column("payload", LargeBinary, nullable=False),
        Column("at_seconds", Float, nullable=False),
        Column("number", BigInteger, nullable=False),
    )
    op.create_index("summaries_by_mechanism", "summaries", ["mechanism", "subject"])


def _make_rounds() -> None:
    op.create_table(
        "cohorts",
        Column("cohort", Text, primary_key=True),
        Column("version", BigInteger, nullable=False),
        Column("round", BigInteger, nullable=False),
        Column("checkpoint", Text, nullable=False),
        Column("state", Text, nullable=False),
        Column("opened_at_seconds", Float),
        Column("needed", BigInteger, nullable=False),
        Column("facts", Text, nullable=False),
    )
    op.create_table(
        "folds",
        Column("cohort", Text, primary_key=True),
        Column("version", BigInteger, primary_key=True, autoincrement=False),
        Column("tasks", Text, nullable=False),
        Column("at_seconds", Float, nullable=False),
        Column("state", Text, nullable=False),
        Column("checkpoint", Text, nullable=False),
        Column("report", Text, nullable=False),
        Column("number", BigInteger, nullable=False),
    )
    op.create_index("folds_by_state", "folds", ["state", "number"])
    op.create_table(
        "federation",
        Column("part", Text, primary_key=True),
        Column("checkpoint", Text, nullable=False),
    )
    op.create_table(
        "views",
        Column("device", Text, primary_key=True),
        Column("body", LargeBinary, nullable=False),
    )
    op.create_table(
        "feedback",
        Column("number", BigInteger, primary_key=True, autoincrement=False),
        Column("device", Text, nullable=False),
        Column("message", LargeBinary, nullable=False),
    )
    op.create_index("feedback_by_device", "feedback", ["device"])


def _make_the_rest() -> None:
    op.create_table(
        "leases",
        Column("name", Text, primary_key=True),
        Column("holder", Text, nullable=False),
        Column("epoch", BigInteger, nullable=False),
        Column("until_seconds", Float, nullable=False),
    )
    op.create_table(
        "happenings",
        Column("number", BigInteger, primary_key=True, autoincrement=False),
        Column("kind", Text, nullable=False),
        Column("at_seconds", Float, nullable=False),
        Column("cohort", Text, nullable=False),
        Column("facts", Text, nullable=False),
    )
    op.create_index("happenings_by_kind", "happenings", ["kind", "number"])
