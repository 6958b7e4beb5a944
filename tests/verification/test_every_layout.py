"""Every layout of random episodes equals its flat paths; every step is taught exactly once."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tree.episodes import token_episode
from tests.tree.random_paths import expected_weights, token_list
from tests.verification.episode_samples import (
    episode_sample,
    layouts,
    random_episode,
    supervisions,
)
from tests.verification.random_samples import samples
from tests.verification.steps import (
    Bound,
    assert_equal_steps,
    flat_step,
    target_keys,
    tree_step,
    trees_of,
)
from tests.verification.tiny_models import TinyVLA, with_float64_norms
from vla_nav.tree import Layout, PrefixTree, context_of, pack, paths_of
from vla_nav.tree.layout import every_layout

EXACT = Bound(logits=1e-12, loss=1e-12, gradients=1e-12, parameters=1e-10)
EVERY = every_layout(window=3, uniform=3, summary_every=2, summary_keep=2)
MODEL = with_float64_norms(TinyVLA(num_layers=1))


@given(
    st.lists(
        st.builds(episode_sample, st.integers(0, 2**16), layouts(), supervisions()),
        min_size=1,
        max_size=2,
    )
)
@settings(max_examples=20, deadline=None, derandomize=True)
def test_random_episodes_under_random_layouts_are_exact(forest):
    assert_equal_steps(
        tree_step(MODEL, forest, "path_mean"), flat_step(MODEL, forest, "path_mean"), EXACT
    )


@pytest.mark.parametrize("layout", EVERY, ids=lambda layout: layout.name)
@pytest.mark.parametrize("num_steps", [1, 4])
def test_every_layout_from_an_empty_history_on_is_exact(layout, num_steps):
    episode = random_episode(5, num_steps=num_steps)
    forest = [episode_sample(5, layout)]
    forest[0] = type(forest[0])(paths_of(episode, layout), forest[0].frames)
    assert_equal_steps(
        tree_step(MODEL, forest, "token_mean"), flat_step(MODEL, forest, "token_mean"), EXACT
    )


@given(samples(max_trees=3, is_signed=True))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_weights_are_the_flat_counts_token_by_token(forest):
    packed = pack(trees_of(forest))
    found = dict(zip(target_keys(packed), packed.loss_weights.tolist(), strict=True))
    expected = {
        (number, *prefix): weight
        for number, sample in enumerate(forest)
        for prefix, weight in expected_weights(list(sample.paths)).items()
    }
    assert found.keys() == expected.keys()
    for key, weight in expected.items():
        assert found[key] == pytest.approx(weight, rel=1e-6, abs=1e-12)
    flat = sum(
        path.coefficient * int(path.tokens().is_supervised.sum())
        for sample in forest
        for path in sample.paths
    )
    assert float(packed.loss_weights.double().sum()) == pytest.approx(flat, rel=1e-6, abs=1e-6)


@given(st.integers(0, 2**16), layouts())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_own_labels_are_taught_exactly_once_stop_included(seed, layout):
    episode = random_episode(seed)
    paths = paths_of(episode, layout, supervise="own")
    assert taught_by(paths) == to_teach(episode, layout)
    assert episode.steps[-1].labels  # STOP's
    # The mistakes: the last step is lost with a window that is not full; a step is taught twice.
    assert taught_by(paths[:-1]) != to_teach(episode, layout)
    assert taught_by((*paths, paths[0])) != to_teach(episode, layout)


def to_teach(episode, layout):
    """(context, label) -> how often: every label of every step that a line has of its own."""
    lines = [(0, episode.steps, episode.summaries)]
    for branch in episode.branches:
        held = {s: text for s, text in episode.summaries.items() if s <= branch.step}
        lines.append((branch.step, (*episode.steps[: branch.step], *branch.steps), held))
    expected = Counter()
    for instruction in episode.instructions:
        for first, steps, summaries in lines:
            for t in range(first, len(steps)):
                context = context_of(episode.root, instruction, steps, layout, t, summaries)
                before = tuple(key for part in context for key in part.keys.tolist())
                for label in steps[t].labels:
                    expected[before, tuple(label.tokens.token_ids.tolist())] += 1
    return expected


def taught_by(paths):
    """The same, read off the paths: a path's targets are its end and nothing else."""
    found = Counter()
    for path in paths:
        tokens = path.tokens()
        cut = int(tokens.is_supervised.argmax())
        assert tokens.is_supervised[cut:].all()
        keys = [key for part in path.all_segments for key in part.keys.tolist()]
        found[tuple(keys[:cut]), tuple(tokens.token_ids[cut:].tolist())] += 1
    return found


@given(samples(max_trees=2), st.randoms(use_true_random=False))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_the_order_of_paths_does_not_matter(forest, rng):
    packed = pack(trees_of(forest))
    shuffled = []
    for sample in forest:
        paths = list(sample.paths)
        rng.shuffle(paths)
        shuffled.append(type(sample)(tuple(paths), sample.frames))
    again = pack(trees_of(shuffled))
    for name in ("token_ids", "subtree_end", "position_ids", "predictor_index", "target_ids"):
        assert torch.equal(getattr(packed, name), getattr(again, name)), name
    # Sums of coefficients in another order.
    assert torch.allclose(packed.loss_weights, again.loss_weights, rtol=1e-6, atol=1e-6)


def test_supervising_all_counts_the_paths_through_a_token():
    # The article's g_i: full history, visible actions, everything executed as taught.
    episode = token_episode(4, follow=1.0)
    paths = paths_of(episode, Layout("full", "visible"), supervise="all")
    tree = PrefixTree.from_paths(paths)
    assert tree.num_tokens == len(token_list(paths[-1]))  # one chain
    through = [sum(len(token_list(path)) > i for path in paths) for i in tree.target_index]
    assert tree.loss_weights.tolist() == through
