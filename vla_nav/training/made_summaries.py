"""The paths of episodes for counting and drawing, with summaries made up where data gives none.

    every 8 steps, 32 tokens      step 0 ... 7 | 8 ... 15 | 16 ...
                                               ^          ^
                              32 tokens for 0-7          32 tokens for 0-15

What a summary would say needs a captioner; what it costs needs only its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from vla_nav.episodes.types import Episode
from vla_nav.models.prompt import PromptBuilder
from vla_nav.models.summaries import KEY
from vla_nav.tree import EpisodeTokens, Path, paths_of, text_segment


@dataclass(frozen=True, slots=True)
class MadeSummaries:
    """`num_tokens` tokens for all that was before, every `every` steps."""

    num_tokens: int = 32
    every: int = 8


def episode_paths(
    builder: PromptBuilder,
    episodes: Sequence[Episode],
    *,
    supervise: str = "own",
    summaries: MadeSummaries,
) -> tuple[tuple[Path, ...], int]:
    """The paths of one tree under the builder's layout, and the length of its frame table.

    episodes: one, or several that share frames. summaries: for those without any of their own.
    """
    if builder.layout.history != "summary":
        paths, keys = builder.paths(*episodes, supervise=supervise)
        return paths, len(keys)
    has_none = [not episode.metadata.get(KEY) for episode in episodes]
    marked = [
        _marked(episode, summaries.every) if is_bare else episode
        for episode, is_bare in zip(episodes, has_none, strict=True)
    ]
    tokens, keys = builder.episodes(marked)
    filled = [
        _filled(part, summaries.num_tokens) if is_bare else part
        for part, is_bare in zip(tokens, has_none, strict=True)
    ]
    found = [paths_of(part, builder.layout, supervise=supervise) for part in filled]
    return tuple(chain.from_iterable(found)), len(keys)


def _marked(episode: Episode, every: int) -> Episode:
    """The episode with an empty summary every `every` steps."""
    steps = range(every, len(episode.steps) + every, every)
    return replace(episode, metadata={**episode.metadata, KEY: {str(step): "" for step in steps}})


def _filled(tokens: EpisodeTokens, num_tokens: int) -> EpisodeTokens:
    """Every summary as `num_tokens` times the root's last token, each a segment of its own."""
    ids = np.full(num_tokens, int(tokens.root.token_ids[-1]))
    return replace(tokens, summaries={step: text_segment(ids) for step in tokens.summaries})
