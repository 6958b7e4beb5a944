"""Whether packing pays, what an epoch costs, and the pictures of both."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from test_episode_file import ENCODER, MODEL, OTHER, WALK, write_split

from tests.episodes.fixtures import streamvln
from vla_nav.actions.discrete import DiscreteSpace
from vla_nav.errors import UserError
from vla_nav.training.data_stats import StatsOptions, data_stats
from vla_nav.training.settings import PartitionSettings
from vla_nav.training.stats_cost import GpuSettings, epoch_cost, hours_text
from vla_nav.training.stats_pictures import histogram, write_pictures
from vla_nav.training.stats_table import stats_table
from vla_nav.tree import Layout


def counted(root: Path, layout: Layout, split: str = "val", **keywords: Any) -> dict[str, Any]:
    own = {name: keywords.pop(name) for name in ("worth_from", "max_episodes") if name in keywords}
    return data_stats(
        root,
        split,
        model=MODEL,
        encoder=ENCODER,
        action_space=DiscreteSpace(),
        layout=layout,
        options=StatsOptions(frame_tokens=9, pooled_tokens=2, **own),
        **keywords,
    )


def test_full_history_is_worth_packing_and_the_sentence_has_the_numbers(tmp_path: Path) -> None:
    found = counted(write_split(tmp_path), Layout("full", "hidden"))
    said = found["verdict"]
    assert (said["kind"], said["is_worth_packing"]) == ("worth", True)
    assert said["text"].startswith("Worth packing under full-hidden-first: 4 trees of 5.8 steps")
    assert f"{found['por']:.1%}" in said["text"]
    assert f"{found['flop_bound_with_vision']:.1f} x fewer FLOPs" in said["text"]
    assert said["text"].count(". ") == 0
    assert said["text"] in stats_table(found)


def test_a_window_of_one_frame_is_not_and_the_better_layout_is_named(tmp_path: Path) -> None:
    found = counted(write_split(tmp_path), Layout("window", "hidden", window=1), every=True)
    said = found["verdict"]
    assert (said["kind"], said["is_worth_packing"]) == ("not_worth", False)
    best = max(found["layouts"], key=lambda row: row["flop_bound_with_vision"])
    assert "because a window moves with every step" in said["text"]
    assert f"{best['layout']} with a tree per {best['group']} saves" in said["text"]
    generous = counted(tmp_path, Layout("window", "hidden", window=1), worth_from=1.0)
    assert generous["verdict"]["is_worth_packing"]


def test_short_episodes_are_the_reason_where_they_are(tmp_path: Path) -> None:
    root = write_split(tmp_path)
    found = counted(root, Layout("full", "hidden"), max_episodes=4, worth_from=50.0)
    assert "because the instruction stands" in found["verdict"]["text"]
    found["steps_per_episode"] = 1.2
    from vla_nav.training.stats_verdict import verdict

    assert "because episodes have only 1.2 steps" in verdict(found, worth_from=50.0).text


def test_a_tree_without_branches_is_called_a_chain(tmp_path: Path) -> None:
    """With past actions visible every path but the last is a prefix of the next one."""
    hidden = counted(write_split(tmp_path), Layout("full", "hidden"))
    visible = counted(tmp_path, Layout("full", "visible"))
    assert hidden["chain_share"] < 0.999 < visible["chain_share"] == 1.0
    assert visible["verdict"]["kind"] == "chain"
    assert "one plain causal sequence" in visible["verdict"]["text"]


def test_an_epoch_is_the_whole_split_at_the_stated_rate(tmp_path: Path) -> None:
    root = write_split(tmp_path)
    gpu = GpuSettings("Abacus", peak_tflops=1e-6, mfu=0.5)  # half a million FLOPs a second
    found = counted(root, Layout("full", "hidden"), gpu=gpu)
    cost = found["cost"]
    assert cost["flops_per_epoch"] == pytest.approx(4 * found["flops_per_episode"])
    assert cost["gpu_hours_per_epoch"] == pytest.approx(cost["flops_per_epoch"] / 5e5 / 3600)
    ratio = cost["gpu_hours_per_epoch_flat"] / cost["gpu_hours_per_epoch"]
    assert ratio == pytest.approx(found["flop_bound_with_vision"])
    assert "Abacus" in found["verdict"]["text"]
    one = epoch_cost(3.6e18, 7.2e18, GpuSettings("g", 1000.0, 1.0))
    assert (one["gpu_hours_per_epoch"], one["gpu_hours_per_epoch_flat"]) == (1.0, 2.0)
    assert [hours_text(h) for h in (0.001, 0.5, 3.25, 1234.5)] == [
        "3.6 s",
        "30 min",
        "3.2 h",
        "1,234 h",
    ]


@pytest.mark.parametrize(
    ("keywords", "text"),
    [
        ({"mfu": 0.0}, "stats.gpu.mfu=0.0: allowed: above 0, up to 1"),
        ({"mfu": 1.1}, "stats.gpu.mfu=1.1"),
        ({"peak_tflops": float("inf")}, "stats.gpu.peak_tflops=inf: allowed: above 0"),
    ],
)
def test_impossible_gpus_are_refused(keywords: dict[str, float], text: str) -> None:
    with pytest.raises(UserError) as caught:
        GpuSettings(**keywords)
    assert text in str(caught.value)


def test_trees_longer_than_a_pack_are_counted(tmp_path: Path) -> None:
    root = write_split(tmp_path)
    longest = counted(root, Layout())["tokens_per_tree"]["max"]
    assert counted(root, Layout(), pack_tokens=longest)["trees_longer_than_a_pack"] == 0
    found = counted(root, Layout(), pack_tokens=longest - 1)
    assert 1 <= found["trees_longer_than_a_pack"] <= 3
    assert f"training.pack_tokens is {longest - 1}" in stats_table(found)


def test_partitions_are_counted_as_training_cuts(tmp_path: Path) -> None:
    root = write_split(tmp_path)
    found = counted(root, Layout())
    assert found["partitions"] is None
    assert "\npartitions " not in stats_table(found)
    most = found["tokens_per_tree"]["max"]
    whole = counted(root, Layout(), partition=PartitionSettings(tokens=most))
    assert whole["partitions"]["trees"] == 0
    assert "none: no tree is longer" in stats_table(whole)
    cut = counted(root, Layout(), partition=PartitionSettings(tokens=most // 3))
    counts = cut["partitions"]
    assert counts["most_partitions"] >= 3
    assert counts["partitions"] >= counts["trees"] * 2
    assert 0 < counts["recomputed_tokens"] < counts["tree_tokens"] <= found["n_tree"]
    assert counts["live_tokens"] <= most // 3
    assert f"at most {counts['most_partitions']};" in stats_table(cut)
    kept = counted(root, Layout(), partition=PartitionSettings(tokens=most // 3, mode="keep"))
    assert kept["partitions"]["recomputed_tokens"] == 0
    assert kept["partitions"]["live_tokens"] >= counts["live_tokens"]


def test_histograms_hold_every_value_once() -> None:
    values = np.random.default_rng(3).integers(5, 400, 1000).tolist()
    found = histogram(values)
    assert sum(found["counts"]) == 1000
    assert len(found["edges"]) == len(found["counts"]) + 1 == 41
    one = histogram([7, 7, 7])
    assert (one["counts"], one["edges"]) == ([3], [7.0, 8.0])


def test_pictures_are_readable_and_the_same_each_time(tmp_path: Path) -> None:
    found = counted(write_split(tmp_path), Layout(window=2, uniform=2), every=True)
    paths = write_pictures(found, tmp_path / "a")
    assert [path.name for path in paths] == [
        "lengths.png",
        "lengths.svg",
        "layouts.png",
        "layouts.svg",
    ]
    for path in paths:
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert np.asarray(image.convert("L")).std() > 1  # something is drawn
        else:
            text = " ".join(ElementTree.parse(path).getroot().itertext())
            wanted = found["layouts"][0]["layout"] if "layouts" in path.name else "episodes"
            assert wanted in text
    again = write_pictures(found, tmp_path / "b")
    assert [p.read_bytes() for p in paths] == [p.read_bytes() for p in again]


def test_any_format_with_actions_is_counted_in_one_pass_a_layout(tmp_path: Path) -> None:
    expected = streamvln.write(tmp_path / "in")
    found = counted(expected.root, Layout("full", "hidden"), expected.split)
    assert found["episodes"] == len(expected.episodes)
    assert found["steps"] == sum(episode.num_steps or 0 for episode in expected.episodes)
    assert len(WALK) != len(OTHER)
    assert found["token_bound"] > 1
