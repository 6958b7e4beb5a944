"""From configured values to what recording and evaluation work on: body, episodes, scenes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import xxhash

from vla_nav.episodes import rxr_ce
from vla_nav.episodes.episode_files import content_files, kind_of
from vla_nav.episodes.formats import open_source
from vla_nav.episodes.scenes import resolve_scene
from vla_nav.episodes.types import Camera, Embodiment, Episode
from vla_nav.episodes.vlnce import read_vlnce
from vla_nav.errors import UserError, unknown_name
from vla_nav.files import file_digest

BACKENDS = ("mesh", "habitat")
_BY_SCENE = {"object": "objectnav", "point": "pointnav"}
_RADIUS_M = {"language": rxr_ce.RADIUS_M}  # of goals that state none


def embodiment_of(simulators: Mapping[str, Any]) -> Embodiment:
    """The body in `simulators.embodiment`. Raises `UserError` naming a wrong key or value."""
    if simulators["backend"] not in BACKENDS:
        raise unknown_name("simulators.backend", simulators["backend"], BACKENDS)
    values = dict(simulators["embodiment"])
    cameras = values.pop("cameras", None)
    if not cameras:
        raise UserError("simulators.embodiment.cameras: got none; give at least one camera")
    try:
        body = Embodiment(cameras=tuple(Camera(**camera) for camera in cameras), **values)
    except TypeError as error:
        raise UserError(f"simulators.embodiment: {error}; see conf/simulators/mesh.yaml") from None
    names = [camera.name for camera in body.cameras]
    if len(set(names)) < len(names):
        raise UserError(f"simulators.embodiment.cameras: names {names} must differ")
    for key in ("radius_m", "height_m", "turn_deg", "step_m"):
        if not getattr(body, key) > 0:
            raise UserError(f"simulators.embodiment.{key}={getattr(body, key)}: must be above 0")
    if abs(360 / body.turn_deg - round(360 / body.turn_deg)) > 1e-6:
        raise UserError(f"simulators.embodiment.turn_deg={body.turn_deg}: must divide 360")
    return body


def read_episodes(data: Mapping[str, Any]) -> list[Episode]:
    """The split's episodes (`data.episodes`, with `data.ground_truth` where it is given).

    Those of ObjectNav and PointNav may lie in a file per scene beside it. ObjectNav has no texts:
    its instruction is "find a tv monitor".
    """
    path, split = Path(data["episodes"]), data["split"]
    kind = kind_of(path, split)
    if kind in _BY_SCENE:
        source = open_source(path, split=split, format=_BY_SCENE[kind])
        return [
            replace(episode, dataset=data["dataset"], instruction=_instruction(episode))
            for episode in source
        ]
    return list(
        read_vlnce(
            path,
            dataset=data["dataset"],
            split=split,
            role=data["role"],
            gt=data.get("ground_truth"),
            default_radius_m=_RADIUS_M.get(kind),
        )
    )


def episodes_digest(data: Mapping[str, Any]) -> str:
    """The digest of the episode file, and of the files per scene where the episodes are there."""
    path = Path(data["episodes"])
    digest = file_digest(path)
    if kind_of(path, data["split"]) not in _BY_SCENE:
        return digest
    parts = [digest, *(f"{file.name} {file_digest(file)}" for file in content_files(path))]
    return xxhash.xxh3_128_hexdigest("\n".join(parts).encode())


def scene_files(episodes: list[Episode] | tuple[Episode, ...], scenes: str) -> dict[str, str]:
    """Scene id -> existing scene file, for every scene of `episodes`."""
    ids = sorted({episode.scene_id for episode in episodes})
    return {scene_id: str(resolve_scene(scene_id, Path(scenes))) for scene_id in ids}


def _instruction(episode: Episode) -> str:
    category = episode.metadata.get("object_category")
    if episode.instruction or not category:
        return episode.instruction
    return f"find a {str(category).replace('_', ' ')}"
