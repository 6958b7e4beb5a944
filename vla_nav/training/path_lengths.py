"""The longest context of recorded episodes, held to the positions that the backbone has.

    root + instruction + [summary] + frames and executed actions that the last step sees + an action

A path ends with its label, a policy with the longest action it may choose, so what is trained on is
what can be played up to there. Bounds of all episodes come from columns alone; the longest ones are
then built, until no other one can be longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.errors import UserError
from vla_nav.models.prompt import PromptBuilder
from vla_nav.training.lengths import recorded_summaries
from vla_nav.tree.contexts import seen_steps, summary_step

_OPTION = "models.backbone.options.max_position_embeddings"


class Recorded(Protocol):
    """Recorded episodes under a prompt."""

    episodes: LeRobotDataset
    builder: PromptBuilder


class Longest(NamedTuple):
    """num_tokens: of the context with an action. num_steps: of the episode."""

    num_tokens: int
    num_steps: int
    name: str


def require_positions(sets: Sequence[Recorded], limit: int) -> str | None:
    """Raise `UserError` where an episode's longest path takes more than `limit` positions.

    Returns a line for people where a policy that takes somewhat more steps than the recorded
    episodes runs out of positions, None where it has room for twice as many.
    """
    longest = max(longest_path(one.episodes, one.builder) for one in sets)
    if longest.num_tokens > limit:
        raise UserError(
            f"{_OPTION}={limit}: the longest path, of episode {longest.name}, has "
            f"{longest.num_tokens} tokens with its action; give the backbone as many positions, or "
            "shorten history and frames (tree=window, uniform or visible_pooled; vision)"
        )
    _, growth = _step_tokens(sets[0].episodes, sets[0].builder)
    num_steps = max(int(max(one.episodes.num_steps)) for one in sets)
    if sets[0].builder.layout.history not in ("full", "pooled"):
        return None  # what later steps see does not grow
    if longest.num_tokens + num_steps * growth <= limit:
        return None
    room = longest.num_steps + (limit - longest.num_tokens) // growth
    return (
        f"{_OPTION}={limit}: in closed loop an episode ends where the policy has no position left, "
        f"after about {room} decisions; the longest recorded episode has {num_steps}"
    )


def longest_path(episodes: LeRobotDataset, builder: PromptBuilder) -> Longest:
    """The longest context of all steps that have a label, with an action."""
    bounds = context_bounds(episodes, builder)
    found = Longest(0, 0, "")
    for number in np.argsort(-bounds, kind="stable").tolist():
        if bounds[number] <= found.num_tokens:
            break
        episode = episodes[number]
        paths, _ = builder.paths(episode)
        contexts = (sum(map(len, path.all_segments[:-1])) for path in paths)
        num_tokens = max(contexts, default=0) + builder.action_space.max_length
        if num_tokens > found.num_tokens:
            found = Longest(num_tokens, len(episode.steps), "/".join(episode.key))
    return found


def context_bounds(episodes: LeRobotDataset, builder: PromptBuilder) -> np.ndarray:
    """(E,) int64 upper bounds of every episode's longest context with an action."""
    layout, num_action = builder.layout, builder.action_space.max_length
    full, past = _step_tokens(episodes, builder)
    length = {text: len(builder.instruction(text)) for text in set(episodes.instructions())}
    fixed = np.array([length[text] for text in episodes.instructions()], dtype=np.int64)
    num_steps = np.asarray(episodes.num_steps, dtype=np.int64)
    if layout.history == "summary":
        last = []
        for steps, known in zip(
            num_steps.tolist(), recorded_summaries(episodes, builder), strict=True
        ):
            starts = [summary_step(layout, t, known) for t in range(steps)]
            contexts = (
                (0 if start is None else len(known[start])) + (t - (start or 0)) * past
                for t, start in enumerate(starts)
            )
            last.append(max(contexts, default=0))
        history = np.array(last, dtype=np.int64)
    else:
        seen = {n: len(seen_steps(layout, n - 1)) for n in set(num_steps.tolist()) if n}
        history = np.array([past * (seen.get(n, 1) - 1) for n in num_steps.tolist()])
    return len(builder.root()) + fixed + history + full + num_action


def _step_tokens(episodes: LeRobotDataset, builder: PromptBuilder) -> tuple[int, int]:
    """Tokens of a step as the current one, and at most as one of the past."""
    pose = episodes[0].start_pose  # any: the number of tokens is the same everywhere
    full, pooled = map(len, builder.observation(range(len(builder.streams)), pose, pose))
    executed = builder.action_space.max_length if builder.layout.actions == "visible" else 0
    return full, (pooled if builder.layout.history == "pooled" else full) + executed
