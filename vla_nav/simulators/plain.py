"""Poses, bodies, images and labels as plain values (numbers, lists, dicts, arrays) and back.

Both ends of a simulator worker's pipe speak these; nothing here knows about processes.

    Pose   <->  [x, y, z, qx, qy, qz, qw]
    Outcome <-> {"poses": (n, 7) float64, "collided": (n,) bool, "observation": ..., "label": ...}
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from vla_nav.episodes.types import Camera, Embodiment, ExpertLabel, Pose
from vla_nav.simulators.agent import ExpertSettings, Outcome
from vla_nav.simulators.protocol import Observation


def pose_to_plain(pose: Pose) -> list[float]:
    """Seven floats: position, then rotation in xyzw."""
    return [*pose.position, *pose.rotation]


def pose_from_plain(values: Any) -> Pose:
    """The pose of seven numbers."""
    x, y, z, *rotation = map(float, values)
    return Pose((x, y, z), tuple(rotation))


def poses_to_plain(poses: tuple[Pose, ...]) -> np.ndarray:
    """(n, 7) float64."""
    return np.array([pose_to_plain(pose) for pose in poses], dtype=np.float64).reshape(-1, 7)


def poses_from_plain(values: np.ndarray) -> tuple[Pose, ...]:
    """The poses of an (n, 7) array."""
    return tuple(map(pose_from_plain, values.tolist()))


def embodiment_to_plain(embodiment: Embodiment) -> dict[str, Any]:
    """Nested dicts and lists."""
    return asdict(embodiment)


def embodiment_from_plain(values: dict[str, Any]) -> Embodiment:
    """The body of `embodiment_to_plain`'s values."""
    cameras = tuple(Camera(**camera) for camera in values["cameras"])
    return Embodiment(**{**values, "cameras": cameras})


def observation_to_plain(observation: Observation | None) -> dict[str, Any] | None:
    """Images by kind and camera."""
    if observation is None:
        return None
    return {
        "pose": pose_to_plain(observation.pose),
        "rgb": dict(observation.rgb),
        "depth": dict(observation.depth),
        "semantic": dict(observation.semantic),
    }


def observation_from_plain(values: dict[str, Any] | None) -> Observation | None:
    """The observation of `observation_to_plain`'s values."""
    if values is None:
        return None
    pose = pose_from_plain(values["pose"])
    return Observation(pose, values["rgb"], values["depth"], values["semantic"])


def expert_to_plain(expert: ExpertSettings | None) -> dict[str, Any] | None:
    """Goals, stop radius and horizon."""
    return None if expert is None else asdict(expert)


def expert_from_plain(values: dict[str, Any] | None) -> ExpertSettings | None:
    """The settings of `expert_to_plain`'s values."""
    if values is None:
        return None
    goals = tuple(tuple(map(float, goal)) for goal in values["goals"])
    return ExpertSettings(goals, values["stop_radius_m"], values["horizon"])


def outcome_to_plain(outcome: Outcome) -> dict[str, Any]:
    """A decision's outcome; a label's pixel target is the recorder's to add and is not carried."""
    label = outcome.label
    return {
        "poses": poses_to_plain(outcome.poses),
        "collided": np.array(outcome.collided, dtype=bool),
        "observation": observation_to_plain(outcome.observation),
        "label": None
        if label is None
        else {"primitives": list(label.primitives), "poses": poses_to_plain(label.poses)},
        "stuck": outcome.stuck,
    }


def outcome_from_plain(values: dict[str, Any]) -> Outcome:
    """The outcome of `outcome_to_plain`'s values."""
    label = values["label"]
    return Outcome(
        poses=poses_from_plain(values["poses"]),
        collided=tuple(values["collided"].tolist()),
        observation=observation_from_plain(values["observation"]),
        label=None
        if label is None
        else ExpertLabel(tuple(label["primitives"]), poses_from_plain(label["poses"])),
        stuck=values["stuck"],
    )
