"""What an app embeds: a device that trains, keeps its data, and releases only what its ledger has booked."""

from __future__ import annotations

from device_sdk.affinity import Affinity, AffinityRecord, Feedback

__all__ = ["Affinity", "AffinityRecord", "Feedback"]
