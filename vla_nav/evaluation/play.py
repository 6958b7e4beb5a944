"""One evaluated episode from its opening to its record, as a script of calls and decisions.

    open -> run -> Decide -> run -> Decide -> ... -> distances -> Played(record)

The script names the host's methods (`vla_nav.simulators.host`) and never waits; whoever drives it
sends the answers in: primitive actions to a `Decide`, or the `Target` to go to by the shortest path
(`vla_nav.evaluation.approach`).
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from vla_nav.actions.decisions import DecisionRule
from vla_nav.actions.targets import Target
from vla_nav.episodes.types import Embodiment, Episode
from vla_nav.evaluation.approach import Call, approach
from vla_nav.evaluation.conditions import Actor, Condition
from vla_nav.evaluation.languages import language_of
from vla_nav.evaluation.metrics import SuccessRule, episode_metrics
from vla_nav.evaluation.rollout import Carry, Decide, Simulate, Trajectory, rollout
from vla_nav.simulators import plain
from vla_nav.simulators.agent import ExpertSettings, Outcome


class Unit(NamedTuple):
    """One line of the results to come."""

    condition: Condition
    episode: Episode

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """(row, dataset, split, role, episode_id)."""
        return (self.condition.name, *self.episode.key)


@dataclass(frozen=True, slots=True)
class PlaySettings:
    """What decides an episode's outcome besides the policy.

    execution: discrete | geodesic, how a network's waypoints and pixels are executed.
    """

    embodiment: Embodiment
    decision: DecisionRule
    success: SuccessRule
    seed: int
    max_primitives: int
    expert_stop_radius_m: float
    chance_stop_probability: float
    execution: str = "discrete"

    @property
    def horizon(self) -> int:
        """Primitives an expert must look ahead to fill any one decision."""
        half_circle = round(180 / self.embodiment.turn_deg)
        turns = half_circle if self.decision.name == "turn_then_forward" else 0
        return turns + self.decision.count


class Played(NamedTuple):
    """A finished episode: its record, and the frames at each decision if it was filmed."""

    unit: Unit
    record: dict[str, Any]
    trajectory: Trajectory
    frames: list[dict[str, np.ndarray]]


@dataclass
class Notes:
    """What gathers beside the script: frames where the episode is filmed, and remarks.

    num_unreachable: targets without a way to them, executed by discrete steps instead.
    """

    attempts: int = 1
    num_unreachable: int = 0
    is_filmed: bool = False
    remark: str | None = None
    frames: list[dict[str, np.ndarray]] = field(default_factory=list)


Script = Generator[Call | Decide, Any, Played]


def script(unit: Unit, settings: PlaySettings, *, scene: str, agent: int, notes: Notes) -> Script:
    """Play `unit` with agent number `agent`; answers are those of the host, or primitives."""
    episode = unit.episode
    goals = tuple(goal.position for goal in episode.goals)
    wants_label = unit.condition.actor is Actor.EXPERT
    wants_images = unit.condition.actor is Actor.NETWORK or notes.is_filmed
    expert = ExpertSettings(goals, settings.expert_stop_radius_m, settings.horizon)
    opening = {
        "agent": agent,
        "scene": scene,
        "pose": plain.pose_to_plain(episode.start_pose),
        "expert": plain.expert_to_plain(expert),
    }
    start = plain.pose_from_plain((yield Call("open", opening)))
    steps = rollout(start, max_primitives=settings.max_primitives)
    request = next(steps)
    while True:
        if isinstance(request, Simulate):
            arguments = {
                "agent": agent,
                "primitives": list(request.primitives),
                "wants_images": wants_images and not request.is_last,
                "wants_label": wants_label and not request.is_last,
            }
            answer = plain.outcome_from_plain((yield Call("run", arguments)))
        elif isinstance(request, Carry):
            answer = yield from _carried(request, agent, wants_images=wants_images)
        else:
            answer = yield request
            if isinstance(answer, Target):
                way = yield from approach(
                    answer, request.pose, scene=scene, body=settings.embodiment
                )
                notes.num_unreachable += way is None
                answer = answer.primitives if way is None else way
        try:
            request = steps.send(answer)
        except StopIteration as end:
            trajectory: Trajectory = end.value
            break
    distances = yield Call(
        "distances", {"scene": scene, "points": trajectory.positions, "goals": np.array(goals)}
    )
    metrics = episode_metrics(
        trajectory.positions,
        distances,
        reference_of(episode, spacing_m=settings.embodiment.step_m),
        has_stopped=trajectory.has_stopped,
        num_collisions=trajectory.num_collisions,
        rule=settings.success,
    )
    record = _record(unit, metrics.as_dict(), trajectory, notes, settings)
    return Played(unit, record, trajectory, notes.frames)


def execution_of(condition: Condition, settings: PlaySettings) -> str:
    """How the decisions of a row are executed: chance and the expert decide primitive actions."""
    return settings.execution if condition.actor is Actor.NETWORK else "discrete"


def reference_of(episode: Episode, *, spacing_m: float) -> np.ndarray:
    """(R, 3) what nDTW compares with: the ground-truth locations where the episode has them, else
    its reference path with a point every `spacing_m`, as dense as a path walked along it."""
    truth = episode.metadata.get("ground_truth")
    if truth:
        return np.asarray(truth["locations"], dtype=np.float64)
    return resampled(episode.reference_path, spacing_m=spacing_m)


def resampled(path: np.ndarray, *, spacing_m: float) -> np.ndarray:
    """A polyline (P, 3) with points at most `spacing_m` apart, evenly between its ends: (R, 3)."""
    if len(path) == 0:
        return path
    lengths = np.linalg.norm(np.diff(path, axis=0), axis=1)
    at = np.concatenate([[0.0], np.cumsum(lengths)])  # (P,) metres from the start
    count = max(1, math.ceil(at[-1] / spacing_m - 1e-9)) if at[-1] > 0 else 0
    wanted = np.linspace(0.0, at[-1], count + 1)
    return np.stack([np.interp(wanted, at, path[:, axis]) for axis in range(3)], axis=1)


def _carried(request: Carry, agent: int, *, wants_images: bool) -> Generator[Call, Any, Outcome]:
    """Put the agent at the last pose of a walk and look there."""
    yield Call("place", {"agent": agent, "pose": plain.pose_to_plain(request.poses[-1])})
    arguments = {
        "agent": agent,
        "primitives": [],
        "wants_images": wants_images and not request.is_last,
        "wants_label": False,
    }
    seen = plain.outcome_from_plain((yield Call("run", arguments)))
    collided = (request.has_collided,) * len(request.poses)
    return seen._replace(poses=request.poses, collided=collided)


def _record(
    unit: Unit,
    metrics: dict[str, Any],
    trajectory: Trajectory,
    notes: Notes,
    settings: PlaySettings,
) -> dict[str, Any]:
    row, dataset, split, role, episode_id = unit.key
    positions = np.round(trajectory.positions, 4)  # a tenth of a millimetre
    is_moved = np.concatenate([[True], np.any(positions[1:] != positions[:-1], axis=1)])
    return {
        "row": row,
        "dataset": dataset,
        "split": split,
        "role": role,
        "episode_id": episode_id,
        "scene_id": unit.episode.scene_id,
        "language": language_of(unit.episode),
        **metrics,
        "execution": execution_of(unit.condition, settings),
        "num_unreachable": notes.num_unreachable,
        "num_decisions": len(trajectory.decisions),
        "attempts": notes.attempts,
        "remark": notes.remark,
        "primitives": "".join(map(str, trajectory.primitives)),
        "path": positions[is_moved].tolist(),
    }
