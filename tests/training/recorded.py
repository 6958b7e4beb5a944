"""A small recorded data set in which the frame tells the action, written through the real writer.

Each step's frame is painted by the expert's next decision (hue = how often to turn, brightness =
how far to walk, white = STOP) plus noise, so that a model of a few thousand parameters learns it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from vla_nav.episodes.frames import frame_key
from vla_nav.episodes.lerobot_writer import LeRobotWriter
from vla_nav.episodes.types import (
    MOVE_FORWARD,
    STOP,
    TURN_LEFT,
    Camera,
    Embodiment,
    Episode,
    ExpertLabel,
    Goal,
    Pose,
    Step,
)

PLACES = ("kitchen", "bathroom", "corridor", "bedroom", "office", "hall")
DECISION = "turn_then_forward(4)"


def body(image_px: int = 16) -> Embodiment:
    camera = Camera("front", image_px, image_px, hfov_deg=90.0, height_m=1.2)
    return Embodiment(
        (camera,), radius_m=0.2, height_m=1.5, turn_deg=30.0, step_m=0.25, is_sliding=True
    )


def write_recorded(
    root: Path,
    *,
    split: str = "train",
    num_episodes: int = 24,
    num_scenes: int = 6,
    steps: tuple[int, int] = (3, 6),
    image_px: int = 16,
    seed: int = 0,
    num_instructions: int = 0,
) -> Path:
    """Write `<root>/recorded/<split>` and return its folder. steps: fewest and most per episode.

    num_instructions: with 1 and more every episode is recorded so often, each time with another
    instruction, and carries its trajectory_id and a summary of its first two steps.
    """
    folder = root / "recorded" / split
    rng = np.random.default_rng(seed)
    with LeRobotWriter(
        folder, dataset="toy", split=split, embodiment=body(image_px), decision=DECISION
    ) as writer:
        for number in range(num_episodes):
            episode, frames = _episode(rng, number, number % num_scenes, split, steps, image_px)
            if not num_instructions:
                writer.add(episode, frames)
            for copy in range(num_instructions):
                metadata = {"trajectory_id": number, "summaries": {"2": f"two steps of {copy}"}}
                text = f"{episode.instruction} Take {copy + 1}."
                name = f"{episode.episode_id}-{copy}"
                one = replace(episode, episode_id=name, instruction=text, metadata=metadata)
                writer.add(one, frames)
        writer.finalise()
    return folder


def _episode(
    rng: np.random.Generator,
    number: int,
    scene: int,
    split: str,
    steps: tuple[int, int],
    image_px: int,
) -> tuple[Episode, dict[str, np.ndarray]]:
    num_steps = int(rng.integers(steps[0], steps[1] + 1))
    pose = start = Pose.from_yaw((0.0, 0.0, 0.0), float(rng.integers(12)) * np.pi / 6)
    frames: dict[str, np.ndarray] = {}
    recorded = []
    for index in range(num_steps):
        is_last = index == num_steps - 1
        turns, walks = int(rng.integers(3)), int(rng.integers(1, 5))
        primitives = (STOP,) if is_last else (TURN_LEFT,) * turns + (MOVE_FORWARD,) * walks
        label = ExpertLabel(primitives, _poses(pose, primitives))
        colour = np.array([255, 255, 255] if is_last else [80 * turns, 50 * walks, 20])
        noise = rng.integers(-8, 9, (image_px, image_px, 3))
        pixels = np.clip(colour + noise, 0, 255).astype(np.uint8)
        key = frame_key(pixels)
        frames[key] = pixels
        recorded.append(Step(pose, {"front": key}, primitives, (label,)))
        pose = label.poses[-1]
    first, last = rng.choice(PLACES, 2)
    episode = Episode(
        dataset="toy",
        split=split,
        role="",
        episode_id=f"{number:05d}",
        scene_id=f"{split}-scene-{scene}",
        instruction=f"Leave the {first}, then walk to the {last} and stop there.",
        start_pose=start,
        goals=(Goal(pose.position, 3.0),),
        reference_path=np.array([start.position, pose.position]),
        embodiment=body(image_px),
        steps=tuple(recorded),
    )
    return episode, frames


def _poses(pose: Pose, primitives: tuple[int, ...]) -> tuple[Pose, ...]:
    poses = []
    x, y, z = pose.position
    yaw = pose.yaw_rad
    for primitive in primitives:
        if primitive == TURN_LEFT:
            yaw += np.pi / 6
        elif primitive == MOVE_FORWARD:
            x, z = x - 0.25 * np.sin(yaw), z - 0.25 * np.cos(yaw)
        poses.append(Pose.from_yaw((x, y, z), yaw))
    return tuple(poses)
