"""Quick copies of frozen values are those that `dataclasses.replace` makes."""

from __future__ import annotations

from dataclasses import replace

from server_kit.altered import altered
from server_kit.interfaces import DeviceView


def test_an_altered_copy_is_a_replaced_one() -> None:
    view = DeviceView("a", latency_seconds=1.0, samples=3)
    assert altered(view, latency_seconds=2.0, staleness=1) == replace(view, latency_seconds=2.0, staleness=1)


def test_the_original_stays_as_it_was() -> None:
    view = DeviceView("a", latency_seconds=1.0)
    altered(view, latency_seconds=2.0)
    assert view == DeviceView("a", latency_seconds=1.0)
