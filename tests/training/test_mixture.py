"""Mixtures: a tree is seen as often as its weight says; other bodies are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.training.recorded import body
from tests.training.tiny import ENCODER, OPTIONS, make_data, recipe, settings, train
from vla_nav.actions.waypoint import WaypointSpace
from vla_nav.attention.registry import backend
from vla_nav.commands.compose import compose_config
from vla_nav.commands.overrides import check_overrides
from vla_nav.episodes.lerobot_layout import Conventions
from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.episodes.types import Embodiment
from vla_nav.errors import UserError
from vla_nav.files import read_json
from vla_nav.models.assembly import ModelConfig, build_prompt
from vla_nav.models.backbone import BackboneConfig
from vla_nav.models.prompt import Layout
from vla_nav.training.batch import PackMaker
from vla_nav.training.datamodule import RecordedData
from vla_nav.training.mixture import EpochDraws, Source, read_sources, require_same_body
from vla_nav.training.packing import epoch_packs
from vla_nav.training.schedule import Budget
from vla_nav.training.settings import ValidationSettings
from vla_nav.vision.encoder import TimmEncoder

NODE = {"path": "demo/a", "split": "train"}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two data sets, of 13 and of 7 episodes, in other scenes."""
    roots = [tmp_path_factory.mktemp(name) for name in ("a", "b")]
    make_data(roots[0], num_episodes=13)
    make_data(roots[1], num_episodes=7, seed=5, num_scenes=3, split="extra")
    return roots[0], roots[1]


def data_of(sources: tuple[Source, ...], **changed: object) -> RecordedData:
    path = Path(sources[0].path)
    split = sources[0].split
    return RecordedData(
        path,
        "train",
        builder=build_prompt(
            ModelConfig(backbone=BackboneConfig(options=OPTIONS)),
            action_space=WaypointSpace(),
            embodiment=LeRobotDataset(path / "recorded" / split).embodiment,
            layout=Layout("full", "hidden"),
            num_full=4,
            num_pooled=1,
        ),
        encoder=TimmEncoder(**ENCODER),
        attention="sdpa",
        settings=settings(**{"validation": ValidationSettings(holdout_share=0.0), **changed}),
        sources=sources,
    )


def test_an_epoch_beyond_all_memory_is_refused() -> None:
    with pytest.raises(UserError, match=r"take 1\.3e\+13 trees an epoch.*smaller weights"):
        EpochDraws([13], [1e12], seed=0)


@pytest.mark.parametrize("weights", [(1.0, 2.5), (0.3, 1.0), (0.5, 0.25), (3.0, 1.7)])
def test_a_tree_is_seen_as_often_as_its_weight_says(weights: tuple[float, float]) -> None:
    sizes, num_epochs = (13, 7), 20
    draws = EpochDraws(sizes, weights, seed=3)
    seen = np.zeros(sum(sizes), dtype=int)
    for epoch in range(num_epochs):
        taken = draws(epoch)
        assert np.array_equal(taken, EpochDraws(sizes, weights, seed=3)(epoch))
        seen += np.bincount(taken, minlength=len(seen))
        by_source = np.array([np.sum(taken < 13), np.sum(taken >= 13)])
        assert (np.abs(by_source - np.array(sizes) * weights) <= 1).all()
    for trees, weight in zip((seen[:13], seen[13:]), weights, strict=True):
        assert trees.max() - trees.min() <= 1
        assert trees.mean() == pytest.approx(num_epochs * weight, abs=0.1)
    others = [EpochDraws(sizes, weights, seed=4)(epoch).tolist() for epoch in range(4)]
    assert others != [draws(epoch).tolist() for epoch in range(4)] or weights == (1.0, 1.0)


def test_weight_one_is_an_epoch_without_a_mixture() -> None:
    lengths = np.random.default_rng(0).integers(1, 40, 63)
    draws = EpochDraws((40, 23), (1.0, 1.0), seed=0)
    one, two = (
        epoch_packs(lengths, pack_tokens=97, seed=0, epoch=1, drawn=drawn)
        for drawn in (None, draws(1))
    )
    assert one == two


def test_trees_that_take_no_part_are_not_drawn() -> None:
    members = np.array([0, 2, 3, 5, 6, 9])  # of sources of four and of six trees
    draws = EpochDraws((4, 6), (1.0, 2.0), seed=0, members=members)
    assert members[draws(0)].tolist() == [0, 2, 3, 5, 5, 6, 6, 9, 9]
    with pytest.raises(UserError, match=r"take 0\.5 trees an epoch"):
        EpochDraws((5,), (0.1,), seed=0)


def test_a_mixture_is_read_as_it_is_written() -> None:
    assert read_sources({**NODE, "mixture": None}) == (Source("demo/a", "train", 1.0),)
    mixture = [{"weight": 2}, {"path": "demo/b", "split": "extra", "weight": 0.5}]
    assert read_sources({**NODE, "mixture": mixture}) == (
        Source("demo/a", "train", 2.0),
        Source("demo/b", "extra", 0.5),
    )
    written = "data.mixture=[{path:demo/b,split:extra,weight:0.5},{weight:2}]"
    check_overrides("train", ["data.path=demo/a", written])
    config = compose_config("train", ["data.path=demo/a", written])
    assert [source.weight for source in read_sources(config.data)] == [0.5, 2.0]


@pytest.mark.parametrize(
    ("mixture", "message"),
    [
        ("demo/b", r"data\.mixture=demo/b: needs a list"),
        ([], r"data\.mixture=\[\]: needs a list"),
        ([3], r"data\.mixture\[0\]=3: needs keys: path, split, weight"),
        ([{"wieght": 2}], r"unknown key of 'data\.mixture\[0\]': 'wieght' \(did you mean 'weight'"),
        ([{}, {"path": 7}], r"data\.mixture\[1\]\.path=7: needs text"),
        ([{"weight": 0}], r"data\.mixture\[0\]\.weight=0: needs a number above 0"),
        ([{"weight": float("nan")}], r"weight=nan: needs a number"),
        ([{"weight": True}], r"weight=True: needs a number"),
        ([{}, {"path": "demo/../demo/a"}], r"recorded/train is there twice"),
    ],
)
def test_anything_else_is_refused_in_one_line(mixture: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_sources({**NODE, "mixture": mixture})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"height_m": 0.9}, r"b/recorded/train was recorded with height_m=0.9 and .*a/.* with 1.5"),
        ({"is_sliding": False}, "is_sliding=False"),
        ({"cameras": body(32).cameras}, r"cameras=.*: 32.* and .*: 16"),
    ],
)
def test_another_body_is_refused(changed: dict[str, object], message: str) -> None:
    bodies = [body(), replace(body(), **changed)]

    def stated(made: Embodiment) -> Conventions:
        return Conventions("toy", "train", made, "primitive")

    pairs = [(Source(f"demo/{x}", "train"), stated(b)) for x, b in zip("ab", bodies, strict=True)]
    require_same_body([pairs[0], pairs[0]])
    with pytest.raises(UserError, match=message):
        require_same_body(pairs)


def test_packs_mix_the_frames_of_all_sources(two: tuple[Path, Path]) -> None:
    sources = (Source(str(two[0]), "train"), Source(str(two[1]), "extra", 2.0))
    made = data_of(sources)
    trees = made._train
    assert (trees.sizes, len(trees), made.num_episodes) == ([13, 7], 20, 20)
    assert len(set(trees.names())) == 20
    pack = trees.pack([2, 15, 14, 3, 15], PackMaker(backend("sdpa")))
    offset = pack.packed.frame_offset.tolist()
    for place, index in enumerate((2, 15, 14, 3, 15)):
        part, number = (trees.parts[0], index) if index < 13 else (trees.parts[1], index - 13)
        for k, step in enumerate(part.episodes[number].steps):
            pixels = part.episodes.frames.read(step.frames["front"])
            assert np.array_equal(pack.frames[offset[place] + k].numpy(), pixels)
    alone = data_of(sources[:1])
    assert alone.fingerprint == LeRobotDataset(two[0] / "recorded" / "train").fingerprint()
    assert len({alone.fingerprint, made.fingerprint, data_of(sources[1::-1]).fingerprint}) == 3
    assert trees.text_ids(range(13)) == alone.text_ids()
    assert trees.text_ids(range(20)) == trees.text_ids(range(13)) | trees.text_ids(range(13, 20))


def test_steps_of_a_mixture_are_equal_in_any_process_and_order(two: tuple[Path, Path]) -> None:
    sources = (Source(str(two[0]), "train", 0.5), Source(str(two[1]), "extra", 1.3))

    def steps(order: list[int], accumulate: int, num_ranks: int) -> dict[int, list[list[int]]]:
        made = data_of(sources, accumulate=accumulate, pack_tokens=150)
        orders = [made._order(rank, num_ranks) for rank in range(num_ranks)]
        return {k: sorted(sorted(p) for one in orders for p in one.step(k)) for k in order}

    expected = steps([0, 1, 2, 3, 9], 4, 1)
    assert len({str(packs) for packs in expected.values()}) == 5
    assert steps([9, 3, 0, 1, 2], 2, 2) == steps([2, 9, 1, 3, 0], 1, 4) == expected


def test_a_run_learns_from_its_mixture_and_says_so(two: tuple[Path, Path], tmp_path: Path) -> None:
    mixture = (Source(str(two[0]), "train", 0.5), Source(str(two[1]), "extra", 3.0))
    made = settings(budget=Budget(max_epochs=2), validation=ValidationSettings(holdout_share=0.0))
    result = train(recipe(two[0], settings=made, mixture=mixture), tmp_path / "run")
    assert result["episodes_seen"] == 13 + 2 * 3 * 7  # a half of 13 twice, thrice 7 twice
    stored = read_json(tmp_path / "run" / "policy" / "policy.json")
    assert stored["data"]["mixture"] == [source.as_json() for source in mixture]
    with pytest.raises(UserError, match="is the training split"):
        data_of(mixture, validation=ValidationSettings(split="train"))
    held = data_of(mixture, validation=ValidationSettings(holdout_share=0.4))
    assert 0 < held.num_validation == 20 - held.num_episodes
