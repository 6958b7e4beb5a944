"""The trees that benchmarks quote, and their flat side: the same tokens, targets and frames."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from vla_nav.errors import UserError
from vla_nav.profiling.flat import flat_packs
from vla_nav.profiling.synthetic import BranchShape, Forest, TreeShape, synthetic_tree
from vla_nav.tree import PrefixTree, pack, tree_stats


@pytest.mark.parametrize(
    ("text", "num_trees", "num_tokens", "num_paths", "longest"),
    [
        ("5x7+3@11", 1, 11 + 5 * 10, 5, 11 + 35 + 3),
        ("3*4x6+2@9", 3, 9 + 4 * 8, 4, 9 + 24 + 2),
        ("4x(3+20)@9", 1, 9 + 3 * 3 + 4 * 20, 4, 9 + 9 + 20),
        ("2^3x5+4@8", 1, 8 + 14 * 9, 14, 8 + 15 + 4),
        ("3^2x5+4@8", 1, 8 + 12 * 9, 12, 8 + 10 + 4),
    ],
)
def test_shapes_have_the_size_that_their_name_says(text, num_trees, num_tokens, num_paths, longest):
    trees = Forest.parse(text).trees()
    assert len(trees) == num_trees
    for tree in trees:
        ends = tree.node_start[tree.path_node + 1] - 1
        assert (tree.num_tokens, tree.num_paths) == (num_tokens, num_paths)
        assert tree.position_ids[ends].max() + 1 == longest
        assert tree.num_frames == Forest.parse(text).shape.num_frames


def test_names_are_read_back():
    for text in ("44x196+12", "6*60x64+16@256", "60x(68+204)", "2^6x64+12", "2*3^2x5+4@8"):
        assert str(Forest.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        *("44x", "x*4x6+2", "0*4x6+2", "-1^3x5+4", "2^3x(4+20)", "0x4+4", "-3x4+4", "2^0x4+4"),
        *("4x0+4", "4x4+0", "4x4+4@0", "60x(68+12)", "60x(-1+20)"),
    ],
)
def test_a_wrong_shape_is_one_line(text):
    with pytest.raises(UserError, match="allowed"):
        Forest.parse(text)


def test_factor_one_is_a_caterpillar():
    branching = synthetic_tree(BranchShape(6, 1, 7, 3))
    caterpillar = synthetic_tree(TreeShape(6, 7, 3))
    assert np.array_equal(branching.subtree_end, caterpillar.subtree_end)
    assert np.array_equal(branching.predictor_index, caterpillar.predictor_index)


def test_without_a_count_trees_fill_the_budget():
    forest = Forest.parse("5x7+3@11")
    assert [len(forest.trees(budget)) for budget in (1, 61, 121, 122, 400)] == [1, 1, 1, 2, 6]
    first, second = forest.trees(122)
    assert not np.array_equal(first.token_ids, second.token_ids)


@pytest.mark.parametrize("text", ["3*5x7+3@11", "2*4x(3+20)@9", "2*2^3x5+4@8"])
def test_flat_packs_hold_every_path_once(text):
    trees = Forest.parse(text).trees()
    packs = flat_packs(trees, 130)
    found = sorted(signature for part in packs for signature in _signatures(part))
    assert found == sorted(signature for tree in trees for signature in _path_signatures(tree))
    stats = [tree_stats(tree) for tree in trees]
    assert sum(part.num_tokens for part in packs) == sum(s.num_flat_tokens for s in stats)
    assert max(part.num_tokens for part in packs) <= 130
    assert sum(len(part.own_frames) for part in packs) == sum(s.num_flat_frames for s in stats)


def test_own_frames_show_what_the_common_table_shows():
    for part in flat_packs(Forest.parse("3*5x7+3@11").trees(), 130):
        own, common = part.with_own_frames().frame_index, part.packed.frame_index
        is_vision = common >= 0
        assert torch.equal(own >= 0, is_vision)
        assert torch.equal(part.own_frames[own[is_vision].long()], common[is_vision].long())
        assert torch.equal(part.packed.vision_index, is_vision.nonzero()[:, 0])


def test_a_budget_below_the_longest_path_is_refused():
    with pytest.raises(UserError, match=r"budget=48.*49 tokens"):
        flat_packs(Forest.parse("5x7+3@11").trees(), 48)


def _path_signatures(tree: PrefixTree) -> list[tuple]:
    """Ids, targets and weights of a tree's paths, by walking up its nodes."""
    found = []
    frames = pack([tree]).frame_index.numpy()
    for node in tree.path_node:
        runs = []
        while node >= 0:
            runs.append(np.arange(tree.node_start[node], tree.node_start[node + 1]))
            node = tree.node_parent[node]
        index = np.concatenate(runs[::-1])
        is_target = np.isin(index, tree.target_index)
        found.append(
            (
                tuple(tree.token_ids[index]),
                tuple(frames[index] >= 0),
                tuple(is_target),
                tree.num_paths,
            )
        )
    return found


def _signatures(part) -> list[tuple]:
    """The same of a flat pack, one entry per sequence."""
    packed, bounds = part.packed, part.cu_lengths.tolist()
    is_target = np.zeros(packed.num_tokens, dtype=bool)
    is_target[packed.target_index] = True
    found = []
    for number, (start, stop) in enumerate(pairwise(bounds)):
        assert packed.position_ids[start:stop].tolist() == list(range(stop - start))
        assert stop - start <= part.max_length
        found.append(
            (
                tuple(packed.token_ids[start:stop].tolist()),
                tuple((packed.frame_index[start:stop] >= 0).tolist()),
                tuple(is_target[start:stop]),
                int(packed.num_paths[number]),
            )
        )
    return found
