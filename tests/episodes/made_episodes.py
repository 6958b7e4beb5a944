"""Made-up episodes for the tests here: a plain seeded maker, and hypothesis strategies."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from vla_nav.episodes.frames import frame_key
from vla_nav.episodes.lerobot_writer import LeRobotWriter
from vla_nav.episodes.types import (
    MOVE_FORWARD,
    STOP,
    Camera,
    Embodiment,
    Episode,
    ExpertLabel,
    Goal,
    PixelTarget,
    Pose,
    Step,
)

Frames = dict[str, np.ndarray]


def body(
    *, size: tuple[int, int] = (6, 4), num_cameras: int = 1, depth: bool = False
) -> Embodiment:
    """size: width, height in pixels."""
    cameras = tuple(
        Camera(("front", "left", "right")[i], *size, 90.0, 1.25, has_depth=depth)
        for i in range(num_cameras)
    )
    return Embodiment(cameras, 0.1, 1.5, 30.0, 0.25, False)


def made(number: int, embodiment: Embodiment, *, num_steps: int = 5) -> tuple[Episode, Frames]:
    """Episode `number`, the same in every process; it walks straight ahead, then stops."""
    rng = np.random.default_rng([7, number])
    frames: Frames = {}
    steps = []
    for at in range(num_steps):
        names = {}
        for camera in embodiment.cameras:
            shape = (camera.height_px, camera.width_px)
            names[camera.name] = keep(frames, rng.integers(0, 256, (*shape, 3), np.uint8))
            if camera.has_depth:
                depth = rng.random(shape, np.float32) * 9
                names[f"{camera.name}.depth"] = keep(frames, depth)
        poses = tuple(Pose.from_yaw((0.0, 0.1, -0.25 * k), 0.0) for k in range(at, num_steps))
        primitives = (MOVE_FORWARD,) * (len(poses) - 1) + (STOP,)
        label = ExpertLabel(primitives, (*poses[1:], poses[-1]), None)
        steps.append(Step(poses[0], names, primitives[:1], (label,)))
    episode = Episode(
        dataset="made",
        split="train",
        role="",
        episode_id=str(number),
        scene_id=f"house_{number // 4}/house_{number // 4}.glb",
        instruction=f"Walk to door {number % 3}.",
        start_pose=Pose.from_yaw((0.0, 0.1, 0.0), 0.0),
        goals=(Goal((0.0, 0.1, -0.25 * (num_steps - 1)), 3.0),),
        reference_path=rng.random((3, 3)),
        embodiment=embodiment,
        steps=tuple(steps),
        metadata={"number": number},
    )
    return episode, frames


def keep(frames: Frames, frame: np.ndarray) -> str:
    """Put a frame under its key; return the key."""
    key = frame_key(frame)
    frames[key] = frame
    return key


def writer(root: Path, embodiment: Embodiment, **options: object) -> LeRobotWriter:
    """A writer for the episodes of `made`."""
    stated = {"dataset": "made", "split": "train", "decision": "primitive", **options}
    return LeRobotWriter(root, embodiment=embodiment, **stated)


def record(root: Path, numbers: range, embodiment: Embodiment, **options: object) -> None:
    """Record `made` episodes into parts."""
    with writer(root, embodiment, **options) as out:
        for number in numbers:
            out.add(*made(number, embodiment))


def same(left: Episode, right: Episode) -> bool:
    """Equality in every field, the path bit for bit."""
    names = [name for name in Episode.__dataclass_fields__ if name != "reference_path"]
    return (
        all(getattr(left, name) == getattr(right, name) for name in names)
        and left.reference_path.dtype == right.reference_path.dtype == np.float64
        and left.reference_path.tobytes() == right.reference_path.tobytes()
        and left.reference_path.shape == right.reference_path.shape
    )


# Strategies ------------------------------------------------------------------------------------

_numbers = st.floats(-1e9, 1e9)  # with -0.0 and subnormal ones; larger overflow in statistics
_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | _numbers | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=6,
)
_poses = st.builds(
    Pose,
    st.tuples(_numbers, _numbers, _numbers),
    st.tuples(_numbers, _numbers, _numbers, _numbers),
)
_primitives = st.lists(st.integers(0, 5), max_size=4)


@st.composite
def _labels(draw: st.DrawFn) -> ExpertLabel:
    primitives = tuple(draw(_primitives))
    poses = tuple(draw(_poses) for _ in primitives)
    pixel = draw(st.none() | st.builds(PixelTarget, _text, _numbers, _numbers, _numbers))
    return ExpertLabel(primitives, poses, pixel)


@st.composite
def episodes(draw: st.DrawFn, embodiment: Embodiment, episode_id: str) -> tuple[Episode, Frames]:
    """Any episode that the types allow, with cameras at any height, and its frames."""
    frames: Frames = {}
    steps = []
    for _ in range(draw(st.integers(0, 3))):
        names = {}
        for camera in embodiment.cameras:
            shape = (camera.height_px, camera.width_px)
            value = draw(st.integers(0, 255))
            if draw(st.booleans()):
                names[camera.name] = keep(frames, np.full((*shape, 3), value, np.uint8))
            if camera.has_depth and draw(st.booleans()):
                depth = np.full(shape, value * 0.013, np.float32)
                names[f"{camera.name}.depth"] = keep(frames, depth)
        labels = draw(st.lists(_labels(), max_size=2))
        steps.append(Step(draw(_poses), names, tuple(draw(_primitives)), tuple(labels)))
    height_m, pitch_deg = draw(st.floats(0.1, 2)), draw(st.floats(-30, 30))
    cameras = tuple(
        Camera(c.name, c.width_px, c.height_px, c.hfov_deg, height_m, pitch_deg, c.has_depth)
        for c in embodiment.cameras
    )
    own = Embodiment(cameras, 0.1, 1.5, embodiment.turn_deg, embodiment.step_m, False)
    num_points = draw(st.integers(0, 3))
    points = [draw(st.tuples(_numbers, _numbers, _numbers)) for _ in range(num_points)]
    episode = Episode(
        dataset="made",
        split="train",
        role=draw(_text),
        episode_id=episode_id,
        scene_id=draw(_text),
        instruction=draw(_text),
        start_pose=draw(_poses),
        goals=tuple(
            draw(st.lists(st.builds(Goal, st.tuples(_numbers, _numbers, _numbers), _numbers)))
        ),
        reference_path=np.array(points, np.float64).reshape(-1, 3),
        embodiment=draw(st.sampled_from([None, own])),
        steps=tuple(steps),
        metadata=draw(st.dictionaries(_text, _json, max_size=3)),
    )
    return episode, frames


def heading_deg(pose: Pose) -> float:
    """Degrees of the heading, for readable assertions."""
    return math.degrees(pose.yaw_rad)
