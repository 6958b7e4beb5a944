"""The four layouts: which tokens each step sees, what it is taught, and what nobody may see."""

from __future__ import annotations

import pytest

from tests.tree.episodes import token_episode
from tests.tree.random_paths import token_list
from vla_nav.errors import UserError
from vla_nav.tree import (
    EpisodeTokens,
    Label,
    Layout,
    Path,
    PrefixTree,
    StepTokens,
    frame_segment,
    paths_of,
    text_segment,
    tree_stats,
)

LAYOUTS = [(h, a) for h in ("full", "pooled") for a in ("hidden", "visible")]


def expected_path(episode, t, label, history, actions):
    """The context of step t written out from the words of the design."""
    parts = [episode.root]
    for i, step in enumerate(episode.steps[: t + 1]):
        if history == "full":
            parts.append(step.full)
        elif i < t:
            parts.append(step.pooled)
        if i < t and actions == "visible":
            parts.append(step.executed)
    if history == "pooled":
        parts.append(episode.steps[t].full)
    return token_list(Path((*parts, label)))


@pytest.mark.parametrize(("history", "actions"), LAYOUTS)
def test_every_step_sees_what_the_design_says_and_is_taught_once(history, actions):
    episode = token_episode(6, num_labels=2)
    paths = paths_of(episode, Layout(history, actions))
    assert len(paths) == 12
    for number, path in enumerate(paths):
        t, label = divmod(number, 2)
        label = episode.steps[t].labels[label].tokens
        assert token_list(path) == expected_path(episode, t, label, history, actions)
        flags = path.tokens().is_supervised
        assert flags[-len(label) :].all()
        assert flags.sum() == len(label)


@pytest.mark.parametrize(("history", "actions"), LAYOUTS)
@pytest.mark.parametrize("num_steps", [1, 4, 31, 32, 33, 64, 87])
def test_every_step_including_stop_is_supervised_exactly_once(history, actions, num_steps):
    episode = token_episode(num_steps, full=2, pooled=1)
    tree = PrefixTree.from_paths(paths_of(episode, Layout(history, actions)))
    num_taught = sum(len(step.labels[0].tokens) for step in episode.steps)
    assert tree.num_paths == num_steps
    assert tree.loss_weights.sum() == num_taught
    assert (tree.loss_weights == 1).all()


def test_hidden_actions_are_nobodys_context():
    episode = token_episode(5)
    for history in ("full", "pooled"):
        tree = PrefixTree.from_paths(paths_of(episode, Layout(history, "hidden")))
        action_ids = {int(i) for step in episode.steps for i in step.labels[0].tokens.token_ids}
        for k in range(tree.num_tokens):
            if tree.frame_index[k] < 0 and int(tree.token_ids[k]) in action_ids:
                # Only the rest of its own label sees it.
                assert tree.subtree_end[k] - k <= 3
                assert (tree.frame_index[k : tree.subtree_end[k]] < 0).all()


def test_full_hidden_is_a_caterpillar_of_the_expected_size():
    episode = token_episode(8, root=7, full=4)
    labels = sum(len(step.labels[0].tokens) for step in episode.steps)
    tree = PrefixTree.from_paths(paths_of(episode, Layout("full", "hidden")))
    assert tree.num_tokens == 7 + 8 * 4 + labels
    # The trunk is the first run: contiguous up to the last label.
    assert tree.position_ids[: 7 + 8 * 4].tolist() == list(range(7 + 8 * 4))


def test_full_visible_merges_labels_with_equal_executed_actions():
    always = token_episode(8, follow=1.0)
    tree = PrefixTree.from_paths(paths_of(always, Layout("full", "visible")))
    assert tree.num_tokens == tree_stats(tree).num_tree_tokens
    assert (tree.subtree_end == tree.num_tokens).sum() >= tree.num_tokens - 3
    assert tree.num_tokens == max(tree.position_ids) + 1  # one causal chain
    never = token_episode(8, follow=0.0, seed=1)
    other = PrefixTree.from_paths(paths_of(never, Layout("full", "visible")))
    assert other.num_tokens > max(other.position_ids) + 1


def test_supervise_all_gives_the_path_counts():
    episode = token_episode(6, follow=1.0)
    tree = PrefixTree.from_paths(paths_of(episode, Layout("full", "visible"), supervise="all"))
    expected = [
        6.0 - t for t, step in enumerate(episode.steps) for _ in step.labels[0].tokens.token_ids
    ]
    assert tree.loss_weights.tolist() == expected


def test_supervise_all_never_teaches_an_action_that_no_expert_taught():
    label, wrong = text_segment([31], is_supervised=True), text_segment([33])
    steps = tuple(
        StepTokens(
            frame_segment(29, t, 2), frame_segment(29, t, 1, first=2), wrong, (Label(label),)
        )
        for t in range(3)
    )
    episode = EpisodeTokens(text_segment([1, 2]), (text_segment(()),), steps)
    for history in ("full", "pooled"):
        paths = paths_of(episode, Layout(history, "visible"), supervise="all")
        tree = PrefixTree.from_paths(paths)
        assert tree.token_ids[tree.target_index].tolist() == [31, 31, 31]


def test_steps_without_a_label_add_to_the_context_only():
    episode = token_episode(3)
    first = StepTokens(*(getattr(episode.steps[0], n) for n in ("full", "pooled", "executed")), ())
    episode = EpisodeTokens(episode.root, episode.instructions, (first, *episode.steps[1:]))
    paths = paths_of(episode, Layout("full", "hidden"))
    assert len(paths) == 2
    assert len(paths[0].tokens().token_ids) == 7 + 2 * 4 + len(episode.steps[1].labels[0].tokens)


def test_no_step_gives_no_path():
    empty = EpisodeTokens(text_segment([1]), (text_segment(()),), ())
    assert paths_of(empty, Layout("full", "hidden")) == ()


def test_unknown_layouts_are_refused_with_the_nearest_name():
    episode = token_episode(1)
    with pytest.raises(UserError, match=r"unknown tree.history 'pool' \(did you mean 'pooled'\?\)"):
        paths_of(episode, Layout("pool", "hidden"))
    with pytest.raises(UserError, match=r"unknown tree.actions 'shown'"):
        paths_of(episode, Layout("full", "shown"))
    with pytest.raises(ValueError, match="must be supervised"):
        Label(text_segment([3]))
