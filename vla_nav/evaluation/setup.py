"""From configured values to what recording and evaluation work on: body, episodes, scenes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vla_nav.episodes.scenes import resolve_scene
from vla_nav.episodes.types import Camera, Embodiment, Episode
from vla_nav.episodes.vlnce import read_vlnce
from vla_nav.errors import UserError, unknown_name

BACKENDS = ("mesh", "habitat")


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
    """The split's episodes (`data.episodes`, with `data.ground_truth` where it is given)."""
    return list(
        read_vlnce(
            data["episodes"],
            dataset=data["dataset"],
            split=data["split"],
            role=data["role"],
            gt=data.get("ground_truth"),
        )
    )


def scene_files(episodes: list[Episode] | tuple[Episode, ...], scenes: str) -> dict[str, str]:
    """Scene id -> existing scene file, for every scene of `episodes`."""
    ids = sorted({episode.scene_id for episode in episodes})
    return {scene_id: str(resolve_scene(scene_id, Path(scenes))) for scene_id in ids}
