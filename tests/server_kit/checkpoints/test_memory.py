"""A checkpoint of a large model takes no copy of it to write, and one to read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PREPARE = """
import json, resource, sys
from pathlib import Path
import torch
from safetensors.torch import save
from server_kit.checkpoints import Checkpoints, of_cohort, pack_cohort, unpack_cohort
from server_kit.round import CohortState
from server_kit.store.blobs import LocalBlobs

VALUES = 24_000_000
home = Path(sys.argv[1])
checkpoints = Checkpoints(LocalBlobs(home / "blobs"), home / "scratch")
checkpoints.read(checkpoints.write("warm", 0, pack_cohort(CohortState("0", torch.zeros(9)))))


def peak():
    # Not `ru_maxrss` where it can be helped: that begins with what the parent held when it started us.
    status = Path("/proc/self/status")
    if status.exists():
        kilobytes = int(next(line for line in status.read_text().splitlines() if line.startswith("VmHWM")).split()[1])
        return kilobytes * 1024 / VALUES / 4
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / VALUES / 4
"""
WRITE = """
state = CohortState("0", torch.ones(VALUES))
before = peak()
checkpoints.write(of_cohort("0"), 1, pack_cohort(state))
written = peak()
save(dict(pack_cohort(state).tensors))
print(json.dumps({"ours": written - before, "in memory": peak() - before}))
"""
READ = """
before = peak()
state = unpack_cohort(checkpoints.latest(of_cohort("0")).packed)
assert float(state.model.sum()) == VALUES
print(json.dumps(peak() - before))
"""


def models_taken(script: str, home: Path) -> Any:
    """What the script prints, in models."""
    command = [sys.executable, "-c", PREPARE + script, str(home)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.integration
def test_no_copy_to_write_and_one_to_read(tmp_path):
    taken = models_taken(WRITE, tmp_path)
    assert taken["ours"] < 0.2
    # The measure sees a writer that makes the file in memory first.
    assert taken["in memory"] > 0.9
    # The state itself, and the file that it is read from, mapped.
    assert models_taken(READ, tmp_path) < 2.2
