"""Generated input for the proof: episodes of a walk without walls, and bushy random trees.

episode   start --decision--> step --decision--> ... --STOP     labels = the walk's own actions;
          a share of the executed actions is another one (a perturbed expert), a share of the
          states has a second label (a relabel), every step a summary of those before it
tree      root, then 0-3 children per node down to `depth`; 1-token nodes, unary chains, paths
          that end at inner nodes, two equal paths
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vla_nav.episodes.rollouts import further_walk
from vla_nav.episodes.types import (
    MOVE_FORWARD,
    STOP,
    TURN_LEFT,
    TURN_RIGHT,
    Camera,
    Embodiment,
    Episode,
    ExpertLabel,
    Goal,
    Pose,
    Step,
)
from vla_nav.seeding import generator
from vla_nav.tree.types import Path, Segment, frame_segment, text_segment

INSTRUCTIONS = (
    "Leave the kitchen, walk along the corridor and stop beside the red chair.",
    "Go up the stairs and wait at the second door on the left.",
    "Turn around.",
)


def plain_embodiment(turn_deg: float, step_m: float, *, has_depth: bool) -> Embodiment:
    """A robot with one camera, `front`."""
    camera = Camera("front", 64, 64, 90.0, 1.25, 0.0, has_depth)
    return Embodiment((camera,), 0.1, 1.5, turn_deg, step_m, is_sliding=True)


def walked_episode(
    number: int,
    *,
    num_steps: int,
    embodiment: Embodiment,
    seed: int,
    perturbed: float = 0.3,
    relabelled: float = 0.2,
) -> Episode:
    """An episode of `num_steps` decisions, the last one STOP; frame keys name step and stream.

    perturbed, relabelled: shares of steps.
    """
    rng = generator(seed, "verify episode", number)
    relabels = generator(seed, "verify relabels", number)
    start = pose = Pose.from_yaw((0.0, 0.0, 0.0), float(rng.uniform(-math.pi, math.pi)))
    steps = []
    for t in range(num_steps):
        label = _label(rng, pose, embodiment, is_last=t == num_steps - 1)
        labels = [label]
        if relabels.random() < relabelled:
            other = _label(relabels, pose, embodiment, is_last=False)
            if other.primitives != label.primitives:
                labels.append(other)
        executed = label.primitives[:4]
        if rng.random() < perturbed:
            executed = (int(rng.choice([MOVE_FORWARD, TURN_LEFT, TURN_RIGHT])),)
        streams = [
            name
            for camera in embodiment.cameras
            for name in (camera.name, *([f"{camera.name}.depth"] if camera.has_depth else []))
        ]
        frames = {name: f"{number}/{t}/{name}" for name in streams}
        steps.append(Step(pose, frames, executed, tuple(labels)))
        for primitive in executed:
            pose = _moved(pose, primitive, embodiment)
    return Episode(
        dataset="generated",
        split="verify",
        role="generated",
        episode_id=str(number),
        scene_id="none",
        instruction=INSTRUCTIONS[number % len(INSTRUCTIONS)],
        start_pose=start,
        goals=(Goal(pose.position, 3.0),),
        reference_path=np.array([start.position, pose.position]),
        embodiment=embodiment,
        steps=tuple(steps),
        metadata={"summaries": {str(t): f"So far {t} steps." for t in range(1, num_steps)}},
    )


def parting_walk(episode: Episode, number: int, *, parts_at: int, seed: int) -> Episode:
    """A further walk of a generated episode, as DAgger records them: the same up to step
    `parts_at`, where another action is executed and other states follow.

    episode    s0 s1 s2 s3 s4          parts_at 2: labels of s2 are the same, what follows is not
    walk       s0 s1 s2 t3 t4
    """
    assert episode.embodiment is not None
    other = walked_episode(
        number, num_steps=len(episode.steps), embodiment=episode.embodiment, seed=seed
    )
    here = episode.steps[parts_at]
    executed = (TURN_RIGHT,) if here.executed != (TURN_RIGHT,) else (TURN_LEFT,)
    steps = (
        *episode.steps[:parts_at],
        replace(here, executed=executed),
        *other.steps[parts_at + 1 :],
    )
    return replace(further_walk(episode, 1), steps=steps)


def random_paths(
    seed: int, *, text_ids: Sequence[int], placeholder_id: int, num_frames: int, num_patches: int
) -> tuple[Path, ...]:
    """Paths of a random tree whose nodes hold text or a frame's first patches."""
    rng = generator(seed, "verify tree")
    depth = int(rng.integers(0, 7))
    root = text_segment(rng.choice(text_ids, 2))
    chains: list[tuple[Segment, ...]] = []
    stack: list[tuple[Segment, ...]] = [(root,)]
    while stack and len(chains) < 24:
        chain = stack.pop()
        chains.append(chain)
        if len(chain) <= depth:
            for _ in range(int(rng.choice([1, 1, 2, 3]))):
                if rng.random() < 0.3:
                    patches = int(rng.integers(1, num_patches + 1))
                    frame = frame_segment(placeholder_id, int(rng.integers(num_frames)), patches)
                    stack.append((*chain, frame))
                else:
                    stack.append((*chain, text_segment(rng.choice(text_ids, rng.integers(1, 4)))))
    chosen = rng.choice(len(chains), size=min(len(chains), 8), replace=False).tolist()
    paths = [_taught(rng, chains[index], text_ids) for index in sorted(chosen)]
    return (*paths, paths[0])


def _taught(rng: np.random.Generator, chain: tuple[Segment, ...], text_ids: Sequence[int]) -> Path:
    """The chain with some text supervised behind the root, and a label at its end or nowhere."""
    segments = [chain[0]]
    for segment in chain[1:]:
        is_text = segment.frame_index[0] < 0
        segments.append(
            text_segment(segment.token_ids, is_supervised=True)
            if is_text and rng.random() < 0.5
            else segment
        )
    if rng.random() < 0.7 or not any(segment.is_supervised for segment in segments):
        segments.append(text_segment(rng.choice(text_ids, 2), is_supervised=True))
    return Path(tuple(segments), float(rng.choice([1.0, 1.0, 0.5])))


def _label(
    rng: np.random.Generator, pose: Pose, embodiment: Embodiment, *, is_last: bool
) -> ExpertLabel:
    if is_last:
        return ExpertLabel((STOP,), (pose,))
    turn = int(rng.choice([TURN_LEFT, TURN_RIGHT]))
    primitives = (*[turn] * int(rng.integers(0, 4)), *[MOVE_FORWARD] * int(rng.integers(1, 5)))
    poses = []
    for primitive in primitives:
        pose = _moved(pose, primitive, embodiment)
        poses.append(pose)
    return ExpertLabel(primitives, tuple(poses))


def _moved(pose: Pose, primitive: int, embodiment: Embodiment) -> Pose:
    """The pose after a primitive where nothing is in the way."""
    yaw, (x, y, z) = pose.yaw_rad, pose.position
    if primitive == MOVE_FORWARD:
        x, z = x - embodiment.step_m * math.sin(yaw), z - embodiment.step_m * math.cos(yaw)
    elif primitive in (TURN_LEFT, TURN_RIGHT):
        sign = 1 if primitive == TURN_LEFT else -1
        yaw += sign * math.radians(embodiment.turn_deg)
    return Pose.from_yaw((x, y, z), yaw)
