"""All data checks over one source, in one pass and bounded memory.

    episode, episode, ...  -->  every check sees each  -->  close: facts and findings
                                 |
                                 `-- a fault of the reader becomes D001, and reading goes on where
                                     the reader can
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_nav.episodes.checks.actions import ActionCheck
from vla_nav.episodes.checks.findings import Finding, Tally
from vla_nav.episodes.checks.frames import FrameCheck
from vla_nav.episodes.checks.geometry import GeometryCheck
from vla_nav.episodes.checks.identity import IdentityCheck
from vla_nav.episodes.checks.motion import MotionCheck
from vla_nav.episodes.checks.poses import PoseCheck
from vla_nav.episodes.checks.release import ReleaseCheck
from vla_nav.episodes.checks.scenes import SceneCheck
from vla_nav.episodes.checks.tracks import track_of
from vla_nav.episodes.source import EpisodeSource
from vla_nav.episodes.types import Episode
from vla_nav.errors import UserError

_MAX_FAULTS = 10_000  # of a reader that goes on after each of them


@dataclass(frozen=True)
class DataReport:
    """What was found. facts: numbers of the set (episodes, inferred turn angle, prior, ...)."""

    path: str
    split: str
    format: str
    facts: dict[str, Any]
    findings: tuple[Finding, ...]

    @property
    def num_errors(self) -> int:
        """Findings of severity error; the exit code is 1 where there are any."""
        return sum(finding.severity == "error" for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "path": self.path,
            "split": self.split,
            "format": self.format,
            "facts": self.facts,
            "findings": [finding.as_json() for finding in self.findings],
        }


def check_source(
    source: EpisodeSource,
    *,
    compare: Sequence[EpisodeSource] = (),
    scenes: str | Path | None = None,
    watch: Callable[[Episode, Tally], None] | None = None,
) -> DataReport:
    """Every check on every episode of `source`.

    compare: other splits, looked through for the same episodes and scenes. scenes: folder of the
    scene files. watch: called with every episode, for checks that need more than data has.
    """
    tally = Tally(str(source.root))
    identity = IdentityCheck(tally, source.split)
    actions, motion = ActionCheck(tally), MotionCheck(tally, source.facts)
    checks = [
        PoseCheck(tally),
        GeometryCheck(tally),
        FrameCheck(tally, source),
        SceneCheck(tally, None if scenes is None else Path(scenes)),
        ReleaseCheck(tally, source.split),
        identity,
    ]
    count = 0
    for episode in _readable(source, tally):
        tally.next_episode()
        count += 1
        track = track_of(episode)
        actions.see(episode, track)
        if track is not None:
            motion.see(episode, track)
        for check in checks:
            check.see(episode)
        if watch is not None:
            watch(episode, tally)
    facts: dict[str, Any] = {"episodes": count}
    if count == 0:
        tally.add_whole("D002", "episodes", "none")
    for check in (*checks, actions, motion):
        facts |= check.close()
    for other in compare:
        identity.compare(other.split, _readable(other, tally))
    stated = {"stated_turn_deg": source.facts.turn_deg, "stated_step_m": source.facts.step_m}
    notes = {"notes": list(source.facts.notes)} if source.facts.notes else {}
    return DataReport(
        str(source.root),
        source.split,
        source.facts.format,
        facts | stated | notes,
        tally.findings(),
    )


def _readable(source: EpisodeSource, tally: Tally) -> Iterator[Episode]:
    """The episodes that can be read; a fault is counted, and reading goes on if it can."""
    episodes = iter(source)
    num_faults = num_after = 0
    while True:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # releases have a code of their own
                episode = next(episodes)
        except StopIteration:
            break
        except UserError as error:
            num_faults += 1
            num_after = 0
            tally.add_whole("D001", "", str(error))
            if num_faults >= _MAX_FAULTS:
                break
        else:
            num_after += 1
            yield episode
    if num_faults and not num_after:
        tally.add_whole("D003", "", f"'{source.split}' was read up to the fault")
