"""A federation with two cohorts, a device or two and a model, as a server would leave it, without a server."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from server_kit.checkpoints import of_cohort, pack_cohort
from server_kit.daemon.federation_home import Home
from server_kit.models import initial_model
from server_kit.round import CohortState as Running
from server_kit.store.protocol import Asking, CohortState, Digest, Happening
from tests.server_kit.store.deliveries import cohort, enrolled, name_of, task, update

DEVICES = [name_of(number << 100) for number in (1, 2, 3)]


def populated(directory: Path) -> Home:
    """Cohort 0 has split; 0.0 has a model and an update that waits; the third device is revoked."""
    home = Home.create(directory)
    store = home.open_store()
    for device in DEVICES:
        store.register.add(enrolled(device))
    checkpoints = home.open_checkpoints()
    weights = initial_model(home.config.federation.model, 0).weights
    name = checkpoints.write(of_cohort("0.0"), 4, pack_cohort(Running("0.0", weights, version=4, round=5)))
    parent = replace(cohort("0", 3), state=CohortState.SPLIT)
    child = replace(cohort("0.0", 4), checkpoint=name)
    tested = Happening("tested", time.time() - 30, "0.0", {"accuracy": 0.875, "version": 4})
    split = Happening("split", time.time() - 7200, "0", {"children": ["0.0", "0.1"]})
    store.digest(Digest(None, "federation", cohorts=[parent, child, cohort("0.1", 5)], happenings=[split, tested]))
    opened = replace(child, opened_at_seconds=time.time() - 20, needed=2)
    store.ask(Asking([task(name, device, "0.0") for name, device in zip("ab", DEVICES, strict=False)], [opened]))
    store.accept([update(DEVICES[0], "a")], time.time())
    store.seen(DEVICES[:1], time.time() - 300)
    store.count_refusal("replayed", DEVICES[1], time.time())
    store.close()
    return home
