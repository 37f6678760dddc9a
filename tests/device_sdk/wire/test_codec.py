"""Bytes mean one message and a message has one spelling; whatever else arrives is refused with a typed error."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.wire import chunk_bytes, codec, schema
from device_sdk.wire import messages as m
from device_sdk.wire._generated.federation_descriptor import SERIALIZED
from device_sdk.wire.errors import MalformedMessage, TooLarge, WrongVersion
from device_sdk.wire.fields import Nested, Shared
from tests.device_sdk.wire import examples, golden, regenerate, strategies

CASES = list(golden.cases())
IDS = [case[0] for case in CASES]
ENVELOPES: dict[str, tuple[Callable, Callable]] = {
    "DeviceMessage": (codec.encode_from_device, codec.decode_from_device),
    "ServerMessage": (codec.encode_from_server, codec.decode_from_server),
    "UploadRequest": (codec.encode_upload, codec.decode_upload),
    "UploadReply": (codec.encode_upload_reply, codec.decode_upload_reply),
}
ALONE = [type(message) for message in examples.ALONE.values()]
DECODERS = [
    *(decode for _, decode in ENVELOPES.values()),
    *(partial(codec.decode, cls) for cls in ALONE),
    codec.decode_chunk,
    codec.decode_delivery,
]


def test_the_generated_schema_is_that_of_federation_proto():
    compiled = regenerate.compiled_descriptor()
    assert compiled == SERIALIZED
    assert regenerate.module_text(compiled) == regenerate.GENERATED.read_text(encoding="utf-8")


def test_every_field_of_every_message_has_bounds_and_a_place_in_the_schema():
    for cls, kinds in schema.FIELDS.items():
        assert {field.name for field in fields(cls)} == set(kinds), cls
        one_ofs = {one_of.name for one_of in codec._twin(cls.__name__).DESCRIPTOR.oneofs if one_of.name[0] != "_"}
        described = {field.name for field in codec._twin(cls.__name__).DESCRIPTOR.fields}
        assert set(kinds) <= described | one_ofs, cls


@given(strategies.of(m.Task), strategies.of(m.Task))
def test_what_tasks_share_is_spelt_and_read_as_if_each_stood_alone(first, second):
    mixed = replace(second, model=first.model, objective=first.objective, privacy=first.privacy)
    # Copies, which nobody has encoded yet.
    tasks = [first, second, mixed, replace(first), replace(mixed, model=replace(mixed.model))]
    written = [codec.encode(replace(task)) for task in tasks]
    with pytest.MonkeyPatch.context() as alone:
        alone.setattr(Shared, "read", Nested.read)
        alone.setattr(Shared, "write", Nested.write)
        assert written == [codec.encode(replace(task)) for task in tasks]
        assert [codec.decode(m.Task, body) for body in written] == tasks
    assert [codec.decode(m.Task, body) for body in written] == tasks


def test_a_task_that_was_encoded_before_is_sent_as_if_it_had_not_been():
    fresh, written = replace(examples.TASK), replace(examples.TASK)
    alone = codec.encode(written)
    assert codec.encode_from_server(written) == codec.encode_from_server(fresh)
    assert codec.encode(written) == alone == codec.encode(fresh)
    another = replace(written, task="another")
    assert codec.decode(m.Task, codec.encode(another)) == another
    assert codec.decode_from_server(codec.encode_from_server(another)) == another


@given(strategies.of(m.Task), st.booleans())
def test_a_device_writes_a_task_down_as_it_would_spell_it(task, newer):
    twin = codec._twin("ServerMessage").FromString(codec.encode_from_server(task))
    if newer:
        for part in (twin.task, twin.task.model, twin.task.objective):
            part.MergeFromString(b"\xfa\xff\x03\x04more")  # a field that nobody knows yet
    arrived, _ = codec.decode_with_enclosed(twin.SerializeToString())
    assert isinstance(arrived, m.Task)
    assert arrived == task
    assert codec.encode(arrived) == codec.encode(replace(arrived)) == codec.encode(task)


def test_a_model_out_of_bounds_is_refused_however_often_it_comes():
    good, bad = examples.TASK, codec._twin("Task").FromString(codec.encode(examples.TASK))
    bad.model.blob.sha256 = b"short"
    for _ in range(3):
        assert codec.decode(m.Task, codec.encode(good)) == good
        with pytest.raises(MalformedMessage):
            codec.decode(m.Task, bad.SerializeToString())
        with pytest.raises(MalformedMessage):
            codec.encode(replace(good, model=replace(good.model, blob=m.Blob(b"short", good.model.blob.size_bytes))))


@pytest.mark.parametrize(("name", "message", "encode", "decode", "type_name"), CASES, ids=IDS)
def test_every_message_has_its_golden_bytes(name, message, encode, decode, type_name):
    vector = (golden.VECTORS / f"{name}.txt").read_text(encoding="utf-8")
    assert encode(message) == golden.bytes_of(vector)
    assert decode(golden.bytes_of(vector)) == message
    assert golden.annotated(encode(message), type_name) == vector


def test_every_message_has_a_golden_vector():
    shown = {type(message) for _, message, *_ in CASES}
    top_level = {m.Delivery, *ALONE, *(cls for kinds in schema.ENVELOPES.values() for cls in kinds.values())}
    assert shown == top_level
    assert {path.stem for path in golden.VECTORS.iterdir()} == set(IDS)


@pytest.mark.parametrize("cls", ALONE, ids=lambda cls: cls.__name__)
@given(data=st.data())
def test_a_message_alone_survives_the_wire(cls, data):
    message = data.draw(strategies.of(cls))
    assert codec.decode(cls, codec.encode(message)) == message


@pytest.mark.parametrize("envelope", ENVELOPES)
@given(data=st.data())
def test_a_message_in_a_stream_survives_the_wire(envelope, data):
    encode, decode = ENVELOPES[envelope]
    message = data.draw(st.one_of(*(strategies.of(cls) for cls in set(schema.ENVELOPES[envelope].values()))))
    assert decode(encode(message)) == message


@given(delivery=strategies.of(m.Delivery))
def test_a_delivery_survives_the_wire_and_protobuf_spells_it_alike(delivery):
    body = codec.encode_delivery(delivery)
    assert codec.decode_delivery(body) == delivery
    assert codec.encode(delivery) == body


def test_a_delivery_is_understood_in_any_order_of_its_fields():
    delivery = examples.DELIVERIES["delivery"]
    header, chunk = codec.encode_upload(delivery.header), codec.encode_upload(delivery.chunk)
    assert header + chunk == codec.encode_delivery(delivery)
    assert codec.decode_delivery(chunk + header) == delivery
    for part in (header, chunk, header + header, b""):
        with pytest.raises(MalformedMessage):
            codec.decode_delivery(part)


def test_a_check_in_is_understood_wherever_it_stands_in_a_delivery():
    delivery = examples.DELIVERIES["delivery_with_check_in"]
    header, chunk = codec.encode_upload(delivery.header), codec.encode_upload(delivery.chunk)
    check_in = codec.encode_delivery(delivery)[len(header + chunk) :]
    for body in (header + chunk + check_in, header + check_in + chunk, check_in + chunk + header):
        assert codec.decode_delivery(body) == delivery
    assert codec.decode_delivery(header + chunk + check_in + check_in).check_in == delivery.check_in
    empty = chunk_bytes.encode_check_in(b"")
    assert codec.decode_delivery(header + chunk + empty).check_in == m.CheckIn()
    for part in (check_in[:-1], chunk_bytes.encode_check_in(b"\xff"), check_in + b"\x22"):
        with pytest.raises(MalformedMessage):
            codec.decode_delivery(header + chunk + part)


def test_a_model_goes_with_its_task_and_is_no_matter_for_those_who_do_not_know_of_it():
    body = codec.encode_from_server(TASK) + codec.encode_enclosed(b"a small model")
    assert codec.decode_with_enclosed(body) == (TASK, b"a small model")
    assert codec.decode_from_server(body) == TASK
    assert codec.decode_with_enclosed(codec.encode_from_server(TASK)) == (TASK, b"")
    assert codec.decode_with_enclosed(codec.encode_enclosed(b"alone")) == (None, b"alone")
    with pytest.raises(TooLarge):
        codec.decode_from_server(codec.encode_enclosed(bytes(m.ENCLOSED_BYTES + 1)))


def test_the_largest_delivery_fits():
    chunk = m.Chunk(0, b"x" * m.CHUNK_BYTES)
    terms = tuple(m.Term(f"{'abcdefgh'[index % 8] * (index + 1)}", "y" * 4096) for index in range(32))
    header = replace(examples.SUMMARY, terms=terms, receipt=b"z" * 8192)
    assert len(codec.encode_delivery(m.Delivery(header, chunk))) <= codec.MAX_MESSAGE_BYTES


@given(body=st.binary(max_size=300), which=st.integers(0, len(DECODERS) - 1))
def test_noise_gives_a_message_or_a_typed_refusal(body, which):
    with suppress(MalformedMessage):
        DECODERS[which](body)


@given(data=st.data())
def test_an_altered_message_gives_a_message_or_a_typed_refusal(data):
    _, message, encode, decode, _ = data.draw(st.sampled_from(CASES))
    body = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 6))):
        position = data.draw(st.integers(0, len(body) - 1))
        action = data.draw(st.sampled_from(["flip", "cut", "double", "insert"]))
        if action == "flip":
            body[position] ^= data.draw(st.integers(1, 255))
        elif action == "cut" and len(body) > 1:
            del body[position : position + data.draw(st.integers(1, 20))]
        elif action == "double":
            body[position:position] = body[position : position + 30]
        else:
            body[position:position] = data.draw(st.binary(min_size=1, max_size=8))
        if not body:
            return
    with suppress(MalformedMessage):
        decode(bytes(body))


@pytest.mark.parametrize(("name", "message", "encode", "decode", "type_name"), CASES, ids=IDS)
def test_fields_of_a_newer_version_are_skipped(name, message, encode, decode, type_name):
    newer = bytes.fromhex("ca 3e 03 6e 65 77")  # field 1001, three bytes of text
    assert decode(encode(message) + newer) == message


def test_a_newer_minor_version_is_understood():
    hello = m.Hello(m.ProtocolVersion(1, 9))
    assert codec.decode_from_device(codec.encode_from_device(hello)) == hello


@pytest.mark.parametrize("major", [0, 2, 77])
def test_another_major_version_is_refused_whatever_the_rest_says(major):
    twin = codec._twin("EnrolmentRequest")()
    twin.version.major = major
    twin.signing_key = b"in a form of its own"
    with pytest.raises(WrongVersion, match=f"version {major}[.]0 .* update the older"):
        codec.decode(m.EnrolmentRequest, twin.SerializeToString())


def test_an_unknown_kind_of_message_in_a_stream_is_ignored_and_in_an_upload_refused():
    newer = bytes.fromhex("9a 06 02 08 01")  # field 99
    assert codec.decode_from_server(newer) is None
    assert codec.decode_from_device(newer) is None
    with pytest.raises(MalformedMessage, match="unknown kind"):
        codec.decode_upload(newer)


def test_an_unknown_error_code_keeps_its_sentence():
    twin = codec._twin("Error")(code=999, message="of a newer version")
    assert codec.decode(m.Error, twin.SerializeToString()) == m.Error(m.ErrorCode.INTERNAL, "of a newer version")


def test_a_message_too_long_is_refused_before_it_is_parsed(monkeypatch):
    monkeypatch.setattr(codec, "_twin", None)
    with pytest.raises(TooLarge, match="was not read"):
        codec.decode(m.Error, b"\0" * (codec.MAX_CONTROL_BYTES + 1))
    with pytest.raises(TooLarge):
        codec.decode_upload(b"\0" * (codec.MAX_MESSAGE_BYTES + 1))


def test_the_largest_chunk_fits_and_a_larger_one_does_not():
    chunk = m.Chunk(schema.MAX_BLOB_BYTES, b"x" * m.CHUNK_BYTES)
    assert len(codec.encode_upload(chunk)) <= codec.MAX_MESSAGE_BYTES
    assert codec.decode_upload(codec.encode_upload(chunk)) == chunk
    with pytest.raises(MalformedMessage):
        codec.encode_upload(m.Chunk(0, b"x" * (m.CHUNK_BYTES + 1)))


TASK = examples.TASK
WRONG: dict[str, dict[str, Any]] = {
    "a learning rate that is no number": {"objective": replace(TASK.objective, learning_rate=math.nan)},
    "an infinite learning rate": {"objective": replace(TASK.objective, learning_rate=math.inf)},
    "neither epochs nor steps": {"objective": replace(TASK.objective, epochs=None)},
    "no epochs": {"objective": replace(TASK.objective, epochs=0)},
    "a momentum of one": {"objective": replace(TASK.objective, momentum=1.0)},
    "DP-SGD without steps": {"privacy": examples.RECORD_LEVEL},
    "an exponent": {"privacy": replace(examples.DEVICE_LEVEL, noise_multiplier="1e999999999")},
    "a negative clip norm": {"privacy": replace(examples.DEVICE_LEVEL, clip_norm="-1")},
    "no noise": {"privacy": replace(examples.DEVICE_LEVEL, noise_multiplier="0.000")},
    "a division by zero": {"privacy": replace(examples.DEVICE_LEVEL, clip_norm="1/0")},
    "digits of another script": {"privacy": replace(examples.DEVICE_LEVEL, clip_norm="\N{ARABIC-INDIC DIGIT ONE}")},
    "an unknown relation": {"privacy": replace(examples.DEVICE_LEVEL, relation="none")},  # type: ignore[arg-type]
    "a line break in a name": {"task": "t\n41"},
    "another device's form": {"device": "ada"},
    "a cohort of no tree": {"cohort": "1.2"},
    "no deadline": {"deadline_seconds": 0.0},
    "an endless deadline": {"deadline_seconds": math.inf},
    "a negative round": {"round": -1},
    "two tensors of one name": {"model": replace(TASK.model, tensors=(TASK.model.tensors[0],) * 2)},
    "no tensor": {"model": replace(TASK.model, tensors=())},
    "a huge tensor in a small blob": {
        "model": replace(TASK.model, tensors=(m.TensorSpec("w", m.Dtype.F32, (1 << 34, 1 << 34)),))
    },
    "a huge blob for small tensors": {"model": replace(TASK.model, blob=m.Blob(examples.filled(1), 1 << 34))},
    "a blob beyond every limit": {"model": replace(TASK.model, blob=m.Blob(examples.filled(1), 1 << 35))},
    "an unknown dtype": {"model": replace(TASK.model, tensors=(m.TensorSpec("w", "F8", (650,)),))},  # type: ignore[arg-type]
    "nine dimensions": {"model": replace(TASK.model, tensors=(m.TensorSpec("w", m.Dtype.F32, (1,) * 9),))},
    "a short hash": {"model": replace(TASK.model, blob=m.Blob(b"short", 2720))},
}


QUESTION, LOSS_QUESTION = examples.QUESTION, examples.LOSS_QUESTION
OTHER_SHAPE = (m.TensorSpec("bias", m.Dtype.F32, (10,)), m.TensorSpec("weight", m.Dtype.F32, (64, 10)))
WRONG_QUESTIONS: dict[str, dict[str, Any]] = {
    "no model": {"models": ()},
    "a choice of one": {"models": QUESTION.models[:1]},
    "sixty-five models": {"models": QUESTION.models * 32 + QUESTION.models[:1]},
    "models of different tensors": {
        "models": (QUESTION.models[0], replace(QUESTION.models[1], tensors=OTHER_SHAPE)),
    },
    "a huge tensor in a small blob": {
        "models": (replace(QUESTION.models[0], tensors=(m.TensorSpec("w", m.Dtype.F32, (1 << 34,)),)),) * 2
    },
    "accuracy of two": {"kind": m.QuestionKind.ACCURACY},
    "an unknown kind": {"kind": 4},
    "no kind": {"kind": 0},
    "a bound where none is needed": {"loss_bound": 1.0},
    "a loss without its bound": {"kind": m.QuestionKind.LOSS, "models": QUESTION.models[:1]},
    "a bound of nothing": {"kind": m.QuestionKind.LOSS, "models": QUESTION.models[:1], "loss_bound": 0.0},
    "an endless bound": {"kind": m.QuestionKind.LOSS, "models": QUESTION.models[:1], "loss_bound": math.inf},
    "votes about an accuracy": {
        "kind": m.QuestionKind.ACCURACY,
        "models": QUESTION.models[:1],
        "choice_by": m.ChoiceBy.VOTES,
    },
    "an answer for nothing": {"epsilon": "0"},
    "an exponent": {"epsilon": "1e9"},
    "no deadline": {"deadline_seconds": 0.0},
    "another device's form": {"device": "ada"},
    "a space in a name": {"question": "label_histogram q"},
}
WRONG_MESSAGES = {f"a task with {name}": replace(TASK, **change) for name, change in WRONG.items()} | {
    f"a question with {name}": replace(QUESTION, **change) for name, change in WRONG_QUESTIONS.items()
}


@pytest.mark.parametrize("wrong", WRONG_MESSAGES.values(), ids=WRONG_MESSAGES)
def test_a_wrong_message_is_neither_sent_nor_accepted(wrong, monkeypatch):
    with pytest.raises(MalformedMessage):
        codec.encode_from_server(wrong)
    # A server without our checks, as far as protobuf itself lets it write such a message.
    monkeypatch.setattr(codec, "check_coherence", lambda message: None)
    with monkeypatch.context() as unchecked:
        for kind in ("Text", "Prose", "ExactNumber", "Bytes", "Whole", "Real", "Choice"):
            unchecked.setattr(f"device_sdk.wire.fields.{kind}.check", lambda self, value, name: value)
        unchecked.setattr(
            "device_sdk.wire.fields.Choice.write", lambda self, holder, name, value: setattr(holder, name, value)
        )
        unchecked.setattr("device_sdk.wire.fields.Many._check_number", lambda self, number, name: None)
        try:
            body = codec.encode_from_server(wrong)
        except (ValueError, TypeError):
            return
    monkeypatch.undo()
    with pytest.raises(MalformedMessage):
        codec.decode_from_server(body)


def test_epochs_and_steps_together_cannot_be_said():
    with pytest.raises(MalformedMessage, match="either epochs or steps"):
        codec.encode_from_server(replace(TASK, objective=replace(TASK.objective, steps=3)))
    twin = codec._twin("LocalObjective")(epochs=2, steps=3)
    assert not twin.HasField("epochs")


def test_an_update_of_another_size_than_its_numbers_is_refused():
    with pytest.raises(MalformedMessage, match="size"):
        codec.encode_upload(replace(examples.UPDATE, encoding=m.GridEncoding(651, 3)))


def test_a_message_of_many_empty_parts_is_refused_before_they_are_read():
    leaves = codec._twin("ServerMessage")()
    leaves.cohorts_changed.cohorts.leaves.extend(["0"] * 100_000)
    with pytest.raises(TooLarge):
        codec.decode_from_server(leaves.SerializeToString())


def test_a_question_whose_models_fill_more_than_a_message_is_not_sent():
    tensors = tuple(m.TensorSpec(f"{index:0>200}", m.Dtype.F32, (1,)) for index in range(200))
    many = tuple(m.ModelReference(1, m.Blob(examples.filled(index), 1000), tensors) for index in range(64))
    with pytest.raises(TooLarge, match="was not sent"):
        codec.encode_from_server(replace(QUESTION, models=many))
    fewer = replace(QUESTION, models=many[:8])
    assert codec.decode_from_server(codec.encode_from_server(fewer)) == fewer


def test_a_device_of_version_1_0_takes_a_question_for_something_to_be_ignored():
    newer = codec._twin("ServerMessage").FromString(codec.encode_from_server(QUESTION))
    older = DescriptorProto()
    codec._twin("ServerMessage").DESCRIPTOR.CopyToProto(older)
    older.field.remove(next(field for field in older.field if field.name == "question"))
    pool = DescriptorPool()
    file = FileDescriptorProto.FromString(SERIALIZED)
    file.message_type.remove(next(kind for kind in file.message_type if kind.name == "ServerMessage"))
    file.message_type.append(older)
    pool.Add(file)
    twin = GetMessageClass(pool.FindMessageTypeByName("covey.v1.ServerMessage"))
    assert twin.FromString(newer.SerializeToString()).WhichOneof("kind") is None


def test_a_choice_without_a_word_is_told_by_randomised_response_as_before_votes():
    body = codec.encode_from_server(QUESTION)
    assert not codec._twin("ServerMessage").FromString(body).question.choice_by  # and so it takes no byte
    assert codec.decode_from_server(body) == replace(QUESTION, choice_by=m.ChoiceBy.RESPONSE)


@pytest.mark.parametrize("newer", [2, 77, (1 << 32) - 1])
def test_a_way_to_choose_of_a_newer_version_is_read_and_known_to_be_unknown(newer):
    twin = codec._twin("ServerMessage").FromString(codec.encode_from_server(QUESTION))
    twin.question.choice_by = newer
    assert codec.decode_from_server(twin.SerializeToString()) == replace(QUESTION, choice_by=m.ChoiceBy.UNKNOWN)


def test_messages_import_nothing_heavy():
    code = "import sys, device_sdk.wire.messages; print({'grpc', 'numpy', 'google', 'cryptography'} & set(sys.modules))"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "set()"


@given(offset=st.integers(0, schema.MAX_BLOB_BYTES), data=st.binary(min_size=1, max_size=300))
def test_the_short_way_for_chunks_gives_the_bytes_of_protobuf(offset, data):
    chunk = m.Chunk(offset, data)
    assert chunk_bytes.encode_chunk(offset, memoryview(data)) == codec.encode(chunk)
    assert chunk_bytes.encode_upload_chunk(offset, memoryview(data)) == codec.encode_upload(chunk)
    assert chunk_bytes.alone(codec.encode(chunk)) == chunk
    assert chunk_bytes.in_upload(codec.encode_upload(chunk)) == chunk


@given(body=st.binary(max_size=40) | st.binary(max_size=20).map(lambda tail: b"\x08\x05\x12" + tail))
def test_what_the_short_way_for_chunks_reads_protobuf_reads_alike(body):
    short = chunk_bytes.alone(body)
    if short is not None:
        twin = codec._twin("Chunk").FromString(body)
        assert (twin.offset, twin.data) == (short.offset, short.data)


def test_a_chunk_in_another_spelling_is_read_too_within_the_same_bounds():
    reordered = bytes.fromhex("12 03 61 62 63 08 05")
    assert chunk_bytes.alone(reordered) is None
    assert codec.decode_chunk(reordered) == m.Chunk(5, b"abc")
    with pytest.raises(MalformedMessage):
        codec.decode_chunk(bytes.fromhex("12 00"))
    with pytest.raises(TooLarge):
        codec.decode_chunk(bytes.fromhex("08 ff ff ff ff ff 0f 12 01 61"))


def test_the_most_expensive_message_that_is_parsed_at_all_costs_little_memory():
    """Empty parts take two bytes on the wire and far more in memory; the limit on the length bounds both."""
    code = """
import resource
from device_sdk.wire import codec
tensors = bytes.fromhex("1a00") * ((codec.MAX_CONTROL_BYTES - 20) // 2)
def field(number, body):
    twin = codec._twin("Chunk")(data=body).SerializeToString()
    return bytes([number << 3 | 2]) + twin[1:]
body = field(2, field(5, tensors))
assert len(body) <= codec.MAX_CONTROL_BYTES
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    codec.decode_from_server(body)
except codec.MalformedMessage as error:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, type(error).__name__)
"""
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    kibibytes, error = finished.stdout.split()
    assert int(kibibytes) < 64 << 10
    assert error == "MalformedMessage"
