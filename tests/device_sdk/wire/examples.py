"""One honest example of every message, with every field set."""

from __future__ import annotations

from dataclasses import replace

from device_sdk.wire import messages as m

DEVICE = "00112233445566778899aabbccddeeff"


def filled(number: int, length: int = 32) -> bytes:
    """Bytes that are easy to recognise in a dump."""
    return bytes([number]) * length


FEEDBACK = m.Feedback("0.1", 7, filled(0x3A), reward_change=-0.25, sub_cluster=1)
MODEL = m.ModelReference(
    version=12,
    blob=m.Blob(filled(0xB1), 2600 + 120),
    tensors=(m.TensorSpec("bias", m.Dtype.F32, (10,)), m.TensorSpec("weight", m.Dtype.F32, (10, 64))),
)
OBJECTIVE = m.LocalObjective(
    learning_rate=0.1,
    batch_size=10,
    epochs=2,
    momentum=0.5,
    proximal=0.01,
    mask=m.Blob(filled(0xB2), 82),
    halves=True,
)
DEVICE_LEVEL = m.DeviceLevelTerms("1.5", "4", m.Relation.REPLACE, 17)
RECORD_LEVEL = m.RecordLevelTerms("1", "1.1", "1/6", "10", m.Relation.ADD_REMOVE, 8)
TASK = m.Task("t-41", DEVICE, "0.1", 7, MODEL, OBJECTIVE, DEVICE_LEVEL, 600.0)
RECORD_TASK = m.Task(
    "t-42", DEVICE, "0", 8, MODEL, m.LocalObjective(0.05, 10, steps=30), RECORD_LEVEL, deadline_seconds=60.0
)
QUESTION = m.Question(
    "q-17",
    DEVICE,
    m.QuestionKind.BEST_MODEL,
    (MODEL, m.ModelReference(12, m.Blob(filled(0xB7), 2600 + 120), MODEL.tensors)),
    "1/2",
    deadline_seconds=90.0,
)
ACCURACY_QUESTION = m.Question("q-19", DEVICE, m.QuestionKind.ACCURACY, (MODEL,), "0.25", 90.0)
LOSS_QUESTION = m.Question("q-18", DEVICE, m.QuestionKind.LOSS, (MODEL,), "0.25", 90.0, loss_bound=4.0)
VOTES_QUESTION = replace(QUESTION, question="q-20", choice_by=m.ChoiceBy.VOTES)
COHORTS = m.Cohorts(("0.0", "0.1"), (m.Split("0", ("0.0", "0.1")),))
UPDATE = m.UpdateHeader(
    task="t-41",
    cohort="0.1",
    round=7,
    model_sha256=filled(0xB1),
    payload=m.Blob(filled(0xB3), 1950),
    encoding=m.GridEncoding(650, 3),
    ledger_head=filled(0xB4),
    sequence=5,
    receipt=b'{"receipt":1}',
    signature=filled(0x51, 64),
)
SUMMARY = m.SummaryHeader(
    mechanism="label_histogram",
    terms=(m.Term("epsilon", "1/2"), m.Term("num_labels", 10)),
    subject="epoch 1",
    payload=m.Blob(filled(0xB5), 80),
    ledger_head=filled(0xB6),
    sequence=1,
    receipt=b'{"receipt":2}',
    signature=filled(0x52, 64),
)

ALONE: dict[str, m.Message] = {
    "enrolment_request": m.EnrolmentRequest(
        filled(0x01), filled(0x02, 5), filled(0x03), filled(0x04), filled(0x05, 64), filled(0x06, 64)
    ),
    "enrolment_reply": m.EnrolmentReply(
        DEVICE, "covey-0123", filled(0x07), "fl.example.com:8443", filled(0x08, 6), filled(0x09, 7)
    ),
    "renewal_request": m.RenewalRequest(filled(0x0A, 5)),
    "renewal_reply": m.RenewalReply(filled(0x0B, 6)),
    "download_request": m.DownloadRequest(filled(0xB1), 1 << 20),
    "chunk": m.Chunk(1 << 20, b"some bytes"),
    "error": m.Error(m.ErrorCode.REVOKED, "this device was revoked", 0.0),
}
FROM_DEVICE: dict[str, m.DeviceMessage] = {
    "hello": m.Hello(),
    "hello_of_version_1_0": m.Hello(m.ProtocolVersion(1, 0)),
    "hello_of_version_1_1": m.Hello(m.ProtocolVersion(1, 1)),
    "check_in": m.CheckIn(m.AffinityClaim("0.1", 0.75, FEEDBACK)),
    "check_in_anywhere": m.CheckIn(),
    "decline": m.Decline("t-41", m.DeclineReason.TERMS),
    "goodbye_of_device": m.Goodbye(m.GoodbyeReason.LEAVING),
}
FROM_SERVER: dict[str, m.ServerMessage] = {
    "welcome": m.Welcome(COHORTS, b'{"countersignature":1}'),
    "task": TASK,
    "task_with_record_level": RECORD_TASK,
    "feedback": FEEDBACK,
    "feedback_without_verdict": m.Feedback("0", 1, filled(0x3B)),
    "cohorts_changed": m.CohortsChanged(COHORTS),
    "come_back": m.ComeBack(30.0),
    "question": QUESTION,
    "question_about_loss": LOSS_QUESTION,
    "question_by_votes": VOTES_QUESTION,
    "goodbye_of_server": m.Goodbye(m.GoodbyeReason.CLOSING),
}
UPLOADS: dict[str, m.UploadRequest] = {
    "update_header": UPDATE,
    "summary_header": SUMMARY,
    "upload_chunk": m.Chunk(0, b"some bytes"),
}
DELIVERIES = {
    "delivery": m.Delivery(UPDATE, m.Chunk(0, b"a whole update")),
    "delivery_of_summary": m.Delivery(SUMMARY, m.Chunk(0, b"a whole summary")),
    "delivery_with_check_in": m.Delivery(
        UPDATE, m.Chunk(0, b"a whole update"), m.CheckIn(m.AffinityClaim("0.1", 0.75, FEEDBACK))
    ),
}
UPLOAD_REPLIES: dict[str, m.UploadReply] = {
    "upload_from": m.UploadFrom(1 << 20),
    "upload_accepted": m.UploadAccepted(b'{"countersignature":2}', repeated=True),
    "upload_accepted_finally": m.UploadAccepted(b'{"countersignature":3}', final=True),
    "upload_accepted_with_check_in": m.UploadAccepted(b'{"countersignature":4}', checked_in=True),
}
