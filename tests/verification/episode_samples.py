"""Random episodes under random layouts: what recorded and sampled data turn into.

    root - instructions (0-3) - steps (1-6, relabelled or without a label) - branches - summaries

The root or an instruction may be empty, so that the first step of an episode has no history.
"""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import strategies as st

from tests.tree.episodes import token_episode
from tests.verification.tiny_models import features
from vla_nav.tree import Branch, EpisodeTokens, Label, Layout, paths_of, text_segment
from vla_nav.tree.layout import ACTIONS, HISTORIES, INSTRUCTIONS, SUPERVISION
from vla_nav.verification import Sample


def layouts() -> st.SearchStrategy[Layout]:
    """Any layout, with sizes small enough to bite in a few steps."""
    return st.builds(
        Layout,
        st.sampled_from(HISTORIES),
        st.sampled_from(ACTIONS),
        st.sampled_from(INSTRUCTIONS),
        window=st.integers(1, 4),
        uniform=st.integers(2, 4),
        summary_every=st.integers(1, 2),
        summary_keep=st.integers(1, 3),
    )


def supervisions() -> st.SearchStrategy[str]:
    """Whose labels a path teaches."""
    return st.sampled_from(SUPERVISION)


def random_episode(seed: int, *, num_steps: int | None = None) -> EpisodeTokens:
    """An episode of 1-6 steps; STOP (its last label) is always there."""
    rng = random.Random(seed)
    num_steps = rng.randint(1, 6) if num_steps is None else num_steps
    made = token_episode(
        num_steps, seed=seed, root=rng.choice((1, 3)), num_labels=rng.choice((1, 1, 2))
    )
    steps = list(made.steps)
    for t in range(num_steps - 1):
        if rng.random() < 0.2:
            steps[t] = replace(steps[t], labels=())
    instructions = [_text(rng) for _ in range(rng.choice((1, 1, 2)))]
    if rng.random() < 0.2:
        instructions[-1] = text_segment(())
    summaries = {s: _text(rng) for s in range(2, num_steps, 2)}
    branches = ()
    if rng.random() < 0.3:
        at = rng.randrange(num_steps)
        other = token_episode(num_steps, seed=seed + 1)
        own = [replace(step, labels=(_label(rng),)) for step in other.steps[at:]]
        branches = (Branch(at, tuple(own)),)
    root = text_segment(()) if rng.random() < 0.2 and len(instructions[0]) else made.root
    return EpisodeTokens(root, tuple(instructions), tuple(steps), branches, summaries)


def episode_sample(seed: int, layout: Layout, supervise: str = "own") -> Sample:
    """The paths of a random episode under a layout, and random features."""
    paths = paths_of(random_episode(seed), layout, supervise=supervise)
    return Sample(paths, features(6, seed))


def _text(rng: random.Random):
    return text_segment([rng.randrange(20) for _ in range(rng.randint(1, 3))])


def _label(rng: random.Random) -> Label:
    ids = [30 + rng.randrange(9) for _ in range(rng.randint(1, 3))]
    return Label(text_segment(ids, is_supervised=True), rng.choice((1.0, 0.5)))
