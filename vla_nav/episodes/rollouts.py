"""Further walks of an episode that are kept beside its first: what DAgger adds, round by round.

    id      metadata                     the walk of
    12      {}                           the expert
    12@1    {"rollout_of": "12", ...}    expert and policy together, round 1
    12@2    {"rollout_of": "12", ...}    the same with the policy of round 2

All of them begin at the same pose with the same instruction, so they are branches of one tree
(`tree.group=rollouts`), and with the same draws of camera height and pitch.
"""

from __future__ import annotations

from dataclasses import replace

from vla_nav.episodes.types import Episode

ROLLOUT_OF = "rollout_of"  # metadata: the id of the episode that this is a further walk of


def further_walk(episode: Episode, round_number: int) -> Episode:
    """`episode`, not yet recorded, as the walk of that round.

    >>> further_walk(episode_12, 1).episode_id
    '12@1'
    """
    name = original_id(episode)
    return replace(
        episode,
        episode_id=f"{name}@{round_number}",
        metadata={**episode.metadata, ROLLOUT_OF: name},
        steps=(),
    )


def is_rollout(episode: Episode) -> bool:
    """Whether this is a further walk: a policy took part, which need not stop or come near."""
    return ROLLOUT_OF in episode.metadata


def original_id(episode: Episode) -> str:
    """The id of the episode that this is a walk of: its own, or that of the first walk."""
    return str(episode.metadata.get(ROLLOUT_OF, episode.episode_id))
