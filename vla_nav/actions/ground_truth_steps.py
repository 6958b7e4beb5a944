"""The ground truth of an episode as steps: what was done, cut into decisions, is what is taught.

actions    L L F F F F F R STOP      decision turn_then_forward(4)
steps      [L L F F F F][F][R][STOP] one label and one executed decision each
"""

from __future__ import annotations

from dataclasses import replace

from vla_nav.actions.decisions import DecisionRule, cut
from vla_nav.episodes.ground_truth import ground_truth_poses
from vla_nav.episodes.types import Episode, ExpertLabel, Step


def walked(episode: Episode, rule: DecisionRule, *, turn_deg: float) -> Episode:
    """The episode with one step per decision of its ground truth; no step has a frame.

    turn_deg: of the data. Raises `UserError` for an episode without ground truth.
    """
    poses = ground_truth_poses(episode, turn_deg=turn_deg)
    left = tuple(episode.metadata["ground_truth"]["actions"])
    place, steps = 0, []
    while left:
        decision = cut(left, rule)
        label = ExpertLabel(decision, poses[place + 1 : place + 1 + len(decision)])
        steps.append(Step(poses[place], {}, decision, (label,)))
        place, left = place + len(decision), left[len(decision) :]
    return replace(episode, steps=tuple(steps))
