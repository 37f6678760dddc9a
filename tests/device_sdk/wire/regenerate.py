"""Writes `device_sdk/wire/_generated` anew from federation.proto: `python -m tests.device_sdk.wire.regenerate`.

What is kept is the schema in protobuf's own form and no generated classes: those would refuse every protobuf
older than the compiler, and a device lives with the version that its app has pinned.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

WIRE = Path(__file__).parents[3] / "device_sdk/wire"
GENERATED = WIRE / "_generated/federation_descriptor.py"
_LINE_BYTES = 28


def compiled_descriptor() -> bytes:
    """federation.proto as a serialised FileDescriptorProto, made by protoc."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "set"
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{WIRE}", f"--descriptor_set_out={out}"]
        subprocess.run([*command, "federation.proto"], check=True)
        (file,) = FileDescriptorSet.FromString(out.read_bytes()).file
    return file.SerializeToString(deterministic=True)


def module_text(descriptor: bytes) -> str:
    """The Python module that holds a descriptor."""
    lines = [descriptor[start : start + _LINE_BYTES] for start in range(0, len(descriptor), _LINE_BYTES)]
    return "\n".join(
        [
            '"""federation.proto in protobuf\'s own form; written by tests/device_sdk/wire/regenerate.py."""',
            "",
            "SERIALIZED = bytes.fromhex(",
            *(f'    "{line.hex()}"' for line in lines),
            ")",
            "",
        ]
    )


if __name__ == "__main__":
    GENERATED.write_text(module_text(compiled_descriptor()), encoding="utf-8")
