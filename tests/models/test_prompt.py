"""The prompt: what training builds from an episode is what the policy builds from observations."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from model_scenario import embodiment, episode, small

from vla_nav.actions import ChunkSpace, DiscreteSpace, PointingSpace, WaypointSpace
from vla_nav.episodes.types import Pose
from vla_nav.errors import UserError
from vla_nav.models.prompt import Layout, PoseTokens, PromptBuilder, PromptConfig
from vla_nav.models.tokenizer import load_tokenizer
from vla_nav.models.vocabulary import Vocabulary
from vla_nav.tree import PrefixTree, StepTokens, context_of, every_layout

SPACE = WaypointSpace()
TOKENIZER = load_tokenizer()


def builder(space=SPACE, *, body=None, config=None, layout=None, num_full=4, num_pooled=1):
    return PromptBuilder(
        TOKENIZER,
        space,
        body or embodiment(),
        config or PromptConfig(),
        layout or Layout(),
        num_full=num_full,
        num_pooled=num_pooled,
    )


def test_vocabulary_blocks_are_disjoint_and_actions_come_first():
    vocabulary = Vocabulary(18, ("<begin>", "<act>"), 5, 100)
    ids = [
        *range(18),
        vocabulary.special("<begin>"),
        vocabulary.special("<act>"),
        *(vocabulary.pose(i) for i in range(5)),
        *vocabulary.text(range(100)),
    ]
    assert ids == list(range(vocabulary.num_tokens))
    assert [vocabulary.action_of(i) for i in (0, 17, 18, 124, -1)] == [0, 17, -1, -1, -1]
    assert vocabulary.num_own == 25
    with pytest.raises(KeyError):
        vocabulary.special("<end>")


def test_every_token_of_an_episode_is_where_the_drawing_says():
    body = embodiment(num_cameras=2, has_depth=True)
    config = PromptConfig(depth=True, separator=True, pose=PoseTokens())
    prompt = builder(body=body, config=config)
    found, _ = episode(0, SPACE, body=body, num_steps=3)
    tokens, keys = prompt.episode(found)
    assert prompt.streams == ("front", "front.depth", "left", "left.depth")
    assert keys[:4] == ("0-front", "0-front.depth", "0-left", "0-left.depth")
    assert len(keys) == 12
    text = TOKENIZER.decode(
        tuple(i - prompt.vocabulary.num_own for i in tokens.instructions[0].token_ids.tolist())
    )
    assert text == found.instruction
    for t, step in enumerate(tokens.steps):
        full, pooled = step.full, step.pooled
        assert len(full) == 3 + 4 * 4 + 1
        assert len(pooled) == 3 + 4 * 1
        assert full.token_ids[-1] == prompt.vocabulary.special("<act>")
        assert full.frame_index[3:-1].tolist() == np.repeat(4 * t + np.arange(4), 4).tolist()
        assert full.patch_index[3:-1].tolist() == [0, 1, 2, 3] * 4
        assert pooled.patch_index[3:].tolist() == [4] * 4
        assert full.token_ids[3] == prompt.vocabulary.special("<front>")
        assert full.token_ids[7] == prompt.vocabulary.special("<front.depth>")
        assert (full.frame_index[:3] == -1).all()
        assert not full.is_supervised
        assert not pooled.is_supervised
        assert all(label.tokens.is_supervised for label in step.labels)


def test_a_frame_seen_twice_is_one_row():
    prompt = builder()
    found, _ = episode(0, SPACE, num_steps=4)
    steps = [replace(step, frames={"front": "same"}) for step in found.steps]
    tokens, keys = prompt.episode(replace(found, steps=tuple(steps)))
    assert keys == ("same",)
    assert all((step.full.frame_index <= 0).all() for step in tokens.steps)


def test_each_policy_observation_is_the_recorded_steps_segment():
    config = PromptConfig(separator=True, pose=PoseTokens())
    prompt = builder(config=config)
    found, _ = episode(7, SPACE, num_steps=3)
    tokens, _ = prompt.episode(found)
    for t, step in enumerate(found.steps):
        live = prompt.observation([t], step.pose, found.start_pose)
        for ours, recorded in zip(
            live, (tokens.steps[t].full, tokens.steps[t].pooled), strict=True
        ):
            assert np.array_equal(ours.keys, recorded.keys)


@pytest.mark.parametrize("facts", ["none", "compact", "full"])
def test_facts_change_with_the_robot_only_where_they_are_written(facts):
    roots = []
    for turn_deg in (30.0, 15.0):
        body = replace(embodiment(), turn_deg=turn_deg)
        prompt = builder(body=body, config=PromptConfig(facts=facts))
        roots.append(prompt.root().token_ids)
    assert np.array_equal(*roots) == (facts == "none")


def test_an_empty_instruction_still_has_a_root():
    assert len(builder().root()) >= 1


@pytest.fixture(scope="module")
def lengthy():
    """Episodes of lengths around a window of 32, with a summary every 16 steps."""
    found = []
    for num_steps in (4, 31, 32, 33, 64, 87):
        made, _ = episode(1, SPACE, num_steps=num_steps, max_labels=1)
        texts = {str(s): f"{s} steps done" for s in range(16, num_steps, 16)}
        found.append(replace(made, metadata={"summaries": texts}))
    return found


@pytest.mark.parametrize(
    "layout", every_layout(window=32, uniform=32, summary_keep=16), ids=lambda x: x.name
)
def test_every_step_including_stop_is_supervised_exactly_once(lengthy, layout):
    prompt = builder(layout=layout)
    for found in lengthy:
        paths, keys = prompt.paths(found)
        tree = PrefixTree.from_paths(paths, num_frames=len(keys))
        expected = [SPACE.encode(SPACE.label(step.pose, step.labels[0])) for step in found.steps]
        assert expected[-1] == (0,)
        assert len(paths) == len(found.steps)
        assert tree.loss_weights.sum() == sum(map(len, expected))
        taught = [path.tokens().token_ids[path.tokens().is_supervised].tolist() for path in paths]
        assert taught == [list(tokens) for tokens in expected]


@pytest.mark.parametrize(
    "layout", every_layout(window=2, uniform=3, summary_keep=2), ids=lambda x: x.name
)
def test_live_segments_make_the_recorded_contexts(layout):
    """What the policy can build step by step is what training puts before the label."""
    prompt = builder(layout=layout, config=PromptConfig(separator=True, pose=PoseTokens()))
    made, _ = episode(3, SPACE, num_steps=7, max_labels=1)
    found = replace(made, metadata={"summaries": {"2": "first two", "4": "first four"}})
    live, summaries = [], {2: prompt.summary("first two"), 4: prompt.summary("first four")}
    paths, _ = prompt.paths(found)
    for t, (step, path) in enumerate(zip(found.steps, paths, strict=True)):
        full, pooled = prompt.observation([t], step.pose, found.start_pose)
        executed = prompt.action(SPACE.executed(step), is_supervised=False)
        live.append(StepTokens(full, pooled, executed))
        given = {s: text for s, text in summaries.items() if s <= t}
        instruction = prompt.instruction(found.instruction)
        context = context_of(prompt.root(), instruction, live, layout, t, given)
        before = np.concatenate([segment.keys for segment in context])
        whole = np.concatenate([segment.keys for segment in path.all_segments])
        assert np.array_equal(before, whole[: len(before)])
        assert len(before) == len(whole) - len(path.segments[-1])
        assert context[-1].token_ids[-1] == prompt.vocabulary.special("<act>")


def test_an_instruction_that_is_last_stands_behind_the_frame():
    config = PromptConfig(separator=True)
    found, _ = episode(0, SPACE, num_steps=2, max_labels=1)
    first, last = (
        builder(config=config, layout=Layout(instruction=place)) for place in ("first", "last")
    )
    act = first.vocabulary.special("<act>")
    text = list(first.vocabulary.text(TOKENIZER.encode(found.instruction)))
    for prompt, num_act in ((first, 2), (last, 1)):
        path = prompt.paths(found)[0][1]
        ids = path.tokens().token_ids.tolist()[: -len(path.segments[-1])]
        assert ids.count(act) == num_act  # behind each frame, or once, behind the instruction
        assert ids[-1] == act
    assert ids[-1 - len(text) : -1] == text


def test_episodes_of_one_group_share_the_rows_of_frames_that_they_both_saw():
    one, _ = episode(4, SPACE, num_steps=5, max_labels=1)
    other = [replace(step, frames={"front": f"other-{k}"}) for k, step in enumerate(one.steps)]
    steps = (*one.steps[:3], *other[3:])
    two = replace(one, instruction="the other way round", steps=steps)
    prompt = builder(layout=Layout(instruction="last"), config=PromptConfig(pose=PoseTokens()))
    tokens, keys = prompt.episodes((one, two))
    assert keys[:5] == tuple(step.frames["front"] for step in one.steps)
    assert len(keys) == 7
    assert [len(set(part.steps[4].full.frame_index.tolist()) - {-1}) for part in tokens] == [1, 1]
    shared = [a.full is b.full for a, b in zip(*(part.steps for part in tokens), strict=True)]
    assert shared == [True, True, True, False, False]
    paths, keys = prompt.paths(one, two)
    both = PrefixTree.from_paths(paths, num_frames=len(keys))
    alone = [PrefixTree.from_paths(prompt.paths(e)[0]).num_tokens for e in (one, two)]
    shared_tokens = len(prompt.root()) + 3 * len(tokens[0].steps[0].full) + 3  # the next pose
    assert both.num_tokens == sum(alone) - shared_tokens
    assert both.num_paths == 10


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"metadata 'summaries' has none for 20 steps and tree.history=summary needs one"),
        ({"summaries": "text"}, "is 'text'; give a mapping from steps to texts"),
        ({"summaries": {"0": "text"}}, "has '0': 'text'; allowed: steps from 1 on"),
        ({"summaries": {"soon": "text"}}, "has 'soon': 'text'"),
        ({"summaries": {"3": 4}}, "has '3': 4"),
    ],
)
def test_summaries_that_cannot_be_used_are_refused_in_one_line(given, message):
    made, _ = episode(0, SPACE, num_steps=20)
    found = replace(made, metadata=given)
    with pytest.raises(UserError, match=message) as caught:
        builder(layout=Layout("summary")).episode(found)
    assert "\n" not in str(caught.value)
    builder(layout=Layout("full")).episode(found)  # which uses none


def test_hidden_actions_are_never_context():
    found, _ = episode(2, SPACE)
    for actions in ("hidden", "visible"):
        prompt = builder(layout=Layout("full", actions))
        contexts = [path.tokens() for path in prompt.paths(found)[0]]
        seen = any(
            (tokens.token_ids[~tokens.is_supervised] < SPACE.num_tokens).any()
            for tokens in contexts
        )
        assert seen == (actions == "visible")


def test_pose_tokens_are_clipped_and_relative_to_the_start():
    pose = PoseTokens(grid_m=0.5, range_m=2.0, angle_deg=30.0)
    start = Pose.from_yaw((10.0, 0.0, 10.0), math.radians(90))  # looks along -X
    assert pose.num_tokens == 2 * 9 + 12
    assert pose.indices(start, start) == (4, 9 + 4, 18)
    ahead = Pose.from_yaw((8.9, 0.0, 10.0), math.radians(120))
    assert pose.indices(start, ahead) == (4 + 2, 9 + 4, 18 + 1)
    far = Pose.from_yaw((-100.0, 0.0, 100.0), math.radians(60))
    assert pose.indices(start, far) == (8, 9 + 8, 18 + 11)


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match=r"num_pooled >= 1"):
        builder(layout=Layout("pooled"), num_pooled=0)
    with pytest.raises(UserError, match="did you mean 'front'"):
        builder(config=PromptConfig(cameras=("frnt",)))
    with pytest.raises(UserError, match=r"actions\.cameras 'rear'"):
        builder(PointingSpace(cameras=("rear",)))
    with pytest.raises(UserError, match="has no depth"):
        builder(config=PromptConfig(depth=True))
    with pytest.raises(UserError, match=r"models\.prompt\.facts"):
        PromptConfig(facts="long")
    with pytest.raises(UserError, match=r"tree\.history"):
        Layout("windowed")
    with pytest.raises(UserError, match=r"tree\.actions"):
        Layout("full", "shown")
    found, _ = episode(0, SPACE)
    body = embodiment(num_cameras=2)
    with pytest.raises(UserError, match="no frame of camera 'left'"):
        builder(body=body).episode(found)
    with pytest.raises(UserError, match="decision=primitive"):
        builder(DiscreteSpace(), layout=Layout("full", "visible")).episode(found)


def test_equal_actions_share_one_segment():
    prompt = builder(ChunkSpace(length=2))
    one = prompt.action(ChunkSpace(length=2).decode((1, 1)).action, is_supervised=True)
    two = prompt.action(ChunkSpace(length=2).decode((1, 1)).action, is_supervised=True)
    other = prompt.action(ChunkSpace(length=2).decode((1, 1)).action, is_supervised=False)
    assert one is two
    assert one is not other


def test_streams_reach_the_model_by_their_own_placeholder():
    """Two cameras with the same image are told apart."""
    body = embodiment(num_cameras=2)
    (model, prompt), _ = small(SPACE, body=body)
    ids = [prompt.vocabulary.special(f"<{stream}>") for stream in prompt.streams]
    assert len(set(ids)) == 2
    assert model.own_embedding.num_embeddings == prompt.vocabulary.num_own
