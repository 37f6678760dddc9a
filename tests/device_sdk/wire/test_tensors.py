"""A model arrives exactly as declared or not at all; a transfer goes on where it broke."""

from __future__ import annotations

import json
import mmap
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load

from device_sdk.wire.errors import MalformedMessage, PayloadMismatch, TooLarge
from device_sdk.wire.messages import CHUNK_BYTES, Blob, Chunk, Dtype, TensorSpec
from device_sdk.wire.tensors import Assembly, blob_of, chunks, model_bytes, model_specs, read_model
from privacy.mechanisms.clipped_update import ClippedUpdate

MODEL: dict[str, np.ndarray] = {
    "weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "bias": np.zeros(3, dtype=np.float16),
    "steps": np.array(7, dtype=np.int64),
    "mask": np.array([True, False]),
    "none": np.zeros((0, 5), dtype=np.float32),
}
PAYLOAD = model_bytes(MODEL)


def preamble_of(payload: bytes) -> dict:
    length = int.from_bytes(payload[:8], "little")
    return json.loads(payload[8 : 8 + length])


def with_preamble(payload: bytes, preamble: object) -> bytes:
    length = int.from_bytes(payload[:8], "little")
    text = json.dumps(preamble).encode()
    return len(text).to_bytes(8, "little") + text + payload[8 + length :]


def test_a_model_is_read_as_safetensors_reads_it():
    read = read_model(PAYLOAD, model_specs(MODEL))
    oracle = load(PAYLOAD)
    assert read.keys() == oracle.keys()
    for name, tensor in oracle.items():
        assert read[name].dtype == tensor.dtype
        np.testing.assert_array_equal(read[name], tensor)


def test_reading_copies_nothing_and_nothing_can_be_written():
    read = read_model(PAYLOAD, model_specs(MODEL))
    assert np.shares_memory(read["weight"], np.frombuffer(PAYLOAD, np.uint8))
    with pytest.raises(ValueError, match="read-only"):
        read["weight"][0, 0] = 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["weight", "bias"])
def test_a_model_with_a_number_that_is_not_finite_is_thrown_away(bad, name):
    tensors = {key: value.copy() for key, value in MODEL.items()}
    tensors[name].flat[-1] = bad
    with pytest.raises(PayloadMismatch, match="finite"):
        read_model(model_bytes(tensors), model_specs(tensors))


def test_a_truth_value_that_is_neither_is_thrown_away():
    start = 8 + int.from_bytes(PAYLOAD[:8], "little") + preamble_of(PAYLOAD)["mask"]["data_offsets"][0]
    spoiled = PAYLOAD[:start] + b"\2" + PAYLOAD[start + 1 :]
    with pytest.raises(PayloadMismatch, match="truth"):
        read_model(spoiled, model_specs(MODEL))


DECLARED = model_specs(MODEL)
OTHERS = {
    "a missing tensor": DECLARED[1:],
    "one tensor more": (*DECLARED, TensorSpec("more", Dtype.F32, (0,))),
    "another shape of the same size": tuple(
        replace(spec, shape=(4, 3)) if spec.name == "weight" else spec for spec in DECLARED
    ),
    "another type of the same size": tuple(
        replace(spec, dtype=Dtype.I32) if spec.name == "weight" else spec for spec in DECLARED
    ),
    "another name": tuple(replace(spec, name="other") if spec.name == "bias" else spec for spec in DECLARED),
}


@pytest.mark.parametrize("declared", OTHERS.values(), ids=OTHERS)
def test_a_model_other_than_declared_is_thrown_away(declared):
    with pytest.raises(PayloadMismatch):
        read_model(PAYLOAD, declared)


def test_tensors_that_overlap_or_leave_gaps_are_thrown_away():
    preamble = preamble_of(PAYLOAD)
    begin, end = preamble["weight"]["data_offsets"]
    for offsets in ([begin - 4, end - 4], [begin + 4, end + 4], [-end + begin, 0], [begin, end + 4]):
        moved = {**preamble, "weight": {**preamble["weight"], "data_offsets": offsets}}
        with pytest.raises(PayloadMismatch):
            read_model(with_preamble(PAYLOAD, moved), DECLARED)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\0" * 8,
        (1 << 62).to_bytes(8, "little") + b"{}",
        with_preamble(PAYLOAD, []),
        with_preamble(PAYLOAD, {"weight": 3}),
        (8).to_bytes(8, "little") + b"[" * 8,
        PAYLOAD[:-1],
        PAYLOAD + b"\0",
    ],
)
def test_what_is_no_model_is_thrown_away(payload):
    with pytest.raises(PayloadMismatch):
        read_model(payload, DECLARED)


@given(data=st.data())
def test_an_altered_preamble_gives_a_model_or_a_typed_refusal(data):
    length = 8 + int.from_bytes(PAYLOAD[:8], "little")
    body = bytearray(PAYLOAD)
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, length - 1))] = data.draw(st.integers(0, 255))
    try:
        read = read_model(bytes(body), DECLARED)
    except PayloadMismatch:
        return
    assert {name: tensor.shape for name, tensor in read.items()} == {spec.name: spec.shape for spec in DECLARED}


def test_a_type_that_no_device_knows_is_not_declared():
    with pytest.raises(MalformedMessage, match="complex64"):
        model_specs({"w": np.zeros(2, np.complex64)})


LONG = np.random.default_rng(3).bytes(2 * CHUNK_BYTES + 100)


def test_a_transfer_goes_on_where_it_broke():
    assembly = Assembly(blob_of(LONG), len(LONG))
    assembly.add(next(chunks(LONG)))
    assert assembly.received == CHUNK_BYTES
    for chunk in chunks(LONG, assembly.received):
        assembly.add(chunk)
    assert assembly.finish() == LONG


def test_a_declared_size_is_refused_before_memory_is_taken(monkeypatch):
    monkeypatch.setattr("device_sdk.wire.tensors._buffer", None)
    with pytest.raises(TooLarge, match="none were"):
        Assembly(Blob(b"\0" * 32, 1 << 34), 1 << 20)


@pytest.mark.parametrize(
    "chunk",
    [
        Chunk(1, LONG[:CHUNK_BYTES]),
        Chunk(0, LONG[:10]),
        Chunk(CHUNK_BYTES, LONG[:CHUNK_BYTES]),
    ],
    ids=["out of place", "short", "beyond"],
)
def test_a_piece_out_of_place_is_refused(chunk):
    with pytest.raises(MalformedMessage):
        Assembly(blob_of(LONG), len(LONG)).add(chunk)


def test_nothing_fits_after_the_end():
    assembly = Assembly(blob_of(b"abc"), 10)
    assembly.add(Chunk(0, b"abc"))
    with pytest.raises(MalformedMessage):
        assembly.add(Chunk(3, b"d"))


def test_other_bytes_than_announced_are_thrown_away():
    assembly = Assembly(blob_of(b"abc"), 10)
    assembly.add(Chunk(0, b"xyz"))
    with pytest.raises(PayloadMismatch):
        assembly.finish()


def test_a_transfer_that_is_not_whole_is_not_finished():
    with pytest.raises(PayloadMismatch):
        Assembly(blob_of(b"abc"), 10).finish()


def test_an_update_travels_in_the_fewest_whole_bytes_with_little_around_them():
    from device_sdk.wire.chunk_bytes import encode_upload_chunk

    mechanism = ClippedUpdate({"w": (200_000,)}, clip_norm=1, noise_multiplier=4)
    size = mechanism.size * mechanism.width_bytes
    view = memoryview(bytes(size))
    sent = sum(
        len(encode_upload_chunk(start, view[start : start + CHUNK_BYTES])) for start in range(0, size, CHUNK_BYTES)
    )
    assert mechanism.width_bytes == 3
    assert sent <= 1.0001 * size


def flags_of(memory: memoryview) -> set[str]:
    """What Linux was told about the mapping that holds this memory."""
    address = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
    for mapping in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)[1:]:
        begin, end = (int(part, 16) for part in mapping.split()[0].split("-"))
        if begin <= address < end:
            return set(re.search(r"^VmFlags:(.*)$", mapping, re.MULTILINE)[1].split())  # type: ignore[index]
    raise AssertionError("memory that is not mapped")


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="only Linux is asked for large pages")
def test_a_large_transfer_lies_in_memory_that_may_have_large_pages_but_for_its_end():
    payload = bytes(8 * CHUNK_BYTES)
    assembly = Assembly(blob_of(payload), len(payload))
    for chunk in chunks(payload):
        assembly.add(chunk)
    memory = assembly.finish()
    begin, end = flags_of(memory), flags_of(memory[-CHUNK_BYTES:])
    assert "hg" in begin
    assert "hg" not in end
    assert "sh" not in begin | end
    assert "sh" in flags_of(memoryview(mmap.mmap(-1, len(payload))))  # as Python maps it, where advice is in vain
