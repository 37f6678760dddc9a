"""An invitation survives copying and nothing but a whole one is taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.wire.errors import InvalidInvitation
from device_sdk.wire.invitation import Address, Invitation

INVITATION = Invitation(Address("fl.example.com", 8444), b"\x11" * 32, b"\x22" * 32)
TEXT = INVITATION.to_text()


def test_an_invitation_is_read_as_it_was_written():
    assert Invitation.from_text(TEXT) == INVITATION
    assert TEXT.startswith("covey1-")
    assert len(TEXT) < 130


def test_line_breaks_of_a_mail_do_not_matter():
    assert Invitation.from_text(f"  {TEXT[:40]}\n {TEXT[40:]}\r\n") == INVITATION


def test_its_secret_stands_in_no_repr():
    assert "22" * 4 not in repr(INVITATION)
    assert r"\"" * 2 not in repr(INVITATION)
    assert "secret" not in repr(INVITATION)


@given(position=st.integers(7, len(TEXT) - 1), character=st.sampled_from("ABCxyz019-_"))
def test_a_mistyped_character_is_noticed(position, character):
    mistyped = TEXT[:position] + character + TEXT[position + 1 :]
    # The last character may carry bits that mean nothing.
    if mistyped != TEXT and position < len(TEXT) - 1:
        with pytest.raises(InvalidInvitation):
            Invitation.from_text(mistyped)


@given(text=st.text(max_size=80) | st.text(max_size=80).map(lambda tail: "covey1-" + tail))
def test_what_is_no_invitation_is_refused(text):
    with pytest.raises(InvalidInvitation):
        Invitation.from_text(text)


@pytest.mark.parametrize("cut", [1, 5, 60, 100])
def test_a_cut_invitation_is_noticed(cut):
    with pytest.raises(InvalidInvitation, match="nothing was sent"):
        Invitation.from_text(TEXT[:-cut])


@pytest.mark.parametrize("text", ["127.0.0.1:1", "localhost:65535", "[::1]:8443", "a-b.example:80"])
def test_an_address_is_read_as_it_was_written(text):
    assert str(Address.from_text(text)) == text


@pytest.mark.parametrize("text", ["", "host", "host:", ":80", "host:0", "host:65536", "ho st:80", "::1:80", "h:80/x"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(InvalidInvitation):
        Address.from_text(text)
