"""Cohorts and devices for machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from server_kit.commands.overview import CohortLine
    from server_kit.store.protocol import DeviceRecord


def cohorts_json(lines: Sequence[CohortLine]) -> dict[str, Any]:
    return {"format": "covey-server-cohorts-1", "cohorts": [asdict(line) for line in lines]}


def devices_json(devices: Sequence[DeviceRecord]) -> dict[str, Any]:
    return {
        "format": "covey-server-devices-1",
        "devices": [{**vars(each), "refusals": dict(each.refusals)} for each in devices],
    }
