"""RxR-CE: long instructions in three languages, by guides and followers.

    RxR_VLNCE_v0/<split>/<split>_{guide,follower}.json.gz       no vocabulary, ids are strings
    RxR_VLNCE_v0/<split>/<split>_{guide,follower}_gt.json.gz    of its own role only

One id may occur in both roles with other actions, so every file is joined with its own ground
truth, and the role is part of an episode's key. Without a role asked for, guides come first, then
followers. Results are usually reported on guides in English: `metadata["instruction"]["language"]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vla_nav.episodes.episode_files import (
    EpisodeFile,
    EpisodeFiles,
    find_file,
    kind_of,
    required_file,
    truth_of,
)
from vla_nav.episodes.source import EpisodeError, SourceFacts
from vla_nav.episodes.types import Camera, Embodiment, Episode
from vla_nav.episodes.vlnce import episodes_of
from vla_nav.errors import unknown_name

ROLES = ("guide", "follower")
RADIUS_M = 3.0
BODY = Embodiment(
    (Camera("front", 640, 480, 79.0, 0.88),), 0.18, 0.88, 30.0, 0.25, is_sliding=False
)


def detect(path: Path, split: str) -> bool:
    """Whether the split has a guide's or follower's file, or instructions with their language."""
    if not path.is_file() and any(find_file(path, split, f"_{role}") for role in ROLES):
        return True
    return kind_of(path, split) == "language"


def open_source(path: Path, *, split: str, role: str = "") -> EpisodeFiles:
    """The split's episodes of a role ("" for both), joined with that role's ground truth."""
    if role not in ("", *ROLES):
        raise unknown_name("data.role", role, ROLES)
    files = _files(path, split, role)
    notes = [f"no ground truth beside {file.path.name}" for file in files if file.truth is None]
    facts = SourceFacts(
        format="rxr_ce",
        turn_deg=BODY.turn_deg,
        step_m=BODY.step_m,
        embodiment=BODY,
        expert="shortest path follower" if all(file.truth for file in files) else "",
        notes=("turn, step and body are those of the format; files do not state them", *notes),
    )
    return EpisodeFiles(path, split, facts, files, _read)


def _files(path: Path, split: str, role: str) -> list[EpisodeFile]:
    """The files of the roles asked for, else one file of the split whose episodes state theirs."""
    if not path.is_file():
        roles = (role,) if role else ROLES
        found = {name: find_file(path, split, f"_{name}") for name in roles}
        files = [EpisodeFile(file, name, truth_of(file)) for name, file in found.items() if file]
        if files:
            return files
        if find_file(path, split) is None:
            required_file(path, split, f"_{roles[0]}")
    file = required_file(path, split)
    return [EpisodeFile(file, role, truth_of(file))]


def _read(file: EpisodeFile, split: str) -> Iterator[Episode | EpisodeError]:
    yield from episodes_of(
        file.path,
        dataset="rxr_ce",
        split=split,
        role=file.role,
        gt=file.truth,
        default_radius_m=RADIUS_M,
    )
