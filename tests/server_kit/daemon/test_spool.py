"""What has arrived is not asked for again, whoever died in between; what is wrong is not kept."""

from __future__ import annotations

import os

import pytest

from device_sdk.wire.errors import PayloadMismatch, Refused
from device_sdk.wire.messages import CHUNK_BYTES, Blob, Chunk
from device_sdk.wire.tensors import blob_of, chunks
from server_kit.daemon.spool import Spool

ADA, BOB = "a" * 32, "b" * 32
PAYLOAD = os.urandom(2 * CHUNK_BYTES + 10)
PIECES = list(chunks(PAYLOAD))


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path / "spool")


def opened(spool, device, blob):
    intake = spool.intake(device, blob)
    intake.open()
    return intake


def files(tmp_path) -> list:
    return sorted((tmp_path / "spool").iterdir())


def test_an_upload_goes_on_where_it_stopped_even_for_another_process(spool, tmp_path):
    intake = opened(spool, ADA, blob_of(PAYLOAD))
    intake.add(PIECES[0])
    intake.close()
    again = opened(Spool(tmp_path / "spool"), ADA, blob_of(PAYLOAD))
    assert again.received == CHUNK_BYTES
    for piece in PIECES[1:]:
        again.add(piece)
    parcel = again.finish()
    assert parcel.read() == PAYLOAD
    parcel.discard()
    assert files(tmp_path) == []


def test_a_piece_torn_by_a_crash_is_completed(spool, tmp_path):
    intake = opened(spool, ADA, blob_of(PAYLOAD))
    intake.add(PIECES[0])
    intake.close()
    (file,) = files(tmp_path)
    file.write_bytes(PAYLOAD[:1000])
    again = opened(spool, ADA, blob_of(PAYLOAD))
    assert again.received == 1000
    for piece in chunks(PAYLOAD, 1000):
        again.add(piece)
    assert again.finish().read() == PAYLOAD


def test_wrong_bytes_are_not_kept_for_the_next_attempt(spool, tmp_path):
    intake = opened(spool, ADA, Blob(b"\0" * 32, len(PAYLOAD)))
    for piece in PIECES:
        intake.add(piece)
    with pytest.raises(PayloadMismatch):
        intake.finish()
    assert files(tmp_path) == []


def test_a_file_that_somebody_changed_does_not_pass(spool, tmp_path):
    intake = opened(spool, ADA, blob_of(PAYLOAD))
    intake.add(PIECES[0])
    intake.close()
    (file,) = files(tmp_path)
    kept = file.read_bytes()
    file.write_bytes(bytes([kept[0] ^ 1]) + kept[1:])
    again = opened(spool, ADA, blob_of(PAYLOAD))
    for piece in PIECES[1:]:
        again.add(piece)
    with pytest.raises(PayloadMismatch):
        again.finish()


def test_a_file_longer_than_the_upload_is_begun_anew(spool, tmp_path):
    opened(spool, ADA, blob_of(PAYLOAD)).close()
    (file,) = files(tmp_path)
    file.write_bytes(PAYLOAD + b"more")
    intake = opened(spool, ADA, blob_of(PAYLOAD))
    assert intake.received == 0
    intake.close()


def test_a_device_has_one_unfinished_upload_and_others_keep_theirs(spool, tmp_path):
    for device, payload in ((ADA, PAYLOAD), (BOB, PAYLOAD), (ADA, PAYLOAD + b"!")):
        opened(spool, device, blob_of(payload)).close()
    assert [file.name[:1] for file in files(tmp_path)] == ["a", "b"]


def test_what_nobody_goes_on_with_is_forgotten(spool, tmp_path):
    opened(spool, ADA, blob_of(PAYLOAD)).close()
    spool.forget(older_than_seconds=3600)
    assert len(files(tmp_path)) == 1
    os.utime(files(tmp_path)[0], (0, 0))
    spool.forget(older_than_seconds=3600)
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    "chunk", [PIECES[1], Chunk(0, PAYLOAD[:10]), Chunk(1, PAYLOAD[:CHUNK_BYTES])], ids=["later", "short", "shifted"]
)
def test_a_piece_out_of_place_is_refused(spool, chunk):
    intake = opened(spool, ADA, blob_of(PAYLOAD))
    with pytest.raises(Refused):
        intake.add(chunk)
    intake.close()


def test_unfinished_uploads_are_private(spool, tmp_path):
    opened(spool, ADA, blob_of(PAYLOAD)).close()
    assert files(tmp_path)[0].stat().st_mode & 0o077 == 0
    assert (tmp_path / "spool").stat().st_mode & 0o077 == 0
