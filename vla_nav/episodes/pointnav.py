"""PointNav: go to a point; no instruction. Habitat's `PointNav-v1` files.

    <path>/<split>/<split>.json.gz                often {"episodes": []}
    <path>/<split>/content/<scene>.json.gz        the episodes of one scene

Ids start again in every scene, so an episode's id here is `<scene>-<id>`; the file's own is kept in
`metadata["episode_id"]`. Goals without a radius get that of the task, 0.2 m.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from vla_nav.episodes.episode_files import (
    EpisodeFile,
    EpisodeFiles,
    content_files,
    kind_of,
    required_file,
)
from vla_nav.episodes.source import EpisodeError, SourceFacts
from vla_nav.episodes.types import Camera, Embodiment, Episode
from vla_nav.episodes.vlnce import episodes_of

RADIUS_M = 0.2
BODY = Embodiment((Camera("front", 256, 256, 90.0, 1.25),), 0.1, 1.5, 10.0, 0.25, is_sliding=True)


def detect(path: Path, split: str) -> bool:
    """Whether the first episode of the split, or of its first scene, has goals and no more."""
    return kind_of(path, split) == "point"


def open_source(path: Path, *, split: str, role: str = "") -> EpisodeFiles:
    """The split's own episodes, then those of its scenes by name. role is not used."""
    file = required_file(path, split)
    files = [EpisodeFile(name) for name in (file, *content_files(file))]
    facts = SourceFacts(
        format="pointnav",
        turn_deg=BODY.turn_deg,
        step_m=BODY.step_m,
        embodiment=BODY,
        notes=("turn, step and body are habitat-lab's defaults; files do not state them",),
    )
    return EpisodeFiles(path, split, facts, files, _read)


def with_scene_in_id(episode: Episode) -> Episode:
    """The episode under an id that no other scene has."""
    scene = episode.scene_id.rsplit("/", 1)[-1].partition(".")[0]
    metadata = {**episode.metadata, "episode_id": episode.episode_id}
    return replace(episode, episode_id=f"{scene}-{episode.episode_id}", metadata=metadata)


def _read(file: EpisodeFile, split: str) -> Iterator[Episode | EpisodeError]:
    for item in episodes_of(file.path, dataset="pointnav", split=split, default_radius_m=RADIUS_M):
        yield item if isinstance(item, EpisodeError) else with_scene_in_id(item)
