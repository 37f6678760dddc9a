"""Coverage-guided fuzzing of everything that reads foreign bytes: `python -m tests.device_sdk.wire.fuzz_codec`.

Needs atheris, which is not among our dependencies. Takes libFuzzer's options, e.g. `-max_total_time=600`; begins
with the golden vectors. Whatever is not a message or a typed error is a crash.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["device_sdk.wire"]):
    from device_sdk.wire import codec
    from device_sdk.wire.errors import WireError
    from device_sdk.wire.invitation import Invitation
    from device_sdk.wire.tensors import read_model
    from tests.device_sdk.wire import examples, golden

READERS: list[Callable[[bytes], Any]] = [
    codec.decode_from_device,
    codec.decode_from_server,
    codec.decode_upload,
    codec.decode_upload_reply,
    codec.decode_chunk,
    codec.decode_delivery,
    *(partial(codec.decode, type(message)) for message in examples.ALONE.values()),
    lambda body: read_model(body, examples.MODEL.tensors),
    lambda body: Invitation.from_text(body.decode("latin1")),
]


def one_input(data: bytes) -> None:
    """The first byte chooses the reader."""
    if data:
        with contextlib.suppress(WireError):
            READERS[data[0] % len(READERS)](data[1:])


def main() -> None:
    with tempfile.TemporaryDirectory() as seeds:
        for number, vector in enumerate(golden.VECTORS.iterdir()):
            body = golden.bytes_of(vector.read_text(encoding="utf-8"))
            for reader in range(len(READERS)):
                (Path(seeds) / f"{number}-{reader}").write_bytes(bytes([reader]) + body)
        atheris.Setup([*sys.argv, seeds], one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
