"""A simulator in its own process: length-prefixed msgpack over standard input and output.

    frame    :=  length (4 bytes, little endian)  msgpack bytes
    start    :   worker -> {"protocol": 1, "backend": "mesh", "python": "3.11.9", "version": ...}
    request  :   {"method": "run", "arguments": {...}}            one at a time, in order
    reply    :   {"value": ...}  or  {"error": {"kind": "UserError", "text": ..., "trace": ...}}
    array    :   {"__array__": "<f8", "shape": [n, 3], "data": raw bytes}

No port is opened and nothing is unpickled. The process ends when its input closes, so it never
outlives the program that started it. What backends print goes to standard error.

This file is started by its path, by any interpreter that has numpy, msgpack and the backend
(Python 3.9 and newer); it imports nothing else:

    python vla_nav/simulators/worker.py mesh
"""

from __future__ import annotations

import os
import struct
import sys

if __name__ == "__main__":
    # Started by path, Python searches this folder first; its files are not top-level modules.
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import platform
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

import msgpack
import numpy as np

PROTOCOL_VERSION = 1
MAX_FRAME_BYTES = 1 << 30
_LENGTH = struct.Struct("<I")


def write_frame(stream: BinaryIO, value: Any) -> None:
    """Send one value; arrays travel as raw bytes with dtype and shape."""
    data = msgpack.packb(value, default=_pack_array, use_bin_type=True)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def read_frame(read: Callable[[int], bytes]) -> Any:
    """Receive one value through `read(n)`, which gives exactly n bytes; EOFError at the end."""
    (length,) = _LENGTH.unpack(read(_LENGTH.size))
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {length} bytes, at most {MAX_FRAME_BYTES} are allowed")
    return msgpack.unpackb(read(length), object_hook=_unpack_array, raw=False)


def serve(host: Any, reader: BinaryIO, writer: BinaryIO, *, backend: str) -> None:
    """Answer requests on `host` until the input ends. A method's exception becomes a reply."""

    def read(count: int) -> bytes:
        data = reader.read(count)
        if len(data) < count:
            raise EOFError
        return data

    write_frame(
        writer,
        {
            "protocol": PROTOCOL_VERSION,
            "backend": backend,
            "python": platform.python_version(),
            "version": getattr(host, "version", ""),
            "max_scenes": getattr(host, "max_scenes", 1),
        },
    )
    while True:
        try:
            request = read_frame(read)
        except EOFError:
            return
        write_frame(writer, answer(host, request))


def answer(host: Any, request: dict[str, Any]) -> dict[str, Any]:
    """The reply to one request; only names in `host.METHODS` can be called."""
    try:
        if request["method"] not in host.METHODS:
            raise ValueError(f"unknown method {request['method']!r}")
        return {"value": getattr(host, request["method"])(**request["arguments"])}
    except Exception as error:  # noqa: BLE001 - it is the caller's to judge, and is sent there
        trace = traceback.format_exc(limit=20)
        return {"error": {"kind": type(error).__name__, "text": str(error), "trace": trace}}


def make_host(backend: str) -> Any:
    """The host of a backend by name; imported here so that a worker loads only its own."""
    if backend == "mesh":
        from vla_nav.simulators.host import Host
        from vla_nav.simulators.mesh import MeshSimulator

        return Host(MeshSimulator, max_simulators=6)
    if backend == "habitat":
        from vla_nav.simulators.host import Host

        try:
            from vla_nav.simulators.habitat import HabitatSimulator
            from vla_nav.simulators.habitat_library import library_version
        except ImportError as error:
            reason = " ".join(str(error).split())
            raise SystemExit(f"{sys.executable} cannot import habitat-sim: {reason}") from None

        return Host(HabitatSimulator, max_simulators=1, version=library_version())
    raise ValueError(f"unknown simulator backend {backend!r}; allowed: mesh, habitat")


def main() -> int:
    """Serve the backend named on the command line over this process's own pipes."""
    backend = sys.argv[1]
    # Keep the pipe for frames alone: anything that prints to descriptor 1 lands on stderr.
    writer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        serve(make_host(backend), sys.stdin.buffer, writer, backend=backend)
    except (BrokenPipeError, KeyboardInterrupt):
        return 0
    return 0


def _pack_array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {
            "__array__": value.dtype.str,
            "shape": list(value.shape),
            "data": np.ascontiguousarray(value).tobytes(),
        }
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be sent to or from a simulator worker")


def _unpack_array(value: dict[str, Any]) -> Any:
    dtype: str | None = value.get("__array__")
    if dtype is None:
        return value
    return np.frombuffer(value["data"], dtype=np.dtype(dtype)).reshape(value["shape"])


if __name__ == "__main__":
    sys.exit(main())
