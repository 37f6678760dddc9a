"""Every field of every message with its bounds, in the order of federation.proto.

The bounds hold whatever a receiver's own settings say; they are wide enough for any model we can imagine and
narrow enough that no message can make a receiver compute or allocate much.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from device_sdk.wire import messages as m
from device_sdk.wire.fields import (
    Bytes,
    Choice,
    ExactNumber,
    Flag,
    Holder,
    Kind,
    Many,
    Nested,
    OneOf,
    Optional,
    Prose,
    Real,
    Shared,
    Text,
    Value,
    Whole,
    exactly,
)

MAX_BLOB_BYTES = 1 << 34
MAX_TENSORS = 4096
MAX_COHORTS = 4096
MAX_MODELS = 64
_WEEK_SECONDS = 7 * 24 * 3600.0
_COUNTER = Whole(1 << 53)
_SECONDS = Real(0.0, _WEEK_SECONDS)
_DEVICE = Text(re.compile(r"[0-9a-f]{32}"))
_COHORT = Text(re.compile(r"0(?:\.[0-9]{1,6}){0,24}"))
_TASK = Text(re.compile(r"[!-~]{1,64}"))
_ADDRESS = Text(re.compile(r"[!-~]{3,300}"))
_HASH = exactly(m.HASH_BYTES)
_KEY = exactly(32)
_SIGNATURE = exactly(m.SIGNATURE_BYTES)
_CERTIFICATE = Bytes(1, 8192)
_RECEIPT = Bytes(1, 8192)
_EXACT = ExactNumber()
_OFFSET = Whole(MAX_BLOB_BYTES)


def nested(cls: type) -> Nested:
    """A message of ours within another."""
    return Nested(lambda holder: read_fields(cls, holder), write_fields)


def shared(cls: type) -> Shared:
    """A message of ours within another, the same in many of them."""
    return Shared(lambda holder: read_fields(cls, holder), write_fields)


def read_fields(cls: type, holder: Holder) -> Value:
    """A message of class `cls` out of its protobuf twin, every field within its bounds."""
    return cls(**{name: kind.read(holder, name) for name, kind in FIELDS[cls].items()})


def write_fields(holder: Holder, message: Value) -> None:
    """Write a message into its protobuf twin, under the same checks."""
    for name, kind in FIELDS[type(message)].items():
        kind.write(holder, name, getattr(message, name))


_BLOB = nested(m.Blob)
_VERSION = nested(m.ProtocolVersion)
_TERM_VALUE = OneOf({"text": (str, Prose(4096, 0)), "whole": (int, Whole((1 << 63) - 1, -(1 << 63)))})
_PRIVACY = OneOf(
    {
        "device_level": (m.DeviceLevelTerms, shared(m.DeviceLevelTerms)),
        "record_level": (m.RecordLevelTerms, shared(m.RecordLevelTerms)),
    }
)
_HEADER = OneOf(
    {
        "update": (m.UpdateHeader, nested(m.UpdateHeader)),
        "summary": (m.SummaryHeader, nested(m.SummaryHeader)),
    }
)

FIELDS: Mapping[type, Mapping[str, Kind]] = {
    m.ProtocolVersion: {"major": Whole(1 << 31), "minor": Whole(1 << 31)},
    m.Error: {
        "code": Choice(m.ErrorCode, unknown=m.ErrorCode.INTERNAL),
        "message": Prose(500, 0),
        "retry_after_seconds": _SECONDS,
    },
    m.Blob: {"sha256": _HASH, "size_bytes": Whole(MAX_BLOB_BYTES)},
    m.EnrolmentRequest: {
        "version": _VERSION,
        "invitation_secret": exactly(32),
        "certificate_request": Bytes(1, 4096),
        "signing_key": _KEY,
        "ledger_key": _KEY,
        "signing_proof": _SIGNATURE,
        "ledger_proof": _SIGNATURE,
    },
    m.EnrolmentReply: {
        "version": _VERSION,
        "device": _DEVICE,
        "server": Prose(200),
        "server_key": _KEY,
        "gateway": _ADDRESS,
        "certificate": _CERTIFICATE,
        "authority": _CERTIFICATE,
    },
    m.RenewalRequest: {"certificate_request": Bytes(1, 4096)},
    m.RenewalReply: {"certificate": _CERTIFICATE},
    m.Hello: {"version": _VERSION},
    m.Split: {"parent": _COHORT, "children": Many(_COHORT, 64, least=2)},
    m.Cohorts: {"leaves": Many(_COHORT, MAX_COHORTS, least=1), "splits": Many(nested(m.Split), MAX_COHORTS)},
    m.Welcome: {"version": _VERSION, "cohorts": nested(m.Cohorts), "countersignature": Bytes(0, 4096)},
    m.Feedback: {
        "cohort": _COHORT,
        "round": _COUNTER,
        "mac": exactly(32),
        "reward_change": Optional(Real(-1e9, 1e9)),
        "sub_cluster": Optional(Whole(1 << 20)),
    },
    m.AffinityClaim: {"cohort": _COHORT, "reward": Real(-1e9, 1e9), "evidence": Optional(nested(m.Feedback))},
    m.CheckIn: {"affinity": Optional(nested(m.AffinityClaim))},
    m.TensorSpec: {"name": Prose(256), "dtype": Choice(m.Dtype), "shape": Many(Whole(1 << 34), 8)},
    m.ModelReference: {"version": _COUNTER, "blob": _BLOB, "tensors": Many(nested(m.TensorSpec), MAX_TENSORS, least=1)},
    m.LocalObjective: {
        "learning_rate": Real(0.0, 1e6, above_least=True),
        "batch_size": Whole(1 << 24, least=1),
        "epochs": Optional(Whole(1000, least=1)),
        "steps": Optional(Whole(1_000_000, least=1)),
        "momentum": Real(0.0, 1.0),
        "proximal": Real(0.0, 1e12),
        "mask": Optional(_BLOB),
        "halves": Flag(),
    },
    m.DeviceLevelTerms: {
        "clip_norm": _EXACT,
        "noise_multiplier": _EXACT,
        "relation": Choice(m.Relation),
        "grid_bits": Whole(24),
    },
    m.RecordLevelTerms: {
        "clip_norm": _EXACT,
        "noise_multiplier": _EXACT,
        "relation": Choice(m.Relation),
        "grid_bits": Whole(24),
        "sampling_rate": _EXACT,
        "expected_batch_size": _EXACT,
    },
    m.Task: {
        "task": _TASK,
        "device": _DEVICE,
        "cohort": _COHORT,
        "round": _COUNTER,
        "model": shared(m.ModelReference),
        "objective": shared(m.LocalObjective),
        "privacy": _PRIVACY,
        "deadline_seconds": Real(0.0, _WEEK_SECONDS, above_least=True),
    },
    m.Question: {
        "question": _TASK,
        "device": _DEVICE,
        "kind": Choice(m.QuestionKind),
        "models": Many(nested(m.ModelReference), MAX_MODELS, least=1),
        "epsilon": _EXACT,
        "deadline_seconds": Real(0.0, _WEEK_SECONDS, above_least=True),
        "loss_bound": Optional(Real(0.0, 1e9, above_least=True)),
        "choice_by": Choice(m.ChoiceBy, unknown=m.ChoiceBy.UNKNOWN),
    },
    m.Decline: {"task": _TASK, "reason": Choice(m.DeclineReason, unknown=m.DeclineReason.NOT_NOW)},
    m.CohortsChanged: {"cohorts": nested(m.Cohorts)},
    m.ComeBack: {"after_seconds": _SECONDS},
    m.Goodbye: {"reason": Choice(m.GoodbyeReason, unknown=m.GoodbyeReason.CLOSING)},
    m.DownloadRequest: {"sha256": _HASH, "offset": _OFFSET},
    m.Chunk: {"offset": _OFFSET, "data": Bytes(1, m.CHUNK_BYTES)},
    m.GridEncoding: {"count": Whole(MAX_BLOB_BYTES, least=1), "width_bytes": Whole(8, least=1)},
    m.UpdateHeader: {
        "task": _TASK,
        "cohort": _COHORT,
        "round": _COUNTER,
        "model_sha256": _HASH,
        "payload": _BLOB,
        "encoding": nested(m.GridEncoding),
        "ledger_head": _HASH,
        "sequence": _COUNTER,
        "receipt": _RECEIPT,
        "signature": _SIGNATURE,
    },
    m.Term: {"name": Text(re.compile(r"[a-z_]{1,64}")), "value": _TERM_VALUE},
    m.SummaryHeader: {
        "mechanism": Text(re.compile(r"[a-z_]{1,64}")),
        "terms": Many(nested(m.Term), 32),
        "subject": Prose(200),
        "payload": _BLOB,
        "ledger_head": _HASH,
        "sequence": _COUNTER,
        "receipt": _RECEIPT,
        "signature": _SIGNATURE,
    },
    m.Delivery: {"header": _HEADER, "chunk": nested(m.Chunk), "check_in": Optional(nested(m.CheckIn))},
    m.UploadFrom: {"offset": _OFFSET},
    m.UploadAccepted: {
        "countersignature": Bytes(1, 4096),
        "repeated": Flag(),
        "final": Flag(),
        "checked_in": Flag(),
    },
}

ENVELOPES: Mapping[str, Mapping[str, type]] = {
    "DeviceMessage": {"hello": m.Hello, "check_in": m.CheckIn, "decline": m.Decline, "goodbye": m.Goodbye},
    "ServerMessage": {
        "welcome": m.Welcome,
        "task": m.Task,
        "feedback": m.Feedback,
        "cohorts_changed": m.CohortsChanged,
        "come_back": m.ComeBack,
        "goodbye": m.Goodbye,
        "question": m.Question,
    },
    "UploadRequest": {"update": m.UpdateHeader, "summary": m.SummaryHeader, "chunk": m.Chunk},
    "UploadReply": {"from_offset": m.UploadFrom, "accepted": m.UploadAccepted},
}
"""What travels in a stream is wrapped, so that the receiver knows what it is."""
