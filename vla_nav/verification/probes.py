"""A probe of the installation: one line of what `vla-nav doctor` prints. Codes keep their meaning.

I1 Python and packages | I2 torch | I3 attention | I4 simulator | I5 EGL | I6 disk, memory
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Probe:
    """One line of the report; severity is ok, info, warning or error; remedy "" if none is due."""

    code: str
    name: str
    severity: str
    found: str
    remedy: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def one_line(error: Exception | str) -> str:
    """An error's text on one line, of bounded length."""
    return " ".join(str(error).split())[:500]
