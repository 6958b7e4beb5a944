"""Batches hold what the recorded episodes say: frames, labels, one tree per episode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.training.tiny import ENCODER, OPTIONS, labels_of, make_data, settings
from vla_nav.actions.discrete import DiscreteSpace
from vla_nav.actions.waypoint import WaypointSpace
from vla_nav.attention.registry import backend
from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.errors import UserError
from vla_nav.models.assembly import ModelConfig, build_prompt
from vla_nav.models.backbone import BackboneConfig
from vla_nav.models.prompt import Layout, PromptBuilder
from vla_nav.training.batch import Batch, PackMaker
from vla_nav.training.datamodule import RecordedData
from vla_nav.training.dataset import PackDataset, RecordedTrees, StepDataset, StepSampler
from vla_nav.training.held_out import held_out
from vla_nav.training.packing import PackOrder, sequential_packs
from vla_nav.training.recorded_split import open_frames
from vla_nav.training.settings import TrainingSettings, ValidationSettings
from vla_nav.tree import every_layout, flatten
from vla_nav.vision.encoder import TimmEncoder

LAYOUTS = every_layout(window=2, uniform=3, summary_keep=1)
by_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"), num_episodes=13)


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five trajectories with two instructions each."""
    return make_data(tmp_path_factory.mktemp("routes"), num_episodes=5, num_instructions=2)


@pytest.fixture(scope="module")
def encoder() -> TimmEncoder:
    return TimmEncoder(**ENCODER)


def prompt(data: Path, layout: Layout, space: object = None) -> PromptBuilder:
    return build_prompt(
        ModelConfig(backbone=BackboneConfig(options=OPTIONS)),
        action_space=space or WaypointSpace(),
        embodiment=LeRobotDataset(data / "recorded" / "train").embodiment,
        layout=layout,
        num_full=4,
        num_pooled=1,
    )


def trees(
    data: Path, encoder: TimmEncoder, layout: Layout, group: str = "episode"
) -> RecordedTrees:
    episodes = LeRobotDataset(data / "recorded" / "train")
    frames = open_frames(data, "train", encoder)
    return RecordedTrees(episodes, prompt(data, layout), frames, group=group)


def recorded_data(
    data: Path, encoder: TimmEncoder, made: TrainingSettings, space: object = None
) -> RecordedData:
    return RecordedData(
        data,
        "train",
        builder=prompt(data, LAYOUTS[0], space),
        encoder=encoder,
        attention="sdpa",
        settings=made,
    )


@by_layout
@pytest.mark.parametrize("group", ["episode", "trajectory"])
def test_lengths_bound_the_trees_closely(
    routes: Path, encoder: TimmEncoder, layout: Layout, group: str
) -> None:
    made = trees(routes, encoder, layout, group)
    bound = made.lengths()
    made = trees(routes, encoder, layout, group)  # nothing built yet
    real = np.array([made[index].tree.num_tokens for index in range(len(made))])
    assert (real <= bound).all()
    # STOP saves two tokens; where actions are visible, labels and executed actions can merge.
    num_actions = made.episodes.num_steps.max() if layout.actions == "visible" else 0
    per_episode = 2 + 3 * num_actions * (3 if layout.history == "uniform" else 1)
    merged = {text: len(made.builder.instruction(text)) for text in made.episodes.instructions()}
    shared = min(merged.values()) if group == "trajectory" else 0  # their common beginning
    assert (bound - real).max() <= len(made.members[0]) * (per_episode + shared)


@by_layout
def test_every_label_is_supervised_once(routes: Path, encoder: TimmEncoder, layout: Layout) -> None:
    made = trees(routes, encoder, layout)
    labels = labels_of(routes)
    for index in range(len(made)):
        tree = made[index].tree
        assert tree.num_paths == labels[index]
        supervised = sum(int(path.tokens().is_supervised.sum()) for path in flatten(tree))
        assert supervised == int(tree.loss_weights.sum())


def test_episodes_of_a_trajectory_are_one_tree_that_shares_their_frames(
    routes: Path, encoder: TimmEncoder
) -> None:
    layout = Layout(instruction="last")
    made = trees(routes, encoder, layout, "trajectory")
    alone = trees(routes, encoder, layout)
    assert (len(made), len(alone)) == (5, 10)
    episodes = list(made.episodes)
    labels = labels_of(routes)
    for index, numbers in enumerate(made.members):
        assert len({episodes[number].metadata["trajectory_id"] for number in numbers}) == 1
        assert len({episodes[number].instruction for number in numbers}) == 2
        tree, rows = made[index]
        assert tree.num_paths == labels[list(numbers)].sum()
        assert np.array_equal(rows, alone[numbers[0]].rows)  # the frames of both, once
        frames = np.flatnonzero(tree.frame_index >= 0)
        assert len(frames) == 4 * len(episodes[numbers[0]].steps)
    assert [name.rpartition("/")[2] for name in made.names()] == [
        f"{number:05d}-0" for number in range(5)
    ]
    assert made.scene_ids() == [f"train-scene-{number}" for number in range(5)]
    assert made.text_ids(range(5)) == alone.text_ids(range(10))


def test_text_rows_of_summaries_are_used_where_the_layout_shows_them(
    routes: Path, encoder: TimmEncoder
) -> None:
    with_text, without = (
        trees(routes, encoder, Layout(history, summary_keep=1)) for history in ("summary", "full")
    )
    for made in (with_text, without):
        num_own = made.builder.vocabulary.num_own
        shown = {int(token) for k in range(10) for token in made[k].tree.token_ids}
        texts = {0, *(token - num_own for token in shown if token >= num_own)}
        assert made.text_ids(range(10)) == texts
    assert with_text.text_ids(range(10)) > without.text_ids(range(10))


def test_a_group_that_the_data_cannot_make_is_refused(
    data: Path, routes: Path, encoder: TimmEncoder
) -> None:
    with pytest.raises(UserError, match=r"needs metadata 'trajectory_id' and episode toy/train//0"):
        trees(data, encoder, LAYOUTS[0], "trajectory")
    with pytest.raises(UserError, match=r"unknown tree.group 'trajectories'"):
        trees(routes, encoder, LAYOUTS[0], "trajectories")


def test_a_packs_frames_are_the_recorded_pixels_in_frame_table_order(
    data: Path, encoder: TimmEncoder
) -> None:
    made = trees(data, encoder, LAYOUTS[0])
    pack = made.pack([4, 1, 9], PackMaker(backend("sdpa")))
    offset = pack.packed.frame_offset.tolist()
    for place, index in enumerate((4, 1, 9)):
        episode = made.episodes[index]
        assert offset[place + 1] - offset[place] == len(episode.steps)
        for number, step in enumerate(episode.steps):
            pixels = made.episodes.frames.read(step.frames["front"])
            assert np.array_equal(pack.frames[offset[place] + number].numpy(), pixels)


def test_step_batches_are_equal_in_any_process_and_order(data: Path, encoder: TimmEncoder) -> None:
    def steps(order: list[int]) -> dict[int, Batch]:
        made = trees(data, encoder, LAYOUTS[0])
        lengths = made.lengths()
        dataset = StepDataset(
            made,
            range(len(made)),
            PackOrder(lengths, pack_tokens=130, accumulate=2, seed=1),
            PackMaker(backend("sdpa")),
        )
        return {step: dataset[step] for step in order}

    one, two = steps([0, 1, 2, 7]), steps([7, 2, 0, 1])
    for step, batch in one.items():
        other = two[step]
        assert batch.num_tokens == other.num_tokens <= 2 * 130
        assert (batch.step, batch.epoch, len(batch.packs)) == (step, other.epoch, 2)
        for mine, yours in zip(batch.packs, other.packs, strict=True):
            assert torch.equal(mine.packed.token_ids, yours.packed.token_ids)
            assert torch.equal(mine.frames, yours.frames)


def test_validation_packs_share_out_over_ranks(data: Path, encoder: TimmEncoder) -> None:
    made = trees(data, encoder, LAYOUTS[0])

    def targets(rank: int, num_ranks: int) -> int:
        dataset = PackDataset(
            made,
            [1, 2, 5, 7, 8],
            made.lengths(),
            pack_tokens=100,
            make_pack=PackMaker(backend("sdpa")),
            rank=rank,
            num_ranks=num_ranks,
        )
        assert len(dataset) == -(-whole // num_ranks)
        packs = [pack for k in range(len(dataset)) for pack in dataset[k].packs]
        return sum(len(pack.packed.target_ids) for pack in packs)

    whole = len(sequential_packs(made.lengths()[[1, 2, 5, 7, 8]], pack_tokens=100))
    assert targets(0, 1) == targets(0, 2) + targets(1, 2) > 0
    assert sum(targets(rank, 7) for rank in range(7)) == targets(0, 1)  # some ranks have none


def test_held_out_scenes_are_never_trained_on(data: Path, encoder: TimmEncoder) -> None:
    made = recorded_data(data, encoder, settings())
    episodes = LeRobotDataset(data / "recorded" / "train")
    scenes = [episode.scene_id for episode in episodes]
    mask = held_out(scenes, 0.2, 0)
    assert 0 < mask.sum() == made.num_validation < len(scenes)
    outside = {scene for scene, out in zip(scenes, mask, strict=True) if not out}
    assert outside.isdisjoint(scene for scene, out in zip(scenes, mask, strict=True) if out)
    assert made.num_episodes + made.num_validation == len(scenes)
    assert held_out(scenes, 0.0, 0).sum() == 0
    with pytest.raises(UserError, match="holdout_share"):
        held_out(["one"], 0.5, 0)


def test_a_trajectory_is_never_split_between_training_and_validation(
    routes: Path, encoder: TimmEncoder
) -> None:
    made = RecordedData(
        routes,
        "train",
        builder=prompt(routes, Layout(instruction="last")),
        encoder=encoder,
        attention="sdpa",
        settings=settings(validation=ValidationSettings(holdout_share=0.4), pack_tokens=400),
        group="trajectory",
    )
    assert (made.num_episodes, made.num_validation) == (6, 4)  # two instructions for each


def test_sampler_begins_where_it_is_told() -> None:
    assert list(StepSampler(3, 6)) == [3, 4, 5]
    endless = iter(StepSampler(2, None))
    assert [next(endless) for _ in range(3)] == [2, 3, 4]


def test_faults_of_data_and_configuration_are_one_clear_line(
    data: Path, encoder: TimmEncoder, tmp_path: Path
) -> None:
    cases = [
        (settings(pack_tokens=20), None, r"pack_tokens=20: episode toy/train//\d+ has \d+ tokens"),
        (
            settings(validation=ValidationSettings(split="val_unseen")),
            None,
            r"recorded/val_unseen: no recorded data set",
        ),
        (settings(validation=ValidationSettings(split="train")), None, "is the training split"),
        (settings(), DiscreteSpace(), r"recorded with decision turn_then_forward\(4\)"),
        (settings(), WaypointSpace(turn_deg=15.0), r"recorded with turn_deg=30.0"),
    ]
    for made, space, message in cases:
        with pytest.raises(UserError, match=message) as caught:
            recorded_data(data, encoder, made, space)
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"no pixel cache .* vision\.image_size=16"):
        open_frames(tmp_path, "train", encoder)
    with pytest.raises(UserError, match="no finished feature cache"):
        open_frames(data, "train", TimmEncoder(**{**ENCODER, "freeze": True}))
