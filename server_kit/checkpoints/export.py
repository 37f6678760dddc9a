"""A cohort's model for the world outside: plain safetensors with the names that the tensors have in the model."""

from __future__ import annotations

import re
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.torch import save_file

from privacy.durable import sync, sync_directory
from server_kit.errors import CheckpointNotWritten

if TYPE_CHECKING:
    from pathlib import Path

    from server_kit.layout import Layout
    from server_kit.round import CohortState


def export_model(state: CohortState, layout: Layout, preset: str, path: Path) -> None:
    """Write the model in place of `path`; a crash leaves the old file or the new one, whole.

    Beside the tensors it says where the model comes from, and nothing about devices.
    """
    origin = {"cohort": state.cohort, "version": state.version, "round": state.round, "preset": preset}
    metadata = {"format": "pt", **{name: str(value) for name, value in origin.items()}}
    tensors = {name: tensor.cpu() for name, tensor in layout.unpack(state.model).items()}
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        save_file(tensors, draft, metadata)
        with draft.open("rb") as file:
            sync(file.fileno())
        draft.replace(path)
        sync_directory(path.parent)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):
            draft.unlink()
        raise CheckpointNotWritten(
            f"the model of cohort {state.cohort} was not written to {path} ({_reason(error)}); choose another place or "
            "make room; what was there is untouched"
        ) from error


def _reason(error: OSError | SafetensorError) -> str:
    """Why, without the name of the draft."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    found = re.search(r"I/O error: (.*?) \(os error", str(error))
    return found[1] if found else "it could not be written"
