"""Drawings: mask and blocks against every pair, boxes that never overlap, files that open."""

from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.training.recorded import write_recorded
from tests.tree.random_paths import random_paths, seeds
from vla_nav.actions.waypoint import WaypointSpace
from vla_nav.commands.compose import run as run_command
from vla_nav.errors import UserError
from vla_nav.models.assembly import ModelConfig
from vla_nav.models.prompt import Layout
from vla_nav.training.settings import PartitionSettings
from vla_nav.training.shapes import FrameTokens
from vla_nav.tree import PrefixTree
from vla_nav.verification.drawing import figure_of, png_bytes, svg_bytes
from vla_nav.verification.drawing_mask import mask_blocks, mask_density
from vla_nav.verification.drawing_page import page_of
from vla_nav.verification.drawing_subject import DrawRecipe, drawing_of
from vla_nav.verification.drawing_tokens import (
    ACTION,
    FRAME,
    LABEL,
    POOLED,
    SPECIAL,
    TEXT,
    token_runs,
)
from vla_nav.verification.drawing_tree import tree_shape
from vla_nav.verification.drawing_words import Drawing


def pairs(tree: PrefixTree) -> np.ndarray:
    """(T, T) whether q sees k, by walking up the nodes: no use of subtree_end."""
    node = np.repeat(np.arange(tree.num_nodes), np.diff(tree.node_start))
    above: list[set[int]] = []
    for parent in tree.node_parent.tolist():
        above.append(set() if parent < 0 else above[parent] | {parent})
    size = tree.num_tokens
    return np.array(
        [
            [node[k] in above[node[q]] or (node[k] == node[q] and k <= q) for k in range(size)]
            for q in range(size)
        ]
    )


def drawn(layout: Layout, **keywords: object) -> Drawing:
    """A generated episode as a drawing; 3 tokens a frame, 1 pooled."""
    values: dict = {"num_steps": 6, **keywords}
    return drawing_of(
        DrawRecipe(
            model=ModelConfig(),
            frame_tokens=FrameTokens(3, 1),
            action_space=WaypointSpace(),
            layout=layout,
            **values,
        )
    )


@given(seeds(), st.integers(1, 40))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_every_cell_of_the_mask_is_the_mean_of_its_pairs(seed: int, max_cells: int) -> None:
    tree = PrefixTree.from_paths(random_paths(seed))
    density, edges = mask_density(tree.subtree_end, max_cells=max_cells)
    assert len(density) == min(max_cells, tree.num_tokens)
    seen = pairs(tree)
    for row in range(len(density)):
        for column in range(len(density)):
            part = seen[edges[row] : edges[row + 1], edges[column] : edges[column + 1]]
            assert density[row, column] == pytest.approx(part.mean())


@given(seeds(), st.sampled_from([1, 2, 3, 8]))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_blocks_are_dead_partial_or_full_as_their_pairs_are(seed: int, size: int) -> None:
    tree = PrefixTree.from_paths(random_paths(seed))
    blocks = mask_blocks(tree.subtree_end, block_size=size)
    num_blocks = -(-tree.num_tokens // size)
    seen = np.eye(num_blocks * size, dtype=bool)  # padding sees itself
    seen[: tree.num_tokens, : tree.num_tokens] = pairs(tree)
    live = 0
    for row in range(num_blocks):
        for column in range(num_blocks):
            part = seen[row * size : (row + 1) * size, column * size : (column + 1) * size]
            kind = blocks.kind[row, column]
            live += part.size if kind else 0
            if row == column:
                assert kind == 1  # the diagonal is always evaluated
            else:
                assert kind == (2 if part.all() else int(part.any()))
    assert blocks.live_density == pytest.approx(seen.sum() / live)
    assert blocks.num_full + blocks.num_partial + blocks.num_dead == num_blocks**2


def test_block_size_is_the_kernels_wherever_there_are_blocks_enough() -> None:
    def chain(num_tokens: int) -> np.ndarray:
        return np.full(num_tokens, num_tokens, dtype=np.int32)

    assert mask_blocks(chain(128 * 12)).size == 128
    assert mask_blocks(chain(128 * 256)).size == 128
    assert mask_blocks(chain(128 * 256 + 1)).size == 256
    assert mask_blocks(chain(100)).size == 8
    assert mask_blocks(chain(3)).size == 4


@given(seeds(), st.sampled_from([(1.0, 0.0), (0.5, 0.5), (3.0, 1.0)]))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_no_box_or_connector_of_the_tree_crosses_another(
    seed: int, spacing: tuple[float, float]
) -> None:
    tree = PrefixTree.from_paths(random_paths(seed))
    width, gap = spacing
    shape = tree_shape(tree, min_width=width, gap=gap)
    parents = tree.node_parent.tolist()
    firsts: dict[int, int] = {}
    for node, parent in enumerate(parents):
        if parent >= 0:
            firsts.setdefault(parent, node)
    heads: list[int] = []  # the first node of each node's heavy path
    boxes = list(zip(shape.left, shape.right, shape.lane, strict=True))
    for node, (left, right, lane) in enumerate(boxes):
        assert right - left >= max(width, np.diff(tree.node_start)[node])
        if parents[node] >= 0:
            above = shape.lane[parents[node]]
            assert (lane == above) == (firsts[parents[node]] == node)  # the heavy path is straight
            assert lane >= above
        heads.append(heads[parents[node]] if firsts.get(parents[node]) == node else node)
        for other in range(node):  # nodes of one heavy path follow each other
            low, high, line = boxes[other]
            if line == lane and heads[other] != heads[node]:
                assert right + gap <= low or high + gap <= left
    for node, parent in enumerate(parents):
        if parent < 0 or shape.lane[node] == shape.lane[parent]:
            continue
        x = shape.left[node]
        for left, right, lane in boxes:
            if shape.lane[parent] < lane < shape.lane[node]:
                assert not left < x < right


@pytest.mark.parametrize(
    ("layout", "kinds"),
    [
        (Layout("full", "hidden"), {TEXT, SPECIAL, FRAME, LABEL}),
        (Layout("pooled", "hidden"), {TEXT, SPECIAL, FRAME, POOLED, LABEL}),
        (Layout("pooled", "visible"), {TEXT, SPECIAL, FRAME, POOLED, ACTION, LABEL}),
        (Layout("summary", "hidden", summary_keep=2), {TEXT, SPECIAL, FRAME, LABEL}),
    ],
)
def test_runs_tile_the_pack_and_have_one_kind_each(layout: Layout, kinds: set[int]) -> None:
    drawing = drawn(layout)
    runs, tree = drawing.runs, drawing.tree
    assert set(drawing.kinds.tolist()) == kinds
    assert [run.start for run in runs] == [0, *(run.stop for run in runs[:-1])]
    assert runs[-1].stop == tree.num_tokens
    for run in runs:
        own = slice(run.start, run.stop)
        assert set(drawing.kinds[own].tolist()) == {run.kind}
        assert set(tree.frame_index[own].tolist()) == {run.frame}
        assert tree.node_start[run.node] <= run.start < run.stop <= tree.node_start[run.node + 1]
    frames = [run for run in runs if run.kind == FRAME]
    assert all(run.stop - run.start == 3 for run in frames)
    taught = [run for run in token_runs(tree, drawing.kinds) if run.kind == LABEL]
    assert sum(run.stop - run.start for run in taught) == len(tree.target_index)


class _Page(HTMLParser):
    """Every address that a page would load, its ids and its script."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "srcset", "data", "action"):
                self.addresses.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_data(self, data: str) -> None:
        self.text += data


def test_files_open_are_whole_and_need_no_network() -> None:
    drawing = drawn(Layout("pooled", "hidden"), num_steps=3)
    figure = figure_of(drawing)
    svg = svg_bytes(figure)
    assert svg == svg_bytes(figure_of(drawing))  # the same bytes again
    image = Image.open(io.BytesIO(png_bytes(figure)))
    image.load()
    assert image.width == 2400
    assert len(np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0)) > 8
    text = page_of(drawing, svg.decode())
    page = _Page()
    page.feed(text)
    assert page.addresses
    assert all(address.startswith(("#", "data:image/png;base64,")) for address in page.addresses)
    assert not re.search(r"@import|fetch\(|XMLHttpRequest|url\((?!#)", text)
    for run in drawing.runs:
        for panel in ("tree", "pack"):
            assert page.ids.count(f"{panel}-{run.node}-{run.start}") == 1
    nodes = json.loads(re.search(r"const nodes = (\{.*\});", text).group(1))
    assert nodes["parent"] == drawing.tree.node_parent.tolist()
    assert set(nodes["texts"]) == {str(run.start) for run in drawing.runs}
    assert "label: STOP" in nodes["texts"].values()
    stats = drawing.stats
    assert f"{stats.num_flat_tokens:,} tokens become one tree of {stats.num_tree_tokens:,}" in text


@pytest.mark.parametrize("mode", ["recompute", "keep"])
def test_partitions_are_drawn_under_the_tokens_that_they_own(mode: str) -> None:
    settings = PartitionSettings(tokens=20, mode=mode)
    drawing = drawn(Layout(), partition=settings)
    assert drawing.partitions is not None
    figure = figure_of(drawing)
    page = _Page()
    page.feed(text := page_of(drawing, svg_bytes(figure).decode()))
    owner = np.full(drawing.tree.num_tokens, -1)
    for part in drawing.partitions.parts:
        assert (owner[part.own.numpy()] == -1).all()
        owner[part.own.numpy()] = part.number
    begins = np.flatnonzero(np.diff(owner, prepend=-1)).tolist()  # where a bar has to begin
    drawn_bars = [name for name in page.ids if name.startswith("partition-")]
    assert drawn_bars.count(f"partition-{owner[0]}-0") == 1
    assert sorted(drawn_bars) == sorted(f"partition-{owner[start]}-{start}" for start in begins)
    assert f"Computed in {owner.max() + 1} partitions ({mode})" in text
    whole = drawn(Layout(), partition=PartitionSettings(tokens=drawing.tree.num_tokens))
    assert whole.partitions is None
    assert "partitions" not in page_of(whole, svg_bytes(figure_of(whole)).decode())


def test_a_generated_trajectory_has_a_leaf_per_step_and_instruction() -> None:
    drawing = drawn(Layout(instruction="last"), group="trajectory")
    assert "and 2 more instructions" in drawing.title
    assert drawing.tree.num_paths == 3 * 6
    assert drawing.stats.num_tree_frames == 6


def test_recorded_episodes_are_found_by_index_and_by_id(tmp_path: Path) -> None:
    write_recorded(tmp_path, num_episodes=4)
    keywords = {"data_path": str(tmp_path), "split": "train"}
    by_index = drawn(Layout(), episode=2, **keywords)
    assert by_index.title.startswith("Episode toy/train/00002: “Leave the ")
    for name in ("00002", "toy/train//00002"):
        same = drawn(Layout(), episode=name, **keywords)
        assert same.title == by_index.title
        assert same.tree.token_ids.tolist() == by_index.tree.token_ids.tolist()
    with pytest.raises(UserError, match=r"draw.episode=4: .* has 4 episodes; allowed: 0 to 3"):
        drawn(Layout(), episode=4, **keywords)
    with pytest.raises(UserError, match=r"draw.episode=tree: no such episode .*toy/train//00000"):
        drawn(Layout(), episode="tree", **keywords)
    with pytest.raises(UserError, match=r"draw.steps=0: allowed: whole numbers from 1 on"):
        drawn(Layout(), num_steps=0)


def test_the_command_writes_three_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["draw.steps=3", "draw.frame_tokens=4", "draw.pooled_tokens=1", "tree=visible_pooled"]
    assert run_command("draw", [*words, "paths.output_dir=out"]) == 0
    assert "pooled-visible-first" in capsys.readouterr().out
    for name in ("tree.png", "tree.svg", "tree.html"):
        assert (tmp_path / "out" / name).stat().st_size > 10_000
    assert run_command("draw", [*words, "draw.episode=-1", "paths.output_dir=out"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "draw.episode=-1" in error
