"""One embodied agent in one scene: executes decisions, and can be asked what an expert would do.

The agent keeps nothing but its pose; every motion starts from that pose and every image is taken
at it. So any number of agents share one simulator of the same scene, and what an agent lives
through does not depend on the others.

    run((TURN_LEFT, MOVE_FORWARD), wants_images=True, wants_label=True)
        -> Outcome(poses after each primitive, collisions, one observation, one expert label)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from vla_nav.episodes.types import STOP, ExpertLabel, Pose
from vla_nav.simulators.follower import FollowerError, GreedyFollower
from vla_nav.simulators.protocol import Observation, Simulator

Point = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class ExpertSettings:
    """How the expert walks: where to, when it stops (metres), how far its labels look ahead."""

    goals: tuple[Point, ...]
    stop_radius_m: float
    horizon: int


class Outcome(NamedTuple):
    """What came of a decision.

    poses, collided: one entry per primitive executed. observation, label: None where not asked
    for. stuck: why the expert could not give a label, else None.
    """

    poses: tuple[Pose, ...]
    collided: tuple[bool, ...]
    observation: Observation | None
    label: ExpertLabel | None
    stuck: str | None


class Agent:
    """A pose in a loaded scene. `simulator` must hold the agent's scene whenever it is used."""

    def __init__(
        self, simulator: Simulator, start: Pose, expert: ExpertSettings | None = None
    ) -> None:
        self._simulator = simulator
        self._expert = expert
        self._follower: GreedyFollower | None = None
        self.pose = simulator.reset(start)

    def run(
        self,
        primitives: tuple[int, ...],
        *,
        wants_images: bool,
        wants_label: bool,
        semantic: bool = False,
    ) -> Outcome:
        """Execute primitive actions (no STOP), then look and ask the expert as wanted."""
        assert STOP not in primitives, "STOP ends an episode; it is not executed"
        poses, collided = [], []
        for primitive in primitives:
            motion = self._simulator.move(self.pose, primitive)
            self.pose = motion.pose
            poses.append(motion.pose)
            collided.append(motion.has_collided)
        observation, label, stuck = None, None, None
        if wants_images:
            self._simulator.place(self.pose)
            observation = self._simulator.observe(semantic=semantic)
        if wants_label:
            try:
                label = self.follower.plan(self.pose, self._settings.horizon)
            except FollowerError as error:
                stuck = str(error)
        return Outcome(tuple(poses), tuple(collided), observation, label, stuck)

    @property
    def follower(self) -> GreedyFollower:
        """The expert, walking to the goal nearest to where it is first asked."""
        if self._follower is None:
            goals = self._settings.goals
            if len(goals) > 1:
                distances = [
                    self._simulator.geodesic_distance(self.pose.position, [goal]) for goal in goals
                ]
                goals = (goals[int(np.argmin(distances))],)
            self._follower = GreedyFollower(
                self._simulator, goals[0], stop_radius_m=self._settings.stop_radius_m
            )
        return self._follower

    @property
    def _settings(self) -> ExpertSettings:
        assert self._expert is not None, "an agent without expert settings was asked for a label"
        return self._expert
