"""Unrecorded VLN-CE episodes as steps, and the statistics of a split that nobody has rendered."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from vla_nav.actions.chunk import ChunkSpace
from vla_nav.actions.discrete import DiscreteSpace
from vla_nav.actions.waypoint import WaypointSpace
from vla_nav.episodes.types import MOVE_FORWARD, STOP, TURN_LEFT, TURN_RIGHT
from vla_nav.errors import UserError
from vla_nav.models.assembly import ModelConfig
from vla_nav.models.backbone import BackboneConfig
from vla_nav.models.prompt import PromptConfig
from vla_nav.models.tokenizer import load_tokenizer
from vla_nav.training.data_stats import StatsOptions, data_stats
from vla_nav.training.episode_file import EpisodeFile, open_episodes
from vla_nav.training.stats_table import stats_table
from vla_nav.tree import Layout
from vla_nav.tree.layout import every_layout

TEXTS = ("Leave the kitchen.", "Walk on.", "Turn right at the lamp and stop.")
WALK = [TURN_LEFT, TURN_LEFT, MOVE_FORWARD, MOVE_FORWARD, MOVE_FORWARD, TURN_RIGHT, STOP]
OTHER = [MOVE_FORWARD, STOP]
OPTIONS = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}
MODEL = ModelConfig(backbone=BackboneConfig(options=OPTIONS))
ENCODER = {"name": "no encoder is made where tokens are given", "num_pooled": 4}


def write_split(root: Path, *, has_truth: bool = True, ending: str = "") -> Path:
    """Trajectory 5 under three instructions and trajectory 6 under one, without any scene."""
    walks = [(1, 5, WALK), (2, 5, WALK), (3, 5, WALK), (4, 6, OTHER)]
    episodes, truths = [], {}
    for number, trajectory, actions in walks:
        episodes.append(
            {
                "episode_id": number,
                "trajectory_id": trajectory,
                "scene_id": "mp3d/S/S.glb",
                "start_position": [1.0, 0.2, -4.0],
                "start_rotation": [0.0, 0.5, 0.0, 0.8660254037844386],
                "instruction": {"instruction_text": TEXTS[(number - 1) % 3]},
                "goals": [{"position": [3.0, 0.2, 4.0], "radius": 3.0}],
            }
        )
        moves = actions.count(MOVE_FORWARD)
        places = [[1.0 + 0.25 * k, 0.2, -4.0] for k in range(moves + 1)]
        truths[str(number)] = {"actions": actions, "locations": places, "forward_steps": moves}
    folder = root / "val"
    folder.mkdir(parents=True)
    content: dict[str, Any] = {"episodes": episodes, "instruction_vocab": {"word_list": []}}
    (folder / f"val{ending}.json.gz").write_bytes(gzip.compress(json.dumps(content).encode()))
    if has_truth:
        truth = folder / f"val{ending}_gt.json.gz"
        truth.write_bytes(gzip.compress(json.dumps(truths).encode()))
    return root


def opened(root: Path, space: Any, **options: Any) -> EpisodeFile:
    found = open_episodes(root, "val", action_space=space, prompt=PromptConfig(), **options)
    assert isinstance(found, EpisodeFile)
    return found


def counted(root: Path, layout: Layout, space: Any | None = None, **keywords: Any) -> dict:
    options = StatsOptions(frame_tokens=9, pooled_tokens=2, **keywords.pop("options", {}))
    return data_stats(
        root,
        "val",
        model=MODEL,
        encoder=ENCODER,
        action_space=space or DiscreteSpace(),
        layout=layout,
        options=options,
        **keywords,
    )


@pytest.mark.parametrize(
    ("space", "decisions"),
    [
        (DiscreteSpace(), [(a,) for a in WALK]),
        (
            ChunkSpace(length=10, decision="turn_then_forward(2)"),
            [(2, 2, 1, 1), (1,), (3,), (0,)],
        ),
        (ChunkSpace(length=3), [(2, 2, 1), (1, 1, 3), (0,)]),
    ],
)
def test_every_decision_is_a_step_and_stop_is_one_of_its_own(
    tmp_path: Path, space: Any, decisions: list[tuple[int, ...]]
) -> None:
    episodes = opened(write_split(tmp_path), space)
    first = episodes[0]
    assert [step.executed for step in first.steps] == decisions
    assert [step.labels[0].primitives for step in first.steps] == decisions
    assert episodes.num_steps.tolist()[0] == len(decisions)
    done = 0
    for step, decision in zip(first.steps, decisions, strict=True):
        walked = WALK[:done].count(MOVE_FORWARD)
        assert step.pose.position == pytest.approx((1.0 + 0.25 * walked, 0.2, -4.0))
        done += len(decision)
        walked = WALK[:done].count(MOVE_FORWARD)
        end = step.labels[0].poses[-1].position
        assert end == pytest.approx((1.0 + 0.25 * walked, 0.2, -4.0))


def test_episodes_of_one_trajectory_share_their_frames_and_no_others(tmp_path: Path) -> None:
    episodes = opened(write_split(tmp_path), DiscreteSpace())
    frames = [{key for step in e.steps for key in step.frames.values()} for e in episodes]
    assert frames[0] == frames[1] == frames[2]
    assert len(frames[0]) == len(WALK)
    assert not frames[0] & frames[3]


def test_a_split_without_ground_truth_or_file_is_refused_in_one_line(tmp_path: Path) -> None:
    write_split(tmp_path / "a", has_truth=False)
    with pytest.raises(UserError, match=r"val_gt.json.gz: no ground-truth actions"):
        opened(tmp_path / "a", DiscreteSpace())
    with pytest.raises(UserError, match=r"b: no such file or folder"):
        opened(tmp_path / "b", DiscreteSpace())
    (tmp_path / "b").mkdir()
    with pytest.raises(UserError, match=r"no episode data of split 'val'; looked for recorded/"):
        opened(tmp_path / "b", DiscreteSpace())
    write_split(tmp_path / "c", ending="_guide")
    assert len(opened(tmp_path / "c", DiscreteSpace(), role="guide")) == 4
    with pytest.raises(UserError, match=r"val(_follower|.*'follower')"):
        opened(tmp_path / "c", DiscreteSpace(), role="follower")


def test_another_turn_angle_than_the_action_spaces_is_refused(tmp_path: Path) -> None:
    write_split(tmp_path)
    space = WaypointSpace(turn_deg=30.0)
    with pytest.raises(UserError, match=r"set actions\.turn_deg=15"):
        counted(tmp_path, Layout(), space)
    assert counted(tmp_path, Layout(), WaypointSpace(turn_deg=15.0))["episodes"] == 4


def test_lengths_are_those_counted_by_hand(tmp_path: Path) -> None:
    write_split(tmp_path)
    tokenizer = load_tokenizer(MODEL.tokenizer)
    said = [len(tokenizer.encode(text)) for text in (*TEXTS, TEXTS[0])]
    root = 1 + (tokenizer.bos_id is not None)
    steps = [len(WALK)] * 3 + [len(OTHER)]
    found = counted(tmp_path, Layout("full", "hidden"))
    both = list(zip(said, steps, strict=True))
    assert found["n_tree"] == sum(root + text + t * (9 + 1) for text, t in both)
    assert found["n_flat"] == sum(
        root + text + 9 * (k + 1) + 1 for text, t in both for k in range(t)
    )
    assert found["steps"] == sum(steps)
    window = counted(tmp_path, Layout("window", "hidden", window=2))
    assert window["n_flat"] == sum(
        root + text + 9 * min(k + 1, 2) + 1 for text, t in both for k in range(t)
    )
    # pooled: every frame once in full, all but the last also as history
    pooled = counted(tmp_path, Layout("pooled", "hidden"))
    assert pooled["n_tree"] == sum(root + text + t * 10 + (t - 1) * 2 for text, t in both)
    json.dumps(found, allow_nan=False)


def test_three_instructions_behind_the_frames_share_one_trajectory(tmp_path: Path) -> None:
    write_split(tmp_path)
    tokenizer = load_tokenizer(MODEL.tokenizer)
    said = [len(tokenizer.encode(text)) for text in TEXTS]
    root = 1 + (tokenizer.bos_id is not None)
    found = counted(tmp_path, Layout(instruction="last"), group="trajectory")
    assert found["trees"] == 2
    walk = root + len(WALK) * (9 + sum(text + 1 for text in said))
    other = root + len(OTHER) * (9 + said[0] + 1)
    assert found["n_tree"] == walk + other
    assert found["episodes"] == 4
    with pytest.raises(
        UserError, match=r"unknown tree.group 'walk'.*episode, rollouts, trajectory"
    ):
        counted(tmp_path, Layout(), group="walk")


def test_all_layouts_stand_in_one_table(tmp_path: Path) -> None:
    write_split(tmp_path)
    found = counted(
        tmp_path,
        Layout(window=2, uniform=3, summary_keep=2),
        every=True,
        options={"summary_tokens": 5, "summary_steps": 2},
    )
    names = [layout.name for layout in every_layout(window=2, uniform=3, summary_keep=2)]
    rows = {(row["layout"], row["group"]): row for row in found["layouts"]}
    assert {name for name, _ in rows} == set(names)
    assert len(rows) == len(names) + sum(name.endswith("last") for name in names)
    assert rows["full-hidden-first", "episode"]["n_flat"] == found["n_flat"]
    # Summaries at steps 2, 4, 6 of the long walk, each used once two frames remain behind it.
    tokenizer = load_tokenizer(MODEL.tokenizer)
    root = 1 + (tokenizer.bos_id is not None)
    flat = 0
    for text, steps in (*((t, len(WALK)) for t in TEXTS), (TEXTS[0], len(OTHER))):
        for t in range(steps):
            start = max((s for s in (2, 4, 6) if s <= t - 1), default=0)
            length = root + len(tokenizer.encode(text)) + 9 * (t + 1 - start) + 1
            flat += length + (5 if start else 0)
    assert rows["summary(1,2)-hidden-first", "episode"]["n_flat"] == flat
    for row in rows.values():
        assert row["token_bound"] >= 1
    table = stats_table(found)
    assert all(table.count(f"\n{name} ") == 1 + name.endswith("last") for name in names)
    without = StatsOptions(frame_tokens=9, pooled_tokens=0)
    few = data_stats(
        tmp_path,
        "val",
        model=MODEL,
        encoder=ENCODER,
        action_space=DiscreteSpace(),
        layout=Layout(),
        every=True,
        options=without,
    )
    assert not any(row["layout"].startswith("pooled") for row in few["layouts"])


@pytest.mark.parametrize(
    "options", [{"max_episodes": 0}, {"summary_tokens": 0}, {"summary_steps": 0}]
)
def test_impossible_options_name_key_value_and_range(options: dict[str, int]) -> None:
    (name, value), *_ = options.items()
    with pytest.raises(UserError, match=rf"stats.{name}={value}: allowed: 1 and more"):
        StatsOptions(**options)


@pytest.mark.skipif(
    not os.environ.get("VLA_NAV_REAL_DATA"), reason="VLA_NAV_REAL_DATA names no folder of real data"
)
def test_full_history_of_r2r_ce_shares_about_thirty_times() -> None:
    root = next(Path(os.environ["VLA_NAV_REAL_DATA"]).glob("**/val_unseen/val_unseen_gt.json.gz"))
    found = data_stats(
        root.parents[1],
        "val_unseen",
        model=MODEL,
        encoder=ENCODER,
        action_space=DiscreteSpace(),
        layout=Layout("full", "hidden"),
        options=StatsOptions(max_episodes=60, frame_tokens=196),
    )
    assert 50 < found["steps_per_episode"] < 65
    assert 27 < found["token_bound"] < 34
    assert found["pair_bound"] < found["flop_bound"] < found["token_bound"]
