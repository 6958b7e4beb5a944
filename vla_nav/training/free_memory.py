"""How much memory a process may still take: of a GPU, or of the machine and its container.

GPU    what the driver says is free
CPU    the least of MemAvailable (Linux) and what every control group above leaves
"""

from __future__ import annotations

import math
from pathlib import Path

import torch

_MEMINFO = Path("/proc/meminfo")
_GROUPS = (  # of the container: version 2 and version 1, limit and use
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)


def free_bytes(device: torch.device | str) -> int:
    """Bytes that this process may still take on `device`; very many where nobody tells."""
    device = torch.device(device)
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(min(_available(), *(_left(limit, used) for limit, used in _GROUPS)))


def _available() -> float:
    if not _MEMINFO.exists():
        return 2.0**62
    lines = _MEMINFO.read_text(encoding="ascii").splitlines()
    found = dict(line.split(":", 1) for line in lines)
    return float(found["MemAvailable"].split()[0]) * 1024


def _left(limit: Path, used: Path) -> float:
    """Of a control group; infinite where there is none or it has no limit."""
    try:
        text, taken = limit.read_text(encoding="ascii"), used.read_text(encoding="ascii")
    except OSError:
        return math.inf
    return math.inf if text.strip() == "max" else max(0.0, float(text) - float(taken))
