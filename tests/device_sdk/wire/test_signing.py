"""A signature covers every field, speaks for one device and one kind of statement, and nothing else passes."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from device_sdk.wire import messages as m
from device_sdk.wire.errors import SignatureInvalid
from device_sdk.wire.signing import (
    check_enrolment,
    check_release,
    device_id,
    enrolment_request,
    release_statement,
    server_name,
    signed,
)
from privacy.keys import SigningKey
from tests.device_sdk.wire import examples

KEY = SigningKey(b"\x01" * 32)
DEVICE = device_id(KEY.public_key)
HEADERS = [examples.UPDATE, examples.SUMMARY]


def other(value):
    """Something else of the same kind."""
    match value:
        case str():
            return value + "x"
        case bytes():
            return bytes([value[0] ^ 1]) + value[1:]
        case int():
            return value + 1
        case m.Blob(sha256, size):
            return m.Blob(sha256, size + 1)
        case m.GridEncoding(count, width):
            return m.GridEncoding(count, width + 1)
        case (m.Term(name, value), *rest):
            return (m.Term(name, f"{value}0"), *rest)
    raise TypeError(value)


@pytest.mark.parametrize("header", HEADERS, ids=lambda header: type(header).__name__)
def test_a_signed_header_passes_and_no_field_can_be_changed(header):
    good = signed(header, DEVICE, KEY)
    check_release(good, DEVICE, KEY.public_key)
    for field in fields(good):
        forged = replace(good, **{field.name: other(getattr(good, field.name))})
        with pytest.raises(SignatureInvalid):
            check_release(forged, DEVICE, KEY.public_key)


@pytest.mark.parametrize("header", HEADERS, ids=lambda header: type(header).__name__)
def test_a_release_cannot_be_passed_on_as_another_devices(header):
    good = signed(header, DEVICE, KEY)
    with pytest.raises(SignatureInvalid):
        check_release(good, "0" * 32, KEY.public_key)
    with pytest.raises(SignatureInvalid):
        check_release(good, DEVICE, SigningKey.generate().public_key)


def test_the_bytes_of_a_payload_hash_are_covered():
    good = signed(examples.UPDATE, DEVICE, KEY)
    forged = replace(good, payload=replace(good.payload, sha256=b"\0" * 32))
    with pytest.raises(SignatureInvalid):
        check_release(forged, DEVICE, KEY.public_key)


def test_the_order_of_terms_is_covered():
    good = signed(examples.SUMMARY, DEVICE, KEY)
    with pytest.raises(SignatureInvalid):
        check_release(replace(good, terms=good.terms[::-1]), DEVICE, KEY.public_key)


def test_the_statement_of_an_update_is_what_it_was():
    assert release_statement(examples.UPDATE, examples.DEVICE).decode() == (
        '{"cohort":"0.1","device":"00112233445566778899aabbccddeeff","encoding":[650,3],'
        f'"ledger_head":"{"b4" * 32}","model":"{"b1" * 32}","payload":"{"b3" * 32}",'
        '"receipt":"492f92e3f81e77f15d6bf198c3fc67f0d2e7424f050070eeb68897b5a3c3ee7d",'
        '"round":7,"sequence":5,"size_bytes":1950,"tag":"covey-update-v1","task":"t-41"}'
    )


def test_names_follow_from_keys():
    assert device_id(b"\x02" * 32) == "75877bb41d393b5fb8455ce60ecd8dda"
    assert server_name(b"certificate").startswith("covey-")
    assert server_name(b"certificate") != server_name(b"another")


def test_an_enrolment_request_proves_both_keys():
    ledger = SigningKey.generate()
    good = enrolment_request(b"\3" * 32, b"request", KEY, ledger)
    check_enrolment(good)
    stolen = SigningKey.generate()
    changes: tuple[dict[str, Any], ...] = (
        {"invitation_secret": b"\4" * 32},
        {"certificate_request": b"another"},
        {"signing_key": stolen.public_key},
        {"ledger_key": stolen.public_key},
        {"signing_proof": good.ledger_proof},
        {"ledger_proof": good.signing_proof},
    )
    for change in changes:
        with pytest.raises(SignatureInvalid):
            check_enrolment(replace(good, **change))
