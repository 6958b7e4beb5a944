"""InternData-N1 trajectories: a LeRobot v2.1 set for each scene, pictures beside its schema.

    <root>/[.../]<scene>/meta/{info.json, episodes.jsonl}
    <root>/[.../]<scene>/data/chunk-000/episode_000000.parquet
    <root>/[.../]<scene>/videos/chunk-000/observation.images.rgb.125cm_0deg/episode_000000_0.jpg

Two of its parts have poses:

    part     action                       pose                              camera axes, depth
    vln_ce   -1, a0, a1, ... (arrived by) pose.<height>cm_<pitch>deg, 4x4   opencv, millimetres
    vln_n1   4x4 camera to world          the action itself                 opengl, 0.1 millimetres

Body axes are +x right, +y forward, +z up. A training name such as `r2r_125cm_0_30` is two of the
cameras: 125cm_0deg to see, 125cm_30deg to point; all cameras are read here. What `goal.*` (pixels)
and `relative_goal_frame_id.*` were made from is not public: both stay in `metadata`.

Source: InternRobotics/InternNav at 7a5c624, internnav/dataset/internvla_n1_lerobot_dataset.py
(files, `<INSTRUCTION_SEP>`, the shift of actions, camera axes and pitch), navdp_lerobot_dataset.py
(vln_n1: extrinsics, depth / 10000); InternNav issues 167 (lengths twice the frames), 169 and 223
(p_world = T p_camera, axes), 284 and 351 (field of view, goals: unanswered).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from vla_nav.episodes.annotations import ResumedEpisodes
from vla_nav.episodes.interndata_rows import InternRows
from vla_nav.episodes.lerobot_frames import LeRobotFrames
from vla_nav.episodes.lerobot_meta_files import INFO, read_info
from vla_nav.episodes.lerobot_v2 import EPISODES, episode_lines, has_interndata_columns, is_v2
from vla_nav.episodes.source import EpisodeError, SourceFacts
from vla_nav.episodes.types import Episode, FrameSource
from vla_nav.errors import UserError

_DEPTH_FOLDERS = 4  # how deep below the root a scene's set may lie
_VISITED = 400  # folders that detection looks into
_TENTHS = re.compile(r"(?:^|/)observation\.images\.depth/[^/]+$")


def detect(path: Path, split: str) -> bool:
    """Whether the first LeRobot set in or below `path` has InternData-N1's columns."""
    path = Path(path)
    root = path / split if (path / split).is_dir() else path
    for found in islice(_sets(root, _DEPTH_FOLDERS), _VISITED):
        if found is not None:
            return is_v2(found) and has_interndata_columns(read_info(found))
    return False


def open_source(path: Path, *, split: str, role: str = "") -> InternDataSource:
    """The scenes below `path`, or below `path/<split>`; `UserError` where there are none."""
    path = Path(path)
    root = path / split if (path / split).is_dir() else path
    first = next((found for found in _sets(root, _DEPTH_FOLDERS) if found is not None), None)
    if first is None:
        packed = next(root.glob("**/*.tar.gz"), None) if root.is_dir() else None
        remedy = f"unpack {packed.name} and the others there" if packed else "correct data.path"
        raise UserError(f"{root}: no InternData-N1 scene (no {INFO} below it); {remedy}")
    info = read_info(first)
    if not has_interndata_columns(info):
        raise UserError(
            f"{info.path}: has neither pose.* columns (vln_ce) nor 4x4 actions with extrinsics "
            "(vln_n1); name another format as data.format"
        )
    if info.splits and split not in info.splits and root == path:
        raise UserError(
            f"{info.path}: has no split '{split}'; allowed as data.split: "
            f"{', '.join(sorted(info.splits))}"
        )
    return InternDataSource(root, split, role, has_pictures=(first / "videos").is_dir())


class InternDataSource:
    """Episodes of all scenes below `root`, scene by scene; one for each instruction."""

    def __init__(self, root: Path, split: str, role: str, *, has_pictures: bool) -> None:
        self.root, self.split, self._role = root, split, role
        self._frames = InternFrames(root) if has_pictures else None
        self.facts = SourceFacts(
            format="interndata_n1",
            notes=(
                "Turn, step, field of view and body are not stated.",
                "The ranges of `splits` in info.json are not used: published ones are wrong.",
                "goal.* and relative_goal_frame_id.* are kept in metadata: how they were made is "
                "not public.",
            ),
        )

    def __iter__(self) -> Iterator[Episode]:
        return ResumedEpisodes(self._found())

    @property
    def frames(self) -> FrameSource | None:
        return self._frames

    def _found(self) -> Iterator[Episode | EpisodeError]:
        for folder in _sets(self.root, _DEPTH_FOLDERS):
            if folder is not None:
                yield from self._scene(folder)

    def _scene(self, folder: Path) -> Iterator[Episode | EpisodeError]:
        info = read_info(folder)
        scene = folder.relative_to(self.root).as_posix()
        rows = InternRows(info, self.root)
        for line in episode_lines(folder / EPISODES, 0, None):
            index = line["episode_index"]
            name = str(index) if scene == "." else f"{scene}/{index}"
            try:
                yield from rows.episodes(line, name, split=self.split, role=self._role)
            except UserError as error:
                yield EpisodeError(str(error), name)


class InternFrames(LeRobotFrames):
    """Pictures; depth of vln_n1 is in tenths of a millimetre."""

    def read(self, frame_key: str) -> np.ndarray:
        pixels = super().read(frame_key)
        if pixels.ndim == 2 and _TENTHS.search(frame_key):
            return pixels * np.float32(0.1)
        return pixels


def _sets(folder: Path, depth: int) -> Iterator[Path | None]:
    """Folders with `meta/info.json` in and below `folder`, in order of their names; None for
    every folder without one that was looked into."""
    if (folder / INFO).is_file():
        yield folder
        return
    yield None
    if depth == 0:
        return
    try:
        with os.scandir(folder) as entries:
            names = sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))
    except OSError:
        return
    for name in names:
        yield from _sets(folder / name, depth - 1)
