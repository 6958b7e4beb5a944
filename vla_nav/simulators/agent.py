"""One embodied agent in one scene: executes decisions, and can be asked what an expert would do.

The agent keeps nothing but its pose; every motion starts from that pose and every image is taken
at it. So any number of agents share one simulator of the same scene, and what an agent lives
through does not depend on the others.

    run((TURN_LEFT, MOVE_FORWARD), wants_images=True, wants_label=True)
        -> Outcome(poses after each primitive, collisions, one observation, one expert label)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vla_nav.episodes.types import STOP, ExpertLabel, Pose
from vla_nav.frozen import frozen
from vla_nav.simulators.follower import FollowerError, GreedyFollower
from vla_nav.simulators.protocol import Observation, Simulator

Point = tuple[float, float, float]


@frozen
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
        self._goal: Point | None = None
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
    def simulator(self) -> Simulator:
        """The simulator of the agent's scene."""
        return self._simulator

    @simulator.setter
    def simulator(self, simulator: Simulator) -> None:
        if simulator is not self._simulator:
            self._simulator, self._follower = simulator, None

    @property
    def follower(self) -> GreedyFollower:
        """The expert, walking to the goal nearest to where it is first asked."""
        if self._follower is None:
            if self._goal is None:
                self._goal = self._nearest_goal()
            self._follower = GreedyFollower(
                self._simulator, self._goal, stop_radius_m=self._settings.stop_radius_m
            )
        return self._follower

    def _nearest_goal(self) -> Point:
        goals = self._settings.goals
        if len(goals) == 1:
            return goals[0]
        distance = self._simulator.geodesic_distance
        return goals[int(np.argmin([distance(self.pose.position, [goal]) for goal in goals]))]

    @property
    def _settings(self) -> ExpertSettings:
        assert self._expert is not None, "an agent without expert settings was asked for a label"
        return self._expert
