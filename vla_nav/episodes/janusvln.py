"""JanusVLN's pictures: a folder an episode, a PNG a step, the action taken there in its name.

    trajectory_data/R2R/train/7/step_0000_TURN_RIGHT.png     (or R2R-CE-640x480/images/7/...)
                                step_0001_MOVE_FORWARD.png
                                step_0002_STOP.png
    datasets/r2r/train/train.json.gz                         instructions, starts, goals: VLN-CE

Facts from MIV-XJTU/JanusVLN at 266ee05 and 1c8ded1: create_data/create_data.py (names; the action
is the last one or two words, in any case; instructions stripped; an episode without pictures is
left out), README.md (folders). Its ScaleVLN and DAgger parts are StreamVLN's format.

The turn angle is not stated, and nothing in the files tells it (sets of 15 and of 30 degrees are
about). Poses are dead-reckoned from the start of the episode file with `ASSUMED_TURN_DEG`, and say
so in `metadata["assumed_turn_deg"]`.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vla_nav.episodes.annotations import ResumedEpisodes
from vla_nav.episodes.frame_folders import FolderFrames, is_name, numbered_pictures
from vla_nav.episodes.source import EpisodeError, SourceFacts
from vla_nav.episodes.types import PRIMITIVE_NAMES, Episode
from vla_nav.episodes.vlnce import episodes_of
from vla_nav.episodes.walked import ORIGIN, Walked, walked_steps
from vla_nav.errors import UserError

ASSUMED_TURN_DEG, STEP_M = 15.0, 0.25
_NAME = re.compile(r"step_([0-9]{1,9})_([A-Za-z_]{1,40})\.(?:png|jpg|jpeg)", re.IGNORECASE)
_IDS = {name: number for number, name in enumerate(PRIMITIVE_NAMES)}
_NUM_LOOKED_AT = 20  # entries of a folder, when a format is detected


def detect(path: Path, split: str) -> bool:
    """Whether there are episode folders of pictures named after steps and actions."""
    return _pictures_folder(Path(path), split) is not None


def open_source(path: str | Path, *, split: str, role: str = "") -> JanusVlnSource:
    """The episodes with pictures in `path/<split>`, `path/images/<split>`, `path/images`, `path`.

    The episode file is looked for beside them, and as datasets/{r2r,rxr}/<split>/<split>.json.gz
    in the folders above. Without one, episodes have no instruction and start at the origin.
    """
    root = Path(path)
    folder = _pictures_folder(root, split)
    if folder is None:
        raise UserError(
            f"{root}: no <episode>/step_0000_<ACTION>.png here, nor below {split} or images; "
            "correct data.path"
        )
    file = _episode_file(root, split, role)
    facts = SourceFacts(
        format="janusvln",
        step_m=STEP_M,
        expert="follower of VLN-CE",
        is_pose_measured=False,
        notes=(
            f"The turn angle is not stated; poses assume {ASSUMED_TURN_DEG:g} degrees.",
            f"Instructions and starts are those of {file}."
            if file
            else "No episode file was found: no instructions, every start at the origin.",
        ),
    )
    return JanusVlnSource(root, split, role, facts, folder, file)


@dataclass(frozen=True)
class JanusVlnSource:
    """Episodes with one step a picture. folder: of the pictures; file: of the episodes, if any."""

    root: Path
    split: str
    role: str
    facts: SourceFacts
    folder: Path
    file: Path | None

    @property
    def frames(self) -> FolderFrames:
        """The pictures below `root`."""
        return FolderFrames(self.root)

    def __iter__(self) -> Iterator[Episode]:
        return ResumedEpisodes(self._from_folders() if self.file is None else self._from_file())

    def _from_file(self) -> Iterator[Episode | EpisodeError]:
        num_episodes = num_with = 0
        for episode in episodes_of(
            self.file, dataset="janusvln", split=self.split, role=self.role, default_radius_m=3.0
        ):
            num_episodes += 1
            if isinstance(episode, EpisodeError):
                yield episode
            elif is_name(episode.episode_id) and (self.folder / episode.episode_id).is_dir():
                num_with += 1
                yield self._walked(replace(episode, instruction=episode.instruction.strip()))
        num_folders = sum(1 for _ in _folders(self.folder))
        if num_with < max(num_episodes, num_folders):
            warnings.warn(
                f"{self.folder}: {num_with} episodes have pictures and an entry in {self.file}; "
                f"left out: {num_episodes - num_with} entries without pictures, "
                f"{num_folders - num_with} folders without an entry",
                stacklevel=2,
            )

    def _from_folders(self) -> Iterator[Episode | EpisodeError]:
        names = sorted(_folders(self.folder), key=lambda n: (not n.isdigit(), len(n), n))
        for name in names:
            yield self._walked(
                Episode(
                    dataset="janusvln",
                    split=self.split,
                    role=self.role,
                    episode_id=name,
                    scene_id="",
                    instruction="",
                    start_pose=ORIGIN,
                    goals=(),
                    reference_path=np.zeros((0, 3)),
                    embodiment=None,
                )
            )

    def _walked(self, episode: Episode) -> Episode | EpisodeError:
        folder = self.folder / episode.episode_id
        try:
            actions = _actions(folder)
        except UserError as error:
            return EpisodeError(str(error), episode.episode_id, "step")
        relative = folder.relative_to(self.root).as_posix()
        decisions = [
            Walked({"front": f"{relative}/{name}"}, (action,), (action,))
            for name, action in actions.items()
        ]
        about = {"poses": "dead_reckoned", "assumed_turn_deg": ASSUMED_TURN_DEG}
        start = episode.start_pose
        return replace(
            episode,
            steps=walked_steps(start, decisions, turn_deg=ASSUMED_TURN_DEG, step_m=STEP_M),
            metadata={**episode.metadata, **about},
        )


def _actions(folder: Path) -> dict[str, int]:
    """Picture name -> action, in order. Raises `UserError` for a missing step or unknown action."""
    found: dict[str, int] = {}
    for at, (number, name) in enumerate(numbered_pictures(folder).items()):
        if number != at:
            raise UserError(f"{folder}: step {at} is missing, its action is unknown; copy it again")
        match = _NAME.fullmatch(name)
        action = _IDS.get(match[2].upper()) if match else None
        if action is None:
            raise UserError(
                f"{folder}: picture '{name[:80]}'; allowed: step_<number>_<ACTION>.png with one of "
                f"{', '.join(PRIMITIVE_NAMES)}"
            )
        found[name] = action
    if not found:
        raise UserError(f"{folder}: no picture step_0000_<ACTION>.png; copy the folder again")
    return found


def _pictures_folder(path: Path, split: str) -> Path | None:
    for folder in (path / split, path / "images" / split, path / "images", path):
        for name, _ in zip(_folders(folder), range(_NUM_LOOKED_AT), strict=False):
            if _has_steps(folder / name):
                return folder
    return None


def _has_steps(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            looked_at = [e.name for e, _ in zip(entries, range(_NUM_LOOKED_AT), strict=False)]
    except OSError:
        return False
    return any(_NAME.fullmatch(name) for name in looked_at)


def _folders(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir():
                    yield entry.name
    except OSError:
        return


def _episode_file(root: Path, split: str, role: str) -> Path | None:
    kinds = [kind for kind in ("r2r", "rxr") if kind in root.name.lower()] or ["r2r", "rxr"]
    stems = (split, f"{split}_{role or 'guide'}")
    places = [root / split, root]
    for above in (root, *root.absolute().parents[:4]):
        places += [above / "datasets" / kind / split for kind in kinds]
    for place in places:
        for stem in stems:
            for suffix in (".json.gz", ".json", ".json.zst"):
                file = place / f"{stem}{suffix}"
                if os.path.lexists(file):  # a pipe or folder is refused when it is opened
                    return file
    return None
