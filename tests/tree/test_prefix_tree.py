"""The tree against its set-based definition: a tree token is a distinct prefix of the paths."""

from __future__ import annotations

import random
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings

from tests.tree.random_paths import expected_weights, random_paths, seeds, token_list
from vla_nav.tree import (
    Path,
    PrefixTree,
    Segment,
    Trunk,
    flatten,
    frame_segment,
    path_token_index,
    text_segment,
)

EXAMPLES = settings(max_examples=120, deadline=None, derandomize=True)


def prefixes_of(tree: PrefixTree) -> list[tuple]:
    """Each token's path from the root, read off pre-order and depth alone."""
    tokens = token_list(Path((Segment(tree.token_ids, tree.frame_index, tree.patch_index),)))
    chain: list = []
    found = []
    for token, depth in zip(tokens, tree.position_ids, strict=True):
        del chain[depth:]
        assert len(chain) == depth
        chain.append(token)
        found.append(tuple(chain))
    return found


@given(seeds())
@EXAMPLES
def test_tree_tokens_are_the_distinct_prefixes(seed):
    paths = random_paths(seed)
    tree = PrefixTree.from_paths(paths)
    expected = {
        tuple(tokens[: i + 1]) for tokens in map(token_list, paths) for i in range(len(tokens))
    }
    found = prefixes_of(tree)
    assert len(found) == len(set(found))
    assert set(found) == expected


@given(seeds())
@EXAMPLES
def test_subtree_end_says_exactly_who_descends_from_whom(seed):
    tree = PrefixTree.from_paths(random_paths(seed))
    prefixes = prefixes_of(tree)
    for k, prefix in enumerate(prefixes):
        for q, other in enumerate(prefixes):
            is_ancestor = other[: len(prefix)] == prefix
            assert (k <= q < tree.subtree_end[k]) == is_ancestor


@given(seeds())
@EXAMPLES
def test_weights_are_the_sums_over_supervising_paths(seed):
    paths = random_paths(seed)
    tree = PrefixTree.from_paths(paths)
    prefixes = prefixes_of(tree)
    found = {prefixes[i]: w for i, w in zip(tree.target_index, tree.loss_weights, strict=True)}
    # Coefficients are multiples of 1/2: sums are exact in any order.
    assert found == expected_weights(paths)


@given(seeds())
@EXAMPLES
def test_predictor_is_the_parent_token(seed):
    tree = PrefixTree.from_paths(random_paths(seed))
    prefixes = prefixes_of(tree)
    for target, predictor in zip(tree.target_index, tree.predictor_index, strict=True):
        assert prefixes[predictor] == prefixes[target][:-1]


@given(seeds())
@EXAMPLES
def test_order_of_paths_does_not_matter(seed):
    paths = random_paths(seed)
    tree = PrefixTree.from_paths(paths)
    random.Random(seed).shuffle(paths)
    other = PrefixTree.from_paths(paths)
    for item in fields(tree):
        if item.name.startswith("span_") or item.name in ("path_source", "path_span"):
            continue  # how supervision is shared, not what it is
        np.testing.assert_array_equal(getattr(tree, item.name), getattr(other, item.name))
    for one, two in zip(flatten(tree), flatten(other), strict=True):
        assert same_path(one, two)


@given(seeds())
@EXAMPLES
def test_flatten_returns_the_given_paths(seed):
    paths = random_paths(seed)
    tree = PrefixTree.from_paths(paths)
    flat = flatten(tree)
    assert sorted(tree.path_source) == list(range(len(paths)))
    for path, source in zip(flat, tree.path_source, strict=True):
        assert same_path(path, paths[source])
    again = PrefixTree.from_paths(flat)
    np.testing.assert_array_equal(again.token_ids, tree.token_ids)
    np.testing.assert_array_equal(again.subtree_end, tree.subtree_end)
    np.testing.assert_array_equal(again.loss_weights, tree.loss_weights)


@given(seeds())
@EXAMPLES
def test_heaviest_child_comes_first(seed):
    tree = PrefixTree.from_paths(random_paths(seed))
    end = tree.subtree_end[tree.node_start[:-1]]
    weight = end - tree.node_start[:-1]
    for parent in range(-1, tree.num_nodes):
        children = np.flatnonzero(tree.node_parent == parent)
        assert (np.diff(weight[children]) <= 0).all()


@given(seeds())
@EXAMPLES
def test_nodes_are_maximal_runs_between_branchings_and_path_ends(seed):
    tree = PrefixTree.from_paths(random_paths(seed))
    ends = set(tree.path_node.tolist())
    for node in range(tree.num_nodes):
        children = np.flatnonzero(tree.node_parent == node)
        assert len(children) != 1 or node in ends
        depth = tree.position_ids[tree.node_start[node] : tree.node_start[node + 1]]
        assert (np.diff(depth) == 1).all()


@given(seeds())
@EXAMPLES
def test_atomic_frames_share_all_tokens_of_a_frame_or_none(seed):
    paths = [drop_vision_supervision(path) for path in random_paths(seed)]
    tree = PrefixTree.from_paths(paths, frame_merging="atomic")
    for path, source in zip(flatten(tree), tree.path_source, strict=True):
        assert same_path(path, paths[source])
    # No node boundary inside a frame's run on any path: the runs lie in one node each.
    for number in range(tree.num_paths):
        index = path_token_index(tree, number)
        node = np.searchsorted(tree.node_start, index, side="right")
        frame = tree.frame_index[index]
        inside = (frame[1:] == frame[:-1]) & (frame[1:] >= 0)
        assert (node[1:][inside] == node[:-1][inside]).all()


def test_atomic_frames_part_before_the_frame():
    root = text_segment([5, 6])
    shared = frame_segment(9, 0, 3)
    longer = frame_segment(9, 0, 4)
    paths = [Path((root, shared)), Path((root, longer))]
    assert PrefixTree.from_paths(paths).num_tokens == 2 + 4
    assert PrefixTree.from_paths(paths, frame_merging="atomic").num_tokens == 2 + 3 + 4


def test_placeholder_ids_say_nothing_about_vision_tokens():
    root = text_segment([1])
    same = [Path((root, frame_segment(7, 0, 3))), Path((root, frame_segment(8, 0, 3)))]
    other = [Path((root, frame_segment(7, 0, 3))), Path((root, frame_segment(7, 1, 3)))]
    assert PrefixTree.from_paths(same).num_tokens == 4
    assert PrefixTree.from_paths(other).num_tokens == 7


def test_drawn_example():
    r, ab, x, y = (text_segment(ids) for ids in ([10], [1, 2], [3], [4]))
    x_taught = Segment(x.token_ids, x.frame_index, x.patch_index, True)
    y_taught = Segment(y.token_ids, y.frame_index, y.patch_index, True)
    tree = PrefixTree.from_paths(
        [Path((r, y_taught)), Path((r, ab, x_taught)), Path((r, ab, x_taught))]
    )
    assert tree.token_ids.tolist() == [10, 1, 2, 3, 4]
    assert tree.position_ids.tolist() == [0, 1, 2, 3, 1]
    assert tree.subtree_end.tolist() == [5, 4, 4, 4, 5]
    assert tree.target_index.tolist() == [3, 4]
    assert tree.predictor_index.tolist() == [2, 0]
    assert tree.loss_weights.tolist() == [2.0, 1.0]  # equal paths count twice
    assert tree.num_paths == 3


def test_shared_trunk_and_written_out_segments_give_one_tree():
    a, b, c = text_segment([1, 2]), text_segment([3]), text_segment([4, 5], is_supervised=True)
    linked = Path((c,), trunk=Trunk(Trunk(None, a), b))
    written = Path((a, b, c))
    for paths in ([linked], [written], [linked, written]):
        tree = PrefixTree.from_paths(paths)
        assert tree.token_ids.tolist() == [1, 2, 3, 4, 5]
        assert tree.loss_weights.tolist() == [float(len(paths))] * 2
    assert linked.all_segments == (a, b, c)


def test_zero_coefficient_keeps_the_target():
    a, b = text_segment([1]), text_segment([2], is_supervised=True)
    tree = PrefixTree.from_paths([Path((a, b), 1.0), Path((a, b), -1.0)])
    assert tree.target_index.tolist() == [1]
    assert tree.loss_weights.tolist() == [0.0]


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([], "at least one path"),
        ([Path(())], "at least one token"),
        ([Path((text_segment([]),))], "at least one token"),
        ([Path((text_segment([1], is_supervised=True),))], "nothing can predict"),
    ],
)
def test_impossible_paths_are_refused(paths, message):
    with pytest.raises(ValueError, match=message):
        PrefixTree.from_paths(paths)


def test_wrong_segments_and_coefficients_are_refused():
    with pytest.raises(ValueError, match="one shape"):
        Segment(np.zeros(2, np.int64), np.zeros(3, np.int32), np.zeros(2, np.int32))
    with pytest.raises(ValueError, match="finite"):
        Path((text_segment([1]),), float("nan"))
    with pytest.raises(ValueError, match="outside a table of 1"):
        PrefixTree.from_paths([Path((frame_segment(0, 1, 2),))], num_frames=1)


def same_path(one: Path, two: Path) -> bool:
    """Equal tokens, supervision and coefficient."""
    return (
        token_list(one) == token_list(two)
        and one.tokens().is_supervised.tolist() == two.tokens().is_supervised.tolist()
        and one.coefficient == two.coefficient
    )


def drop_vision_supervision(path: Path) -> Path:
    """The same path with text supervised only, and no text/vision mixture within a segment."""
    segments = [
        Segment(s.token_ids, s.frame_index, s.patch_index, False)
        if len(s) and s.frame_index[0] >= 0
        else s
        for s in path.all_segments
    ]
    return Path(tuple(segments), path.coefficient)
