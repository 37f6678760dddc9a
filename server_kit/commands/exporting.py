"""What leaves the server as a file: a cohort's model, and the receipts of all devices."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from privacy.durable import sync, sync_directory
from privacy.receipts import receipts_to_lines
from server_kit.errors import HomeError

if TYPE_CHECKING:
    from server_kit.commands.opened import Opened
    from server_kit.store.protocol import CohortRecord, Unreadable


def export_cohort(federation: Opened, name: str, out: Path) -> CohortRecord:
    """Write the newest model of a cohort as safetensors."""
    from server_kit.checkpoints import export_model, of_cohort, unpack_cohort
    from server_kit.models import initial_model

    record, settings = federation.cohort(name), federation.home.config.federation
    if not record.checkpoint:
        raise HomeError(f"cohort {name} has no model yet; nothing was written")
    found = federation.home.open_checkpoints().latest(of_cohort(name), record.checkpoint)
    layout = initial_model(settings.model, settings.seed, federation.home.directory).layout
    export_model(unpack_cohort(found.packed), layout, settings.preset, out)
    return record


def export_receipts(federation: Opened, out: Path, on_unreadable: Unreadable | None = None) -> int:
    """Write all receipts as JSON lines for `covey privacy report --receipts`; how many. Whole, or not at all.

    One that cannot be read is left out, and `on_unreadable` hears whose it is.
    """
    draft = out.with_name(f".{out.name}.{secrets.token_hex(4)}")
    count = 0
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            for line in receipts_to_lines(federation.store.receipts(on_unreadable)):
                file.write(line)
                count += 1
            file.flush()
            sync(file.fileno())
        draft.replace(out)
        sync_directory(out.absolute().parent)
    except BaseException as error:
        with suppress(OSError):
            draft.unlink()
        if not isinstance(error, OSError):
            raise
        raise HomeError(
            f"the receipts were not written to {out} ({error.strerror or error}); choose another place or make room; "
            "what was there is untouched"
        ) from error
    return count
