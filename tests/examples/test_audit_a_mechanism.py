"""The audit in the example lets the honest mechanism go and convicts the careless one."""

from __future__ import annotations

from examples.audit_a_mechanism import Careless, HowManyAreLong, convicted


def test_the_honest_one_goes_free():
    assert not convicted(HowManyAreLong(5, "0.5"))


def test_the_careless_one_does_not():
    assert convicted(Careless(5, "0.5"))
