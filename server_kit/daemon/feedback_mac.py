"""Feedback that a device cannot invent: the server's seal on what it told whom.

A device returns feedback as evidence for the cohort it asks for. Only the server can make or check the seal, and
it holds for one device; to the device it is 32 bytes to keep.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from privacy.canonical import canonical

if TYPE_CHECKING:
    from device_sdk.wire.messages import DeviceId, Feedback

_TAG = "covey-feedback-v1"


@dataclass(frozen=True)
class FeedbackSeal:
    """Seals feedback under the server's secret of 32 bytes."""

    key: bytes = field(repr=False)

    def sealed(self, device: DeviceId, feedback: Feedback) -> Feedback:
        """The feedback with its seal, to be pushed to `device`."""
        return replace(feedback, mac=self._mac(device, feedback))

    def holds(self, device: DeviceId, feedback: Feedback) -> bool:
        """Whether this server told `device` exactly this."""
        return hmac.compare_digest(self._mac(device, feedback), feedback.mac)

    def _mac(self, device: DeviceId, feedback: Feedback) -> bytes:
        change, sub_cluster = feedback.reward_change, feedback.sub_cluster
        told = canonical(
            {
                "tag": _TAG,
                "device": device,
                "cohort": feedback.cohort,
                "round": feedback.round,
                # Exactly, bit for bit, and never mistaken for "no verdict".
                "reward_change": [] if change is None else [float(change).hex()],
                "sub_cluster": [] if sub_cluster is None else [sub_cluster],
            }
        )
        return hmac.digest(self.key, told, "sha256")
