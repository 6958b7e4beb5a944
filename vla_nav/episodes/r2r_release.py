"""Which release of R2R-CE a file looks like: facts that differ between releases, counted.

R2R-CE files have integer ids, Matterport scenes and a vocabulary. In v1-3 every start heading is a
multiple of 30 degrees (the panoramas' own headings); up to v1-2 headings are arbitrary and wrong.
Counts per split are those of v1-3 as published.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from vla_nav.episodes.types import Pose

V1_3, BEFORE_V1_3, OTHER = "r2r-ce v1-3", "r2r-ce before v1-3", "other"
PUBLISHED = {  # split: episodes, scenes
    "train": (10_819, 61),
    "val_seen": (778, 53),
    "val_unseen": (1_839, 11),
    "test": (3_408, 18),
}
HEADING_WARNING = (
    "start headings are not multiples of 30 degrees, so this looks like R2R-CE v1 or v1-2, whose "
    "headings are wrong; use v1-3"
)
_HEADING_TOLERANCE_DEG = 0.1
_NUM_EXAMPLES = 3


@dataclass(frozen=True)
class R2RRelease:
    """What a file looks like. name: `V1_3`, `BEFORE_V1_3` or `OTHER`.

    id_types: of `episode_id`, sorted ("int", "str"). num_off: start headings that are no multiple
    of 30 degrees; off_ids: the first of them.
    """

    name: str
    num_episodes: int
    num_scenes: int
    num_off: int
    off_ids: tuple[str, ...]
    id_types: tuple[str, ...]
    has_vocabulary: bool

    def differences(self, split: str) -> tuple[str, ...]:
        """How the file differs from the published v1-3 split of this name; () where equal or
        where no split has that name."""
        if split not in PUBLISHED:
            return ()
        found = {
            "episodes": (self.num_episodes, PUBLISHED[split][0]),
            "scenes": (self.num_scenes, PUBLISHED[split][1]),
            "start headings off 30 degrees": (self.num_off, 0),
            "types of episode_id": (", ".join(self.id_types), "int"),
        }
        return tuple(
            f"{what}: {got}, published {published}"
            for what, (got, published) in found.items()
            if got != published
        )


class ReleaseCount:
    """Counts raw episodes as they pass; memory does not grow with their number."""

    def __init__(self) -> None:
        self._num = self._num_off = 0
        self._off_ids: list[str] = []
        self._scenes: set[str] = set()
        self._id_types: set[str] = set()
        self._is_r2r = True

    def add(self, raw: Any) -> None:
        """Count one decoded episode; anything that R2R-CE does not have makes it `OTHER`."""
        self._num += 1
        try:
            episode_id, scene_id = raw["episode_id"], raw["scene_id"]
            self._id_types.add(type(episode_id).__name__)
            self._scenes.add(scene_id)
            x, y, z, w = raw["start_rotation"]
            yaw = math.degrees(Pose((0.0, 0.0, 0.0), (x, y, z, w)).yaw_rad)
            is_off = abs(math.remainder(yaw, 30)) > _HEADING_TOLERANCE_DEG
            self._is_r2r &= isinstance(episode_id, int) and scene_id.startswith("mp3d/")
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            self._is_r2r = False
            return
        if is_off:
            self._num_off += 1
            if len(self._off_ids) < _NUM_EXAMPLES:
                self._off_ids.append(str(episode_id))

    def release(self, *, has_vocabulary: bool) -> R2RRelease:
        """What was counted so far."""
        name = OTHER
        if self._is_r2r and has_vocabulary and self._num:
            name = BEFORE_V1_3 if self._num_off else V1_3
        return R2RRelease(
            name=name,
            num_episodes=self._num,
            num_scenes=len(self._scenes),
            num_off=self._num_off,
            off_ids=tuple(self._off_ids),
            id_types=tuple(sorted(self._id_types)),
            has_vocabulary=has_vocabulary,
        )
