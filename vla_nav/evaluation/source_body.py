"""The body and cameras of converted data: what the source states, measures, and the user adds.

    source states an embodiment                     that one
    states turn and step, has frames                names and sizes of cameras are those of the
                                                    frames; HFOV and height come from the user
    states nothing                                  turn and step come from the user as well

No value that is part of the data is guessed: what is missing is asked for by its key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from vla_nav.episodes.source import EpisodeSource
from vla_nav.episodes.types import Camera, Embodiment, Episode
from vla_nav.errors import UserError

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")  # it becomes part of a file's path


@dataclass(frozen=True, slots=True)
class StatedBody:
    """What the user says about data that does not say it; None: nothing.

    hfov_deg, camera_height_m, pitch_deg: of every camera. radius_m, height_m, is_sliding: of the
    body; they are stored, no frame or pose depends on them.
    """

    turn_deg: float | None = None
    step_m: float | None = None
    hfov_deg: float | None = None
    camera_height_m: float | None = None
    pitch_deg: float = 0.0
    radius_m: float = 0.1
    height_m: float = 1.5
    is_sliding: bool = True


def source_body(
    source: EpisodeSource, stated: StatedBody, episodes: Iterable[Episode]
) -> Embodiment:
    """The embodiment of the source's data. episodes: read up to the first that has frames.

    Raises `UserError` naming every key that neither the source nor the user states, and for values
    that contradict the source.
    """
    facts = source.facts
    body = facts.embodiment
    for key in ("turn_deg", "step_m"):
        there, given = getattr(facts, key), getattr(stated, key)
        if there is not None and given is not None and abs(there - given) > 1e-6:
            raise UserError(
                f"{source.root}: states {key}={there:g}, convert.body.{key} is {given:g}; leave "
                "it null"
            )
    if body is not None:
        for camera in body.cameras:
            for key, there, given in (
                ("hfov_deg", camera.hfov_deg, stated.hfov_deg),
                ("camera_height_m", camera.height_m, stated.camera_height_m),
            ):
                if given is not None and abs(there - given) > 1e-6:
                    raise UserError(
                        f"{source.root}: camera '{camera.name}' has {key}={there:g} by its format, "
                        f"convert.body.{key} is {given:g}; leave it null"
                    )
        return body
    turn_deg = stated.turn_deg if facts.turn_deg is None else facts.turn_deg
    step_m = stated.step_m if facts.step_m is None else facts.step_m
    sizes = _sizes(source, episodes)
    wanted = {"turn_deg": turn_deg, "step_m": step_m}
    if sizes:
        wanted |= {"hfov_deg": stated.hfov_deg, "camera_height_m": stated.camera_height_m}
    missing = [key for key, value in wanted.items() if value is None]
    if missing or turn_deg is None or step_m is None:
        raise UserError(
            f"{source.root}: a {facts.format} data set does not state {', '.join(missing)}; give "
            f"{' '.join(f'convert.body.{key}=...' for key in missing)}"
        )
    for key, value in wanted.items():
        if value is not None and not value > 0:
            raise UserError(f"convert.body.{key}={value}: allowed: above 0")
    cameras = tuple(
        Camera(
            name,
            width,
            height,
            stated.hfov_deg or 0.0,
            stated.camera_height_m or 0.0,
            stated.pitch_deg,
            f"{name}.depth" in sizes,
        )
        for name, (height, width) in sizes.items()
        if not name.endswith(".depth")
    )
    return Embodiment(
        cameras, stated.radius_m, stated.height_m, turn_deg, step_m, stated.is_sliding
    )


def _sizes(source: EpisodeSource, episodes: Iterable[Episode]) -> dict[str, tuple[int, int]]:
    """Frame name -> (height, width) in the first episode with frames, by name."""
    if source.frames is None:
        return {}
    for episode in episodes:
        keys: dict[str, str] = {}
        for step in episode.steps:
            for name, key in step.frames.items():
                keys.setdefault(name, key)
        if keys:
            for name in keys:
                if _NAME.fullmatch(name) is None:
                    raise UserError(
                        f"{source.root}: frames are called '{name[:100]}'; allowed are letters, "
                        "digits, '_', '-' and '.'"
                    )
            shapes = {name: source.frames.read(key).shape for name, key in sorted(keys.items())}
            return {name: (shape[0], shape[1]) for name, shape in shapes.items()}
    return {}
