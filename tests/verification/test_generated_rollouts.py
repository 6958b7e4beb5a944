"""Generated walks that part halfway: what `verify` and `draw` make of tree.group=rollouts."""

from __future__ import annotations

import pytest

from tests.training.tiny import ENCODER, OPTIONS
from vla_nav.actions.waypoint import WaypointSpace
from vla_nav.models.assembly import ModelConfig, build_prompt
from vla_nav.models.backbone import BackboneConfig
from vla_nav.models.prompt import Layout
from vla_nav.training.shapes import FrameTokens
from vla_nav.tree import PrefixTree
from vla_nav.verification.drawing_subject import DrawRecipe, drawing_of
from vla_nav.verification.generated import parting_walk, plain_embodiment, walked_episode
from vla_nav.verification.samples import episode_samples
from vla_nav.verification.supervision import check_supervision
from vla_nav.vision.encoder import TimmEncoder

BODY = plain_embodiment(30.0, 0.25, has_depth=False)


@pytest.mark.parametrize("parts_at", [0, 3, 5])
def test_a_parting_walk_is_the_same_up_to_where_it_parts(parts_at):
    episode = walked_episode(0, num_steps=6, embodiment=BODY, seed=1)
    walk = parting_walk(episode, 7, parts_at=parts_at, seed=1)
    assert (walk.episode_id, walk.instruction) == ("0@1", episode.instruction)
    assert walk.steps[:parts_at] == episode.steps[:parts_at]
    here, there = episode.steps[parts_at], walk.steps[parts_at]
    assert (here.frames, here.labels, here.pose) == (there.frames, there.labels, there.pose)
    assert here.executed != there.executed
    frames = {tuple(step.frames.values()) for step in episode.steps}
    assert not frames & {tuple(step.frames.values()) for step in walk.steps[parts_at + 1 :]}


@pytest.mark.parametrize("actions", ["hidden", "visible"])
def test_generated_rollouts_share_their_beginning_and_teach_every_label(actions):
    builder = build_prompt(
        ModelConfig(backbone=BackboneConfig(options=OPTIONS)),
        action_space=WaypointSpace(turn_deg=30.0),
        embodiment=BODY,
        layout=Layout("full", actions),
        num_full=4,
        num_pooled=1,
    )
    samples = episode_samples(
        builder,
        TimmEncoder(**ENCODER),
        None,
        num_episodes=3,
        max_steps=8,
        supervise="own",
        group="rollouts",
        seed=0,
    )
    trees = [PrefixTree.from_paths(one.sample.paths) for one in samples]
    for one, tree in zip(samples, trees, strict=True):
        assert len(one.episodes) == 2
        alone = [PrefixTree.from_paths(builder.paths(episode)[0]) for episode in one.episodes]
        half = len(one.episodes[0].steps) // 2
        shared = sum(part.num_tokens for part in alone) - tree.num_tokens
        assert shared >= len(builder.root()) + 4 * (half + 1)  # every frame up to the parting
    findings = check_supervision(samples, trees, builder, supervise="own")
    assert [finding.absolute for finding in findings] == [0, 0]


def test_the_drawing_tells_walks_from_instructions():
    recipe = DrawRecipe(
        action_space=WaypointSpace(turn_deg=30.0),
        layout=Layout("full", "hidden"),
        model=ModelConfig(backbone=BackboneConfig(options=OPTIONS)),
        frame_tokens=FrameTokens(4, 1),
        num_steps=6,
        group="rollouts",
    )
    drawing = drawing_of(recipe)
    assert drawing.title.endswith("and 1 more walk")
