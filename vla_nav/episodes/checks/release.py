"""Which release of R2R-CE a set is: D701, D702, and a fact for the report.

R2R-CE has Matterport scenes, numbered episodes with a trajectory_id, and goals of radius 3 m. In
v1-3 every start heading is a multiple of 30 degrees; in v1 and v1-2 they are arbitrary, and wrong.
"""

from __future__ import annotations

import math
from typing import Any

from vla_nav.episodes.checks.findings import Tally
from vla_nav.episodes.r2r_release import BEFORE_V1_3, OTHER, PUBLISHED, V1_3
from vla_nav.episodes.types import Episode

_TOLERANCE_DEG = 0.1
_MIN_OFF = 0.5  # of the headings: arbitrary ones are multiples of 30 once in 150


class ReleaseCheck:
    """Start headings and sizes of what looks like R2R-CE."""

    def __init__(self, tally: Tally, split: str) -> None:
        self._tally, self._split = tally, split
        self._num_episodes = self._num_off = self._num_foreign = 0
        self._scenes: set[str] = set()
        self._first_off: tuple[str, float] | None = None

    def see(self, episode: Episode) -> None:
        """Look at one episode."""
        self._num_episodes += 1
        if not _is_r2r(episode):
            self._num_foreign += 1
            return
        self._scenes.add(episode.scene_id)
        yaw = math.degrees(episode.start_pose.yaw_rad)
        if math.isfinite(yaw) and abs(math.remainder(yaw, 30)) > _TOLERANCE_DEG:
            self._num_off += 1
            self._first_off = self._first_off or (episode.episode_id, yaw)

    def close(self) -> dict[str, Any]:
        """Findings over all episodes; facts for the report."""
        if self._num_foreign or not self._num_episodes:
            return {}
        if self._num_off > _MIN_OFF * self._num_episodes:
            assert self._first_off is not None
            text = f"episode {self._first_off[0]} starts at {self._first_off[1]:.2f} degrees"
            self._tally.add_whole("D701", "start_rotation", text, count=self._num_off)
            return {"release": BEFORE_V1_3}
        published = PUBLISHED.get(self._split)
        own = self._num_episodes, len(self._scenes)
        if published is not None and published != own:
            text = "{} episodes in {} scenes, v1-3 has {} in {}".format(*own, *published)
            self._tally.add_whole("D702", "episodes", text)
        return {"release": V1_3 if self._num_off == 0 else OTHER}


def _is_r2r(episode: Episode) -> bool:
    """Matterport scene, numbered, with a trajectory and text; no role, no language, no steps."""
    about = episode.metadata.get("instruction")
    return (
        episode.scene_id.startswith("mp3d/")
        and episode.episode_id.isdigit()
        and "trajectory_id" in episode.metadata
        and bool(episode.instruction)
        and not (isinstance(about, dict) and "language" in about)
        and not episode.role
        and not episode.steps
    )
