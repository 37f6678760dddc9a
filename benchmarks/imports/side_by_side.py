"""What an import costs an app, in time and memory: ours and Flower's, in one run, taking turns.

    python -m benchmarks.imports.side_by_side [--passes 7] [--json]

Each import has an interpreter of its own: ours in an environment with the base install alone, Flower's in the one that
`benchmarks.speed` makes, of which the import loads neither torch nor Ray. Our names are loaded when first used, so a
bare `import device_sdk` flatters us: "ready" has loaded all that a round needs, down to gRPC and NumPy. We want a third
of Flower's time and two thirds of its memory.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.speed import environments
from tests.device_sdk import base_install

READY = ("device_sdk.device", "device_sdk.runtime", "device_sdk.wire.channel", "device_sdk.trainers.numpy_trainer")
IMPORTS = {
    "nothing": ("covey", ()),
    "device_sdk": ("covey", ("device_sdk",)),
    "device_sdk, ready": ("covey", READY),
    "flwr": ("flower", ("flwr",)),
    "flwr.clientapp": ("flower", ("flwr.clientapp",)),
}
AGAINST = "flwr"
WANTED_TIME, WANTED_MEMORY = 1 / 3, 2 / 3
MEASURE = """
import importlib, json, os, sys, time
began = time.perf_counter()
for name in sys.argv[1:]:
    importlib.import_module(name)
seconds = time.perf_counter() - began
pages = int(open("/proc/self/statm").read().split()[1])
print(json.dumps({"seconds": seconds, "mebibytes": pages * os.sysconf("SC_PAGE_SIZE") / 2**20}))
"""


MAPPED = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*{line.split()[5] for line in open("/proc/self/maps") if ".so" in line}, sep="\\n")
"""


@dataclass(frozen=True)
class Cost:
    """Of one import in a fresh interpreter; the memory includes the interpreter's own."""

    seconds: float
    mebibytes: float


def pythons(folder: Path) -> dict[str, Path]:
    """An interpreter for each side; ours gets what is in the tree now."""
    with tempfile.TemporaryDirectory() as built:
        ours = base_install.installed(folder / "covey", base_install.wheel(Path(built)))
    return {"covey": ours, "flower": environments.programs("flower", folder) / "python"}


def told(python: Path, code: str, modules: tuple[str, ...]) -> str:
    # Isolated: it must find its own packages, not those of this folder.
    command = [str(python), "-I", "-c", code, *modules]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def warm_up(python: Path, modules: tuple[str, ...]) -> None:
    """Compile, and read every library into the disk cache anew.

    A library that was just installed is cached in larger pieces, of which a process maps more than it touches:
    the same NumPy would then seem to take 6 MiB more in a new environment than in an old one.
    """
    for library in told(python, MAPPED, modules).split():
        with Path(library).open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while file.read(1 << 20):
                pass


def measure(python: Path, modules: tuple[str, ...]) -> Cost:
    return Cost(**json.loads(told(python, MEASURE, modules)))


def summary(passes: list[dict[str, Cost]]) -> list[dict[str, object]]:
    """One row for each import: medians, and medians of the ratios within a pass."""
    return [
        {
            "import": name,
            "seconds": statistics.median(one[name].seconds for one in passes),
            "mebibytes": statistics.median(one[name].mebibytes for one in passes),
            "share_of_time": statistics.median(one[name].seconds / one[AGAINST].seconds for one in passes),
            "share_of_memory": statistics.median(one[name].mebibytes / one[AGAINST].mebibytes for one in passes),
        }
        for name in IMPORTS
    ]


def show(rows: list[dict[str, object]], passes: int) -> None:
    print(f"{passes} passes, {os.cpu_count()} cores")
    print(f"wanted of device_sdk: {WANTED_TIME:.0%} of the time, {WANTED_MEMORY:.0%} of the memory")
    print(f"{'':20}{'ms':>8}{'MiB':>8}{f'of {AGAINST}: time':>16}{'memory':>9}")
    for row in rows:
        print(
            f"{row['import']:20}{row['seconds'] * 1000:8.0f}{row['mebibytes']:8.1f}"  # type: ignore[operator]
            f"{row['share_of_time']:16.0%}{row['share_of_memory']:9.0%}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.imports.side_by_side", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--passes", type=int, default=7, help="how often each import is measured")
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")
    parser.add_argument("--environments", type=Path, default=environments.default_folder(), help="where they live")
    options = parser.parse_args()
    python = pythons(options.environments)
    passes: list[dict[str, Cost]] = []
    for side, modules in IMPORTS.values():
        warm_up(python[side], modules)
    for number in range(options.passes):
        passes.append({name: measure(python[side], modules) for name, (side, modules) in IMPORTS.items()})
        print(f"pass {number + 1} of {options.passes}", file=sys.stderr)
    rows = summary(passes)
    if options.json:
        raw = [{name: asdict(cost) for name, cost in one.items()} for one in passes]
        print(json.dumps({"imports": rows, "passes": raw}, indent=2))
    else:
        show(rows, options.passes)


if __name__ == "__main__":
    main()
