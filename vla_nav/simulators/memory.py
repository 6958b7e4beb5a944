"""Resident memory of a process, from /proc: what a simulator worker is recycled by.

    statm :=  size resident shared text lib data dt      in pages

Scenes that are loaded and dropped, renderers and drivers leave memory behind that only the end of
the process gives back.
"""

from __future__ import annotations

import os
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_mib(pid: int) -> float:
    """Resident memory of a process in MiB; 0 for one that has ended."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_bytes().split()[1]
    except (OSError, IndexError):
        return 0.0
    return int(pages) * _PAGE_BYTES / 2**20
