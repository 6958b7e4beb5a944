"""How much memory a process may still take: of a GPU, or of the machine and its container.

GPU    what the driver says is free
CPU    the least of MemAvailable (Linux) and what the container's control group leaves:
       limit - (use - file pages, which the kernel gives back when they are wanted)
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import torch

_MEMINFO = Path("/proc/meminfo")
_UNKNOWN = 2.0**62  # where nobody tells


class ControlGroup(NamedTuple):
    """Files of a control group: limit and use in bytes; counters, of which `pages` are names."""

    limit: Path
    use: Path
    counters: Path
    pages: tuple[str, ...]


_V2, _V1 = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")
GROUPS = (
    ControlGroup(
        _V2 / "memory.max",
        _V2 / "memory.current",
        _V2 / "memory.stat",
        ("inactive_file", "active_file"),
    ),
    ControlGroup(
        _V1 / "memory.limit_in_bytes",
        _V1 / "memory.usage_in_bytes",
        _V1 / "memory.stat",
        ("total_inactive_file", "total_active_file"),
    ),
)


def free_bytes(device: torch.device | str) -> int:
    """Bytes that this process may still take on `device`."""
    device = torch.device(device)
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(min(_available(), *map(left_bytes, GROUPS)))


def left_bytes(group: ControlGroup) -> float:
    """What a control group leaves; infinite where there is none or it has no limit."""
    try:
        limit, use, counters = (path.read_text(encoding="ascii") for path in group[:3])
    except OSError:
        return math.inf
    if limit.strip() == "max":
        return math.inf
    found = dict(line.split() for line in counters.splitlines())
    pages = sum(int(found.get(name, 0)) for name in group.pages)
    return max(0.0, float(limit) - float(use) + pages)


def _available() -> float:
    if not _MEMINFO.exists():
        return _UNKNOWN
    lines = _MEMINFO.read_text(encoding="ascii").splitlines()
    found = dict(line.split(":", 1) for line in lines)
    return float(found["MemAvailable"].split()[0]) * 1024
