"""What survives the processes of a server: packed, checked, written aside, and found again."""

from server_kit.checkpoints.export import export_model
from server_kit.checkpoints.history import OF_FEDERATION, Checkpoints, Found, of_cohort
from server_kit.checkpoints.packing import Packed, pack, unpack
from server_kit.checkpoints.states import (
    pack_cohort,
    pack_federation,
    pack_folded,
    unpack_cohort,
    unpack_federation,
    unpack_folded,
)

__all__ = [
    "Checkpoints",
    "Found",
    "OF_FEDERATION",
    "Packed",
    "export_model",
    "of_cohort",
    "pack",
    "pack_cohort",
    "pack_federation",
    "pack_folded",
    "unpack",
    "unpack_cohort",
    "unpack_federation",
    "unpack_folded",
]
