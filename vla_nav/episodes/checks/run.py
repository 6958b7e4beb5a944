"""All data checks over one source, in one pass and bounded memory.

episode, episode, ...  -->  every check sees each  -->  close: facts and findings
  |
  `-- what a reader refuses is counted under the code of its fault (D001 where it has none)
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from vla_nav.episodes.checks.actions import ActionCheck
from vla_nav.episodes.checks.faults import fault_code
from vla_nav.episodes.checks.findings import Finding, Tally
from vla_nav.episodes.checks.frames import FrameCheck
from vla_nav.episodes.checks.geometry import GeometryCheck
from vla_nav.episodes.checks.identity import IdentityCheck
from vla_nav.episodes.checks.motion import MotionCheck
from vla_nav.episodes.checks.poses import PoseCheck
from vla_nav.episodes.checks.release import ReleaseCheck
from vla_nav.episodes.checks.scenes import SceneCheck
from vla_nav.episodes.checks.tracks import track_of
from vla_nav.episodes.source import EpisodeError, EpisodeSource, episodes_and_errors
from vla_nav.episodes.types import Episode
from vla_nav.errors import UserError


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


class Watch(Protocol):
    """A check from a higher layer."""

    def see(self, episode: Episode) -> None:
        """Look at one episode."""
        ...

    def close(self, tally: Tally) -> dict[str, Any]:
        """Add findings; return facts for the report."""
        ...


def check_source(
    source: EpisodeSource,
    *,
    compare: Sequence[EpisodeSource] = (),
    scenes: str | Path | None = None,
    watch: Watch | None = None,
) -> DataReport:
    """Every check on every episode of `source`.

    compare: other splits, looked through for the same episodes and scenes. scenes: folder of the
    scene files. watch: sees every episode too, for checks that need more than data has.
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
            watch.see(episode)
    facts: dict[str, Any] = {"episodes": count}
    if count == 0:
        tally.add_whole("D002", "episodes", "none")
    for check in (*checks, actions, motion):
        facts |= check.close()
    if watch is not None:
        facts |= watch.close(tally)
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
    """The episodes that can be read; the others are counted under the code of their fault."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # releases have a code of their own
        episodes = episodes_and_errors(source)
        while True:
            try:
                episode = next(episodes, None)
            except UserError as error:
                tally.add_whole("D001", "", str(error))
                tally.add_whole("D003", "", f"'{source.split}' was read up to the fault")
                return
            if episode is None:
                return
            if isinstance(episode, EpisodeError):
                tally.next_episode()
                code = fault_code(episode.key, str(episode))
                tally.add_unread(code, episode.episode_id, episode.key, str(episode))
            else:
                yield episode
