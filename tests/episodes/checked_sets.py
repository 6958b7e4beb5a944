"""Sets of episodes without a fault, for checks to find nothing in, and to put one fault into.

Walks are computed here, step by step from the definitions of forward and left in types.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from vla_nav.episodes.source import SourceFacts
from vla_nav.episodes.types import Camera, Embodiment, Episode, ExpertLabel, Goal, Pose, Step

BODY = Embodiment((Camera("front", 8, 6, 90.0, 1.25),), 0.1, 1.5, 15.0, 0.25, True)
STATED = SourceFacts("made", turn_deg=15.0, step_m=0.25, embodiment=BODY)
UNSTATED = SourceFacts("made")
SCENE = "houses/a/a.glb"


class PaintedFrames:
    """Pixels that differ from one another; keys without a number are not there."""

    def __init__(self, size: tuple[int, int] = (8, 6), *, is_blank: bool = False) -> None:
        self._size, self._is_blank = size, is_blank

    def read(self, frame_key: str) -> np.ndarray:
        from vla_nav.errors import UserError

        if "#" not in frame_key:
            raise UserError(f"{frame_key}: no such frame")
        width, height = self._size
        if self._is_blank:
            return np.zeros((height, width, 3), np.uint8)
        rng = np.random.default_rng(int(frame_key.split("#")[1]))
        return rng.integers(0, 256, (height, width, 3), np.uint8)


@dataclass
class ListSource:
    """Episodes in memory."""

    episodes: Sequence[Episode]
    facts: SourceFacts = STATED
    split: str = "val"
    frames: PaintedFrames | None = None
    root: Path = field(default_factory=lambda: Path("made"))

    def __iter__(self) -> Iterator[Episode]:
        return iter(self.episodes)


def walk(
    number: int, *, turn_deg: float = 15.0, step_m: float = 0.25, sides: Sequence[int] = (2, 3)
) -> tuple[list[int], list[Pose]]:
    """About 40 actions with STOP at the end, and the pose before each of them."""
    rng = np.random.default_rng([3, number])
    actions: list[int] = []
    while actions.count(1) < 26:
        turns = [sides[int(rng.integers(len(sides)))]] * int(rng.integers(0, 3))
        actions += [*turns, *[1] * int(rng.integers(1, 6))]
    actions.append(0)
    x, z = (float(value) for value in rng.uniform(-5, 5, 2))
    degrees = 30.0 * int(rng.integers(12))
    poses = []
    for action in actions:
        poses.append(Pose.from_yaw((x, 0.1, z), math.radians(degrees)))
        if action == 1:
            x -= step_m * math.sin(math.radians(degrees))
            z -= step_m * math.cos(math.radians(degrees))
        degrees += {2: turn_deg, 3: -turn_deg}.get(action, 0.0)
    return actions, poses


def episode(
    number: int, *, turn_deg: float = 15.0, step_m: float = 0.25, sides: Sequence[int] = (2, 3)
) -> Episode:
    """An episode with ground truth, its goal at the end of the walk and not near the start."""
    actions, poses = walk(number, turn_deg=turn_deg, step_m=step_m, sides=sides)
    locations = [list(poses[0].position)]
    for action, after in zip(actions[:-1], poses[1:], strict=True):
        if action == 1:
            locations.append(list(after.position))
    first = np.array(locations[0])
    return Episode(
        dataset="made",
        split="val",
        role="",
        episode_id=str(number),
        scene_id=SCENE,
        instruction=f"Walk past {number} chairs and wait.",
        start_pose=poses[0],
        goals=(Goal(poses[-1].position, 0.3),),
        reference_path=np.array([first, locations[len(locations) // 2], locations[-1]]),
        embodiment=None,
        metadata={
            "info": {"geodesic_distance": step_m * actions.count(1)},
            "ground_truth": {
                "actions": actions,
                "locations": locations,
                "forward_steps": actions.count(1),
            },
        },
    )


def recorded(number: int, *, first_frame: int | None = None) -> Episode:
    """The same walk as steps with frames of a video and the expert's label at each."""
    actions, poses = walk(number)
    first = 100 * number if first_frame is None else first_frame
    steps = tuple(
        Step(
            pose,
            {"front": f"videos/front.mp4#{first + at}"},
            (action,),
            (ExpertLabel((action,), (poses[min(at + 1, len(poses) - 1)],)),),
        )
        for at, (action, pose) in enumerate(zip(actions, poses, strict=True))
    )
    plain = episode(number)
    info = {"info": plain.metadata["info"]}
    return replace(plain, embodiment=BODY, steps=steps, metadata=info)


def with_truth(plain: Episode, **changed: object) -> Episode:
    """The episode with other values in its ground truth."""
    truth = {**plain.metadata["ground_truth"], **changed}
    return replace(plain, metadata={**plain.metadata, "ground_truth": truth})


def with_metadata(plain: Episode, **changed: object) -> Episode:
    """The episode with other values in its metadata."""
    return replace(plain, metadata={**plain.metadata, **changed})


def with_step(plain: Episode, at: int, **changed: object) -> Episode:
    """The episode with another value in one step."""
    steps = list(plain.steps)
    steps[at] = replace(steps[at], **changed)
    return replace(plain, steps=tuple(steps))
