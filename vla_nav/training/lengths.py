"""Upper bounds of the tokens of recorded episodes' trees, without reading the episodes.

    root + instruction + frames, executed actions and summaries (vla_nav.tree.sizes) + labels

from the columns of instructions, steps, labels a step and metadata alone. With the instruction
last it stands once at every step that has a label.
"""

from __future__ import annotations

import numpy as np

from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.models.prompt import PromptBuilder
from vla_nav.models.summaries import KEY, parse_summaries
from vla_nav.tree import Segment
from vla_nav.tree.sizes import LayoutCounts, layout_counts


def episode_bounds(episodes: LeRobotDataset, builder: PromptBuilder) -> np.ndarray:
    """(E,) int64 upper bounds of the tokens of every episode's own tree."""
    layout, num_action = builder.layout, builder.action_space.max_length
    pose = episodes[0].start_pose  # any: the number of tokens is the same everywhere
    full, pooled = map(len, builder.observation(range(len(builder.streams)), pose, pose))
    labels = episodes.num_labels()
    num_labels = np.array([sum(counts) for counts in labels], dtype=np.int64)
    num_taught = np.array([np.count_nonzero(counts) for counts in labels], dtype=np.int64)
    length = {text: len(builder.instruction(text)) for text in set(episodes.instructions())}
    instruction = np.array([length[text] for text in episodes.instructions()], dtype=np.int64)
    counts = _counts(episodes, builder)
    return (
        len(builder.root())
        + instruction * (num_taught if layout.instruction == "last" else 1)
        + counts.full * full
        + counts.pooled * pooled
        + counts.executed * num_action
        + counts.summary_tokens
        + num_labels * num_action
    )


def recorded_summaries(
    episodes: LeRobotDataset, builder: PromptBuilder
) -> list[dict[int, Segment]]:
    """Every episode's summaries as tokens, without reading the episodes."""
    rows = zip(episodes.keys(), episodes.num_steps.tolist(), episodes.metadata(KEY), strict=True)
    found = []
    for key, num_steps, value in rows:
        texts = parse_summaries(value, num_steps, builder.layout, "/".join(key))
        found.append({step: builder.summary(text) for step, text in texts.items()})
    return found


def _counts(episodes: LeRobotDataset, builder: PromptBuilder) -> LayoutCounts:
    """What the layout holds of every episode: each (E,)."""
    num_steps = np.asarray(episodes.num_steps)
    if builder.layout.history != "summary":
        longest = layout_counts(builder.layout, int(num_steps.max(initial=0)))
        return LayoutCounts(*(counts[num_steps] for counts in longest))
    rows = zip(num_steps.tolist(), recorded_summaries(episodes, builder), strict=True)
    each = [[c[-1] for c in layout_counts(builder.layout, n, given)] for n, given in rows]
    return LayoutCounts(*np.array(each, dtype=np.int64).reshape(-1, 4).T)
