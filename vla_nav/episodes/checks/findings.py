"""What a data check reports: a code with a fixed meaning, how many episodes, the first of them.

    D101  error  12 episodes  start rotations are not unit quaternions
                              train.json.gz: episode 7: start_rotation: norm 0.83
                              remedy: divide by the norm, or export the data again

A code never changes its meaning; `catalogue.py` lists all of them. Errors make a data set unfit
(wrong labels, wrong frames, wrong scores), warnings need a look, infos are facts to know.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from vla_nav.episodes.checks.catalogue import CODES
from vla_nav.episodes.types import Episode

SEVERITIES = ("error", "warning", "info")
MAX_EXAMPLES = 5
_SHOWN_CHARACTERS, _READ_CHARACTERS = 300, 2000


class Example(NamedTuple):
    """Where a finding was seen; episode "" where it concerns the whole set."""

    file: str
    episode: str
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One code and what it was found on. count: episodes (1 where it concerns the whole set)."""

    code: str
    severity: str
    count: int
    examples: tuple[Example, ...]
    remedy: str
    meaning: str

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"examples": [example._asdict() for example in self.examples]}


class Tally:
    """Counts episodes per code and keeps the first examples of each: bounded memory."""

    def __init__(self, file: str) -> None:
        """file: what examples name unless they know better."""
        self._file = file
        self._counts: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._examples: dict[str, list[Example]] = {}
        self._number = -1

    def next_episode(self) -> None:
        """From now on another episode is looked at."""
        self._number += 1

    def add(self, code: str, episode: Episode, key: str, value: object, *, file: str = "") -> None:
        """`episode` has `code` at `key`. An episode counts once per code."""
        if self._last.get(code) != self._number:
            self._last[code] = self._number
            self._counts[code] = self._counts.get(code, 0) + 1
            role = f" ({episode.role})" if episode.role else ""
            self._keep(code, Example(file or self._file, episode.episode_id + role, key, value))

    def add_unread(
        self, code: str, episode_id: str, key: str, message: str, *, file: str = ""
    ) -> None:
        """An episode that a reader refused, or that was not read, has `code`."""
        self._counts[code] = self._counts.get(code, 0) + 1
        self._keep(code, Example(file or self._file, episode_id, key, message))

    def add_whole(
        self, code: str, key: str, value: object, *, count: int = 1, file: str = ""
    ) -> None:
        """The set has `code`, which concerns `count` episodes."""
        self._counts[code] = self._counts.get(code, 0) + count
        self._keep(code, Example(file or self._file, "", key, value))

    def findings(self) -> tuple[Finding, ...]:
        """Errors first, then by code."""
        found = [
            Finding(
                code,
                CODES[code].severity,
                count,
                tuple(self._examples[code]),
                CODES[code].remedy,
                CODES[code].meaning,
            )
            for code, count in self._counts.items()
        ]
        return tuple(sorted(found, key=lambda f: (SEVERITIES.index(f.severity), f.code)))

    def _keep(self, code: str, example: Example) -> None:
        assert code in CODES, code
        kept = self._examples.setdefault(code, [])
        if len(kept) < MAX_EXAMPLES:
            kept.append(Example(*map(_shown, example)))


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    text = " ".join(text[:_READ_CHARACTERS].split())  # one line, whatever the data holds
    text = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
