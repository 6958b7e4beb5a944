"""DAgger's walks in training: one tree of all walks of an episode, every expert label a branch.

12     s0 --expert's--> s1 --expert's--> s2        labels turn 0 or 1
12@1   s0 --policy's--> s1' -policy's--> s2'       labels turn 2, which only these states teach
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.training.recorded import DECISION, body
from tests.training.tiny import ENCODER, IMAGE_PX, OPTIONS, recipe, settings, train
from vla_nav.actions.waypoint import WaypointSpace
from vla_nav.episodes.frames import frame_key
from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.episodes.lerobot_writer import LeRobotWriter
from vla_nav.episodes.rollouts import further_walk
from vla_nav.episodes.types import (
    MOVE_FORWARD,
    STOP,
    TURN_LEFT,
    TURN_RIGHT,
    Episode,
    ExpertLabel,
    Goal,
    Pose,
    Step,
)
from vla_nav.models.assembly import ModelConfig, build_prompt
from vla_nav.models.backbone import BackboneConfig
from vla_nav.models.prompt import Layout, PromptBuilder
from vla_nav.training.dataset import RecordedTrees
from vla_nav.training.optimiser import OptimiserSettings
from vla_nav.training.recorded_split import open_frames
from vla_nav.training.schedule import Budget
from vla_nav.training.settings import ValidationSettings
from vla_nav.tree import flatten
from vla_nav.verification.samples import EpisodeSample, episode_samples
from vla_nav.verification.supervision import check_supervision
from vla_nav.vision.encode_run import encode_split
from vla_nav.vision.encoder import TimmEncoder
from vla_nav.vision.pixels import PixelResizer

NUM_EPISODES, NUM_STEPS = 12, 4
WRONG = (TURN_RIGHT, MOVE_FORWARD)  # what the policy does; no expert ever teaches it


def walk(rng, episode: Episode, first, *, turns: int, by_policy: bool):
    """The episode with steps, and its frames. first: pixels and label of the first state."""
    frames: dict[str, np.ndarray] = {}
    steps = []
    pose = episode.start_pose
    for number in range(NUM_STEPS):
        is_last = number == NUM_STEPS - 1 and not by_policy
        num_turns = turns if by_policy else int(rng.integers(turns + 1))
        num_walks = int(rng.integers(1, 5))
        primitives = (STOP,) if is_last else (TURN_LEFT,) * num_turns + (MOVE_FORWARD,) * num_walks
        colour = np.array([255, 255, 255] if is_last else [80 * num_turns, 50 * num_walks, 20])
        noise = rng.integers(-8, 9, (IMAGE_PX, IMAGE_PX, 3))
        pixels = np.clip(colour + noise, 0, 255).astype(np.uint8)
        if number == 0 and first is not None:
            pixels, primitives = first
        elif number == 0:
            first = pixels, primitives
        key = frame_key(pixels)
        frames[key] = pixels
        executed = WRONG if by_policy else primitives
        label = ExpertLabel(primitives, (pose,) * len(primitives))
        label = replace(label, poses=poses_after(pose, primitives))
        steps.append(Step(pose, {"front": key}, executed, (label,)))
        pose = poses_after(pose, executed)[-1]
    return replace(episode, steps=tuple(steps)), frames, first


def poses_after(pose: Pose, primitives) -> tuple[Pose, ...]:
    poses = []
    (x, y, z), yaw = pose.position, pose.yaw_rad
    for primitive in primitives:
        yaw += {TURN_LEFT: np.pi / 6, TURN_RIGHT: -np.pi / 6}.get(primitive, 0.0)
        if primitive == MOVE_FORWARD:
            x, z = x - 0.25 * np.sin(yaw), z - 0.25 * np.cos(yaw)
        poses.append(Pose.from_yaw((x, y, z), yaw))
    return tuple(poses)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recorded splits `expert`, `policy` (a walk of the policy each) and `both`."""
    root = tmp_path_factory.mktemp("rollouts")
    rng = np.random.default_rng(0)
    experts, walks = [], []
    for number in range(NUM_EPISODES):
        start = Pose.from_yaw((0.0, 0.0, 0.0), float(rng.integers(12)) * np.pi / 6)
        bare = Episode(
            dataset="toy",
            split="train",
            role="",
            episode_id=str(number),
            scene_id=f"scene-{number % 4}",
            instruction=f"Walk to place {number}.",
            start_pose=start,
            goals=(Goal((1.0, 0.0, 1.0), 3.0),),
            reference_path=np.array([start.position, (1.0, 0.0, 1.0)]),
            embodiment=body(IMAGE_PX),
        )
        *expert, first = walk(rng, bare, None, turns=1, by_policy=False)
        *other, _ = walk(rng, further_walk(bare, 1), first, turns=2, by_policy=True)
        experts.append(expert)
        walks.append(other)
    for split, chosen in (("expert", experts), ("both", [*experts, *walks]), ("policy", walks)):
        with LeRobotWriter(
            root / "recorded" / split,
            dataset="toy",
            split="train",
            embodiment=body(IMAGE_PX),
            decision=DECISION,
        ) as writer:
            for episode, frames in chosen:
                writer.add(episode, frames)
            writer.finalise([episode.key for episode, _ in chosen])
        encode_split(
            root,
            split,
            PixelResizer(IMAGE_PX),
            num_workers=0,
            batch_size=64,
            shard_mib=1,
            cameras=None,
            device="cpu",
            verify="sizes",
        )
    return root


def builder_of(layout: Layout) -> PromptBuilder:
    return build_prompt(
        ModelConfig(backbone=BackboneConfig(options=OPTIONS)),
        action_space=WaypointSpace(decision=DECISION),
        embodiment=body(IMAGE_PX),
        layout=layout,
        num_full=4,
        num_pooled=1,
    )


LAYOUTS = [Layout("full", "hidden"), Layout("full", "visible"), Layout("pooled", "visible")]
by_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)


def both_trees(data: Path, layout: Layout, group: str) -> RecordedTrees:
    episodes = LeRobotDataset(data / "recorded" / "both")
    frames = open_frames(data, "both", TimmEncoder(**ENCODER))
    return RecordedTrees(episodes, builder_of(layout), frames, group=group)


@by_layout
def test_the_walks_of_an_episode_are_one_tree_that_shares_what_they_share(data, layout):
    trees = both_trees(data, layout, "rollouts")
    apart = both_trees(data, layout, "episode")
    assert trees.members == [(n, n + NUM_EPISODES) for n in range(NUM_EPISODES)]
    for number, members in enumerate(trees.members):
        tree = trees[number].tree
        paths, _ = trees.builder.paths(*(trees.episodes[k] for k in members))
        distinct = set()  # every different beginning of a path is one token of the tree
        for path in paths:
            tokens = path.tokens()
            keys = np.stack([tokens.token_ids, tokens.frame_index, tokens.patch_index], axis=1)
            keys = [tuple(key) for key in keys.tolist()]
            distinct.update(tuple(keys[: end + 1]) for end in range(len(keys)))
        assert tree.num_tokens == len(distinct)
        sizes = [apart[k].tree.num_tokens for k in members]
        first = len(trees.builder.root()) + 4  # and the instruction: they begin alike
        assert tree.num_tokens <= sum(sizes) - first
        assert trees.lengths()[number] == tree.num_tokens


@by_layout
def test_every_expert_label_is_a_branch_and_no_action_of_the_policy_is_taught(data, layout):
    trees = both_trees(data, layout, "rollouts")
    samples: list[EpisodeSample] = episode_samples(
        trees.builder,
        TimmEncoder(**ENCODER),
        trees.episodes,
        num_episodes=NUM_EPISODES,
        max_steps=99,
        supervise="own",
        group="rollouts",
        seed=0,
    )
    made = [trees[number].tree for number in range(NUM_EPISODES)]
    findings = check_supervision(samples, made, trees.builder, supervise="own")
    assert [finding.absolute for finding in findings] == [0, 0]
    assert f"{2 * NUM_STEPS * NUM_EPISODES} labels" in str(findings[0].note)
    space = trees.builder.action_space
    wrong = space.encode(space.executed(Step(Pose.from_yaw((0, 0, 0), 0), {}, WRONG, ())))
    new = space.encode(space.label(*label_of(trees.episodes[NUM_EPISODES], 1)))
    taught: set[int] = set()
    for tree in made:
        for path in flatten(tree):
            tokens = path.tokens()
            taught.update(tokens.token_ids[tokens.is_supervised].tolist())
    assert new[0] in taught  # two turns to the left, at the policy's states alone
    assert wrong[0] not in taught


def label_of(episode: Episode, step: int) -> tuple[Pose, ExpertLabel]:
    return episode.steps[step].pose, episode.steps[step].labels[0]


@pytest.mark.slow
def test_training_learns_what_the_expert_says_at_the_policy_s_states(data, tmp_path):
    """Trained on both, the policy knows the states that only the policy's walks visit; trained on
    the expert's walks alone it has never seen a label of theirs."""
    accuracy = {}
    for split, group in (("both", "rollouts"), ("expert", "episode")):
        made = settings(
            pack_tokens=1000,
            budget=Budget(max_steps=100),
            optimiser=OptimiserSettings(learning_rate=1e-2),
            validation=ValidationSettings(split="policy", every_steps=100),
        )
        result = train(recipe(data, split=split, group=group, settings=made), tmp_path / split)
        accuracy[split] = result["validation"]["action_accuracy"]
    assert accuracy["both"] > 0.7
    assert accuracy["expert"] <= 0.25 + 0.05  # the first of four states is the expert's too
