"""What crosses the wire between a device and a server, and nothing else does.

    enrol       EnrolmentRequest -> EnrolmentReply            once, over server-authenticated TLS
    attend      Hello, CheckIn, Decline, Goodbye  ->          one stream, as long as the device is there
                <- Welcome, Task, Question, Feedback, CohortsChanged, ComeBack, Goodbye
                   a small model travels in the same message as its task
    download    DownloadRequest -> Chunk, Chunk, ...          a model, from any offset
    upload      UpdateHeader | SummaryHeader, Chunk, ... ->   a release
                <- UploadFrom (where to go on), UploadAccepted
    fetch       DownloadRequest -> Chunk                      a model of one chunk
    deliver     Delivery -> UploadAccepted                    a release of one chunk
    renew       RenewalRequest -> RenewalReply                a new certificate before the old one ends

Every message is a value. `device_sdk.wire.codec` turns it into bytes and checks what arrives; nothing here
imports more than the standard library. Hashes are SHA-256, signatures Ed25519, both as raw bytes. Numbers that
decide about privacy are `Exact`: decimal or rational text, because a float would be rounded twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

DeviceId = str
"""32 hexadecimal digits: the first half of the SHA-256 of the device's signing key."""
CohortId = str
"""The path from the root of the cohort tree, e.g. `0.1.0`."""
Exact = str
"""A positive number as digits: `8`, `0.5` or `1/3`; no sign, no exponent."""

HASH_BYTES = 32
SIGNATURE_BYTES = 64
ENCLOSED_BYTES = 1 << 16
"""The largest model that travels with its task."""
CHUNK_BYTES = 1 << 20
"""The most payload that one `Chunk` carries; all but the last of a transfer carry exactly this."""


@dataclass(frozen=True, order=True)
class ProtocolVersion:
    """Another major version is refused; a newer minor one only adds what an older one may ignore."""

    major: int = 1
    minor: int = 2


THIS_VERSION = ProtocolVersion()
FIRST_WITH_QUESTIONS = ProtocolVersion(1, 1)
"""A device that said hello with less would not understand a `Question`, and leave it unanswered."""
FIRST_WITH_VOTES = ProtocolVersion(1, 2)
"""A device that said hello with less would answer by randomised response, and pay for what nobody takes."""


class Relation(StrEnum):
    """`privacy.NeighbouringRelation` by its value."""

    ADD_REMOVE = "add_remove"
    REPLACE = "replace"


class Dtype(StrEnum):
    """What a model's tensor may hold, in safetensors' names; little-endian."""

    F32 = "F32"
    F16 = "F16"
    I32 = "I32"
    I64 = "I64"
    U8 = "U8"
    BOOL = "BOOL"

    @property
    def width_bytes(self) -> int:
        return _WIDTHS[self]


_WIDTHS = {Dtype.F32: 4, Dtype.F16: 2, Dtype.I32: 4, Dtype.I64: 8, Dtype.U8: 1, Dtype.BOOL: 1}


class DeclineReason(IntEnum):
    """Why a device does not take a task or a question: it follows from those and its policy, never its data."""

    NOT_NOW = 1
    """Conditions, cancellation, or anything the device keeps to itself."""
    TERMS = 2
    """Privacy terms beyond the device's budget or policy."""
    MODEL = 3
    """A model or objective that the device's trainer does not do, or models that leave nothing to say."""


class QuestionKind(IntEnum):
    """What a server may ask about models, beside training. Every answer is one release."""

    BEST_MODEL = 1
    """Which of at least two models does best on the device's records: its index, told as `ChoiceBy` says."""
    ACCURACY = 2
    """The share of its records that the one model gets right: a noised number in [0, 1]."""
    LOSS = 3
    """The one model's mean loss on its records: a noised number in [0, `loss_bound`]."""


class ChoiceBy(IntEnum):
    """How a device chooses between models, and whom that hides."""

    RESPONSE = 0
    """The model with the least mean loss, by randomised response: hides all that the device holds."""
    VOTES = 1
    """The model with the least loss on most records, each of which has one vote: hides any one of them."""
    UNKNOWN = (1 << 32) - 1
    """What a newer version may have added: never sent, and declined."""


class GoodbyeReason(IntEnum):
    """Why one end closes the stream in good order."""

    CLOSING = 1
    LEAVING = 2
    """The device leaves the federation for good."""
    REPLACED = 3
    """The same device has opened another stream."""


class ErrorCode(IntEnum):
    """Why a call was refused; the server's log and the device's error carry the same code."""

    INTERNAL = 1
    MALFORMED = 2
    WRONG_VERSION = 3
    TOO_LARGE = 4
    TLS_TOO_OLD = 5
    REVOKED = 6
    NOT_ENROLLED = 7
    CERTIFICATE_EXPIRED = 8
    INVITATION_UNKNOWN = 9
    INVITATION_USED = 10
    INVITATION_EXPIRED = 11
    BAD_REQUEST_FOR_CERTIFICATE = 12
    NOT_FOUND = 13
    NOT_ASKED = 14
    """No such task for this device, or it is over."""
    WRONG_HASH = 15
    WRONG_SIGNATURE = 16
    RECEIPT_REFUSED = 17
    TOO_MANY_CALLS = 18
    TOO_SLOW = 19
    CLOSING = 20
    OUT_OF_ORDER = 21
    """A message where the protocol has none: a second hello, a chunk at another offset."""
    OTHER_LEDGER = 22
    """This device enrolled with another ledger key before; it must begin as a new device."""


@dataclass(frozen=True)
class Error:
    """A refusal. `retry_after_seconds` 0: trying again will not help."""

    code: ErrorCode
    message: str
    retry_after_seconds: float = 0.0


@dataclass(frozen=True)
class Blob:
    """Bytes by name: their hash, and how many there are."""

    sha256: bytes
    size_bytes: int


# Enrolment and renewal


@dataclass(frozen=True)
class EnrolmentRequest:
    """A device asks to be let in.

    Both proofs are signatures over `device_sdk.wire.signing.enrolment_statement`: by the key that signs updates
    and by the key of the ledger. The two keys may be one.
    """

    invitation_secret: bytes
    certificate_request: bytes
    """PKCS#10 in DER, of the P-256 key for TLS; the names in it are ignored."""
    signing_key: bytes
    ledger_key: bytes
    signing_proof: bytes
    ledger_proof: bytes
    version: ProtocolVersion = THIS_VERSION


@dataclass(frozen=True)
class EnrolmentReply:
    """The device is enrolled: who it is, whom it talks to, and with which certificate."""

    device: DeviceId
    server: str
    """The server's name in ledgers and receipts: made of its authority's fingerprint, so no other can take it."""
    server_key: bytes
    """Signs countersignatures; the device pins it."""
    gateway: str
    """host:port of everything but enrolment."""
    certificate: bytes
    """In DER."""
    authority: bytes
    """The authority's certificate, in DER; its SHA-256 is the fingerprint that the invitation carried."""
    version: ProtocolVersion = THIS_VERSION


@dataclass(frozen=True)
class RenewalRequest:
    """A further certificate for the device that the present one names; the key may be new."""

    certificate_request: bytes


@dataclass(frozen=True)
class RenewalReply:
    """The new certificate, in DER."""

    certificate: bytes


# The stream


@dataclass(frozen=True)
class Hello:
    """The first message of a device's stream."""

    version: ProtocolVersion = THIS_VERSION


@dataclass(frozen=True)
class Split:
    """A cohort stopped training and its children began, in the order of their sub-clusters."""

    parent: CohortId
    children: tuple[CohortId, ...]


@dataclass(frozen=True)
class Cohorts:
    """Which cohorts train now, and the splits that led there, oldest first."""

    leaves: tuple[CohortId, ...]
    splits: tuple[Split, ...] = ()


@dataclass(frozen=True)
class Welcome:
    """The server's answer to Hello, before the device asks for anything."""

    cohorts: Cohorts
    countersignature: bytes = b""
    """How far the server has seen the device's ledger (`privacy.Countersignature.to_json`); empty: not at all."""
    version: ProtocolVersion = THIS_VERSION


@dataclass(frozen=True)
class Feedback:
    """How well a device's update fitted its cohort. `mac` is the server's own, opaque to the device, kept with it."""

    cohort: CohortId
    round: int
    mac: bytes
    reward_change: float | None = None
    sub_cluster: int | None = None


@dataclass(frozen=True)
class AffinityClaim:
    """The cohort a device asks for, the reward it has there, and the server's feedback that proves it was there."""

    cohort: CohortId
    reward: float = 0.0
    evidence: Feedback | None = None


@dataclass(frozen=True)
class CheckIn:
    """The device is ready for a task; one check-in, at most one task."""

    affinity: AffinityClaim | None = None
    """None: wherever the server likes."""


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a model, as it must arrive."""

    name: str
    dtype: Dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ModelReference:
    """The model to start from: safetensors bytes to be downloaded, with exactly these tensors."""

    version: int
    blob: Blob
    tensors: tuple[TensorSpec, ...]


@dataclass(frozen=True)
class LocalObjective:
    """What to do with the data: SGD for whole `epochs` or for `steps`; exactly one of the two is given."""

    learning_rate: float
    batch_size: int
    epochs: int | None = None
    steps: int | None = None
    momentum: float = 0.0
    proximal: float = 0.0
    """FedProx: adds proximal·(w − start) to the gradient."""
    mask: Blob | None = None
    """One bit for each coordinate, tensors in the order of their names, lowest bit first: only those train."""
    halves: bool = False
    """Also send what even and odd batches contributed."""


@dataclass(frozen=True)
class DeviceLevelTerms:
    """The whole update is clipped and noised once (`privacy.mechanisms.ClippedUpdate`)."""

    clip_norm: Exact
    noise_multiplier: Exact
    relation: Relation
    grid_bits: int


@dataclass(frozen=True)
class RecordLevelTerms:
    """Training is DP-SGD (`privacy.mechanisms.DpSgd`) for the objective's `steps`."""

    clip_norm: Exact
    noise_multiplier: Exact
    sampling_rate: Exact
    expected_batch_size: Exact
    relation: Relation
    grid_bits: int


PrivacyTerms = DeviceLevelTerms | RecordLevelTerms


@dataclass(frozen=True)
class Task:
    """One round's work for one device. Pushed; the device trains and uploads, or declines."""

    task: str
    """Never used twice."""
    device: DeviceId
    cohort: CohortId
    round: int
    model: ModelReference
    objective: LocalObjective
    privacy: PrivacyTerms
    deadline_seconds: float
    """From its arrival: later the update is late."""


@dataclass(frozen=True)
class Question:
    """What do you make of these models? Pushed; answered between tasks by a `SummaryHeader` about it, or declined.

    An answer depends on everything that the device holds, and costs `epsilon` whatever the data. It is released at the
    unit DEVICE: one record more or less may turn an accuracy of 0 into 1 where there are few, and a choice always. Only
    a choice by votes is released at the unit RECORD. `device_sdk.wire.question_terms` has the mechanisms.
    """

    question: str
    """Never used twice, for no task either; the `subject` of the answer."""
    device: DeviceId
    kind: QuestionKind
    models: tuple[ModelReference, ...]
    """All of the same tensors."""
    epsilon: Exact
    deadline_seconds: float
    """From its arrival: a later answer is not given."""
    loss_bound: float | None = None
    """For LOSS alone: a greater loss counts as this much."""
    choice_by: ChoiceBy = ChoiceBy.RESPONSE
    """For BEST_MODEL alone: which mechanism answers."""


@dataclass(frozen=True)
class Decline:
    """The device will not do a task, or answer a question."""

    task: str
    """Of the task, or of the question."""
    reason: DeclineReason


@dataclass(frozen=True)
class CohortsChanged:
    """A cohort has split or was merged while the device was connected."""

    cohorts: Cohorts


@dataclass(frozen=True)
class ComeBack:
    """Nothing to do: close the stream and come back in so many seconds."""

    after_seconds: float


@dataclass(frozen=True)
class Goodbye:
    """The last message of a stream that ends in good order."""

    reason: GoodbyeReason


DeviceMessage = Hello | CheckIn | Decline | Goodbye
ServerMessage = Welcome | Task | Question | Feedback | CohortsChanged | ComeBack | Goodbye


# Transfers


@dataclass(frozen=True)
class DownloadRequest:
    """The bytes of a blob from an offset on."""

    sha256: bytes
    offset: int = 0


@dataclass(frozen=True)
class Chunk:
    """Consecutive bytes of a transfer."""

    offset: int
    data: bytes | memoryview


@dataclass(frozen=True)
class GridEncoding:
    """`count` signed little-endian integers of `width_bytes` each (`privacy.packing`)."""

    count: int
    width_bytes: int

    @property
    def size_bytes(self) -> int:
        return self.count * self.width_bytes


@dataclass(frozen=True)
class UpdateHeader:
    """What precedes an update's bytes. `signature` covers all the rest (`device_sdk.wire.signing`)."""

    task: str
    cohort: CohortId
    round: int
    model_sha256: bytes
    payload: Blob
    encoding: GridEncoding
    ledger_head: bytes
    sequence: int
    """The release's number in the device's ledger: grows with every release, so that nothing can be replayed."""
    receipt: bytes
    """`privacy.Receipt.to_json`."""
    signature: bytes = b""


@dataclass(frozen=True)
class Term:
    """One public parameter of a mechanism (`Mechanism.terms`): text or a whole number."""

    name: str
    value: str | int


@dataclass(frozen=True)
class SummaryHeader:
    """What precedes a summary's bytes: a histogram, a noised scalar. `signature` covers all the rest."""

    mechanism: str
    """As in the ledger, e.g. `label_histogram`."""
    terms: tuple[Term, ...]
    subject: str
    """What the summary is about, e.g. a data epoch or a question: chosen by schedule, never from data."""
    payload: Blob
    ledger_head: bytes
    sequence: int
    receipt: bytes
    signature: bytes = b""


ReleaseHeader = UpdateHeader | SummaryHeader


@dataclass(frozen=True)
class Delivery:
    """A release that fits in one chunk, whole."""

    header: ReleaseHeader
    chunk: Chunk
    check_in: CheckIn | None = None
    """The device is ready for another task as soon as this is stored."""


@dataclass(frozen=True)
class UploadFrom:
    """The server's answer to a header: it has this many bytes already; send the rest."""

    offset: int


@dataclass(frozen=True)
class UploadAccepted:
    """Stored durably, and counted once however often it is sent."""

    countersignature: bytes
    """`privacy.Countersignature.to_json`."""
    repeated: bool = False
    final: bool = False
    """No feedback will follow."""
    checked_in: bool = False
    """The check-in that came with it was heard; otherwise, as from an older server, the device says it again."""


UploadRequest = UpdateHeader | SummaryHeader | Chunk
UploadReply = UploadFrom | UploadAccepted

Message = (
    EnrolmentRequest
    | EnrolmentReply
    | RenewalRequest
    | RenewalReply
    | DeviceMessage
    | ServerMessage
    | DownloadRequest
    | UploadRequest
    | UploadReply
    | Delivery
    | Error
)
