"""Token episodes of any length for the tests: the layouts' own tokens, no tokenizer."""

from __future__ import annotations

import numpy as np

from vla_nav.tree import EpisodeTokens, Label, StepTokens, frame_segment, text_segment


def token_episode(
    num_steps: int,
    *,
    seed: int = 0,
    root: int = 7,
    full: int = 4,
    pooled: int = 2,
    num_labels: int = 1,
    follow: float = 0.7,
    vocabulary: int = 40,
) -> EpisodeTokens:
    """An episode whose executed action is the label with probability `follow`.

    Text ids are below `vocabulary` - 11, the placeholder is `vocabulary` - 11, actions above.
    """
    rng = np.random.default_rng(seed)
    placeholder = vocabulary - 11
    steps = []
    for t in range(num_steps):
        labels = tuple(
            Label(_action(rng, placeholder, is_supervised=True)) for _ in range(num_labels)
        )
        executed = labels[0].tokens if rng.random() < follow else _action(rng, placeholder)
        steps.append(
            StepTokens(
                full=frame_segment(placeholder, t, full),
                pooled=frame_segment(placeholder, t, pooled, first=full),
                executed=executed,
                labels=labels,
            )
        )
    beginning = text_segment(rng.integers(0, placeholder, root))
    return EpisodeTokens(beginning, (text_segment(()),), tuple(steps))


def _action(rng, placeholder, *, is_supervised=False):
    ids = rng.integers(placeholder + 1, placeholder + 11, rng.choice([1, 3]))
    return text_segment(ids, is_supervised=is_supervised)
