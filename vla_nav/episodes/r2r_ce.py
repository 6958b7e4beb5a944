"""R2R-CE: instructions on Matterport trajectories, walked in continuous space.

    R2R_VLNCE_v1-3_preprocessed/<split>/<split>.json.gz      episodes and vocabulary
    R2R_VLNCE_v1-3_preprocessed/<split>/<split>_gt.json.gz   actions and locations, by id

Files of other projects in the same shape (integer or string ids, with or without vocabulary) are
read as well; of those, turn angle and body are not known. Which release a file looks like is
reported, see `r2r_release.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

from vla_nav.episodes.episode_files import (
    EpisodeFile,
    EpisodeFiles,
    kind_of,
    required_file,
    truth_of,
)
from vla_nav.episodes.r2r_release import BEFORE_V1_3, HEADING_WARNING, OTHER
from vla_nav.episodes.source import EpisodeError, SourceFacts
from vla_nav.episodes.types import Camera, Embodiment, Episode
from vla_nav.episodes.vlnce import episodes_of, read_shared

RADIUS_M = 3.0
BODY = Embodiment((Camera("front", 224, 224, 90.0, 1.25),), 0.1, 1.5, 15.0, 0.25, is_sliding=True)


def detect(path: Path, split: str) -> bool:
    """Whether the split's file has instructions that state no language."""
    return kind_of(path, split) == "instruction"


def open_source(path: Path, *, split: str, role: str = "") -> EpisodeFiles:
    """The split's episodes, joined with the ground truth beside them if it is there.

    Warns of a release whose start headings are wrong.
    """
    file = required_file(path, split, f"_{role}" if role else "")
    release = read_shared(file)[1]
    truth = truth_of(file)
    notes = [f"{release.num_episodes} episodes of {release.num_scenes} scenes: {release.name}"]
    if release.name == OTHER:
        notes.append("not R2R-CE as published, so its turn angle, step and body are not known")
    else:
        notes += [f"differs from v1-3 {split}: {what}" for what in release.differences(split)]
    if release.name == BEFORE_V1_3:
        warnings.warn(f"{file}: {HEADING_WARNING}", stacklevel=2)
        notes.append(HEADING_WARNING)
    if truth is None:
        notes.append("no ground-truth file beside it: no actions")
    is_r2r = release.name != OTHER
    facts = SourceFacts(
        format="r2r_ce",
        turn_deg=BODY.turn_deg if is_r2r else None,
        step_m=BODY.step_m if is_r2r else None,
        embodiment=BODY if is_r2r else None,
        expert="shortest path follower" if is_r2r and truth else "",
        notes=tuple(notes),
    )
    return EpisodeFiles(path, split, facts, [EpisodeFile(file, role, truth)], _read)


def _read(file: EpisodeFile, split: str) -> Iterator[Episode | EpisodeError]:
    yield from episodes_of(
        file.path,
        dataset="r2r_ce",
        split=split,
        role=file.role,
        gt=file.truth,
        default_radius_m=RADIUS_M,
    )
