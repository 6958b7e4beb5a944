"""Recording: a rollout with the expert as policy, kept as frames, labels and what was executed.

    at each decision     label    = what the expert would do from here (always)
                         executed = the label's first decision, or, for a share of the decisions,
                                    a random one: the data then shows how to come back

Somebody else may decide instead (`walked`, `vla_nav.evaluation.dagger`): the expert labels every
state all the same.

The camera's height and pitch may be drawn per episode; they are stored with it. Everything random
is drawn from the run's seed and the episode's key, so the data does not depend on how the work is
spread (`vla_nav.evaluation.record_run`).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from vla_nav.actions.decisions import DecisionRule, cut
from vla_nav.actions.pointing import farthest_visible
from vla_nav.episodes.frames import frame_key
from vla_nav.episodes.rollouts import original_id
from vla_nav.episodes.types import Embodiment, Episode, ExpertLabel, PixelTarget, Pose, Step
from vla_nav.errors import UserError
from vla_nav.evaluation.conditions import random_decision
from vla_nav.evaluation.rollout import Decide, Simulate, rollout
from vla_nav.seeding import generator
from vla_nav.simulators.agent import Agent, ExpertSettings, Outcome
from vla_nav.simulators.protocol import Observation, Simulator


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """How episodes are recorded; part of the data set's conventions.

    horizon: primitives a label looks ahead. perturbation: share of random decisions.
    height_range_m, pitch_range_deg: half widths of the uniform draw around each camera's own.
    """

    embodiment: Embodiment
    decision: DecisionRule
    seed: int
    stop_radius_m: float = 0.5
    horizon: int = 12
    perturbation: float = 0.0
    height_range_m: float = 0.0
    pitch_range_deg: float = 0.0
    max_primitives: int = 500

    def __post_init__(self) -> None:
        if not 0 <= self.perturbation < 1:
            raise UserError(f"record.perturbation={self.perturbation}: allowed: 0 <= share < 1")
        if self.stop_radius_m <= 0:
            raise UserError(f"record.stop_radius_m={self.stop_radius_m}: allowed: above 0 m")
        half_circle = round(180 / self.embodiment.turn_deg)
        turns = half_circle if self.decision.name == "turn_then_forward" else 0
        if self.horizon < turns + self.decision.count:
            raise UserError(
                f"record.horizon={self.horizon} is shorter than one decision of {self.decision}; "
                f"allowed: {turns + self.decision.count} and more"
            )
        lowest = min(camera.height_m for camera in self.embodiment.cameras)
        if not 0 <= self.height_range_m < lowest:
            raise UserError(
                f"record.height_range_m={self.height_range_m}: allowed: from 0 to below the "
                f"lowest camera's height, {lowest} m"
            )

    def describe(self) -> dict[str, Any]:
        """What a reader of the data should know beside embodiment and decision rule."""
        values = asdict(self)
        del values["embodiment"], values["decision"]
        return {"expert": "greedy_geodesic_follower", **values}


class Recorded(NamedTuple):
    """A whole episode and its frames by key."""

    episode: Episode
    frames: dict[str, np.ndarray]


class Skipped(NamedTuple):
    """An episode that the expert could not finish, and why."""

    episode: Episode
    reason: str


class Ask(NamedTuple):
    """A state of the walk: what is seen there, and the decision that the expert proposes (a share
    `perturbation` of its proposals is random)."""

    observation: Observation
    proposed: tuple[int, ...]


class Walked(NamedTuple):
    """A walk: its steps and frames under the body drawn for it. end: None where STOP was called,
    else why it ended without."""

    body: Embodiment
    steps: tuple[Step, ...]
    frames: dict[str, np.ndarray]
    end: str | None


def record_episode(
    episode: Episode, simulator: Simulator, settings: RecordSettings
) -> Recorded | Skipped:
    """Walk one episode with the expert. `simulator` has its scene loaded; its cameras are set for
    the episode."""
    walk = walked(episode, simulator, settings)
    answer: tuple[int, ...] | None = None
    while True:
        try:
            answer = walk.send(answer).proposed
        except StopIteration as done:
            end = done.value
            break
    if isinstance(end, Skipped):
        return end
    if end.end is not None:
        return Skipped(episode, end.end)
    return Recorded(replace(episode, embodiment=end.body, steps=end.steps), end.frames)


def walked(
    episode: Episode, simulator: Simulator, settings: RecordSettings
) -> Generator[Ask, tuple[int, ...] | None, Walked | Skipped]:
    """Walk one episode, asking at every state for the decision to execute; the expert labels all.

    Several walks may be under way in one simulator: each sets its own cameras before it looks.
    """
    rng = generator(settings.seed, "record", *episode.key[:3], original_id(episode))
    body = _drawn_body(settings, rng)
    goals = tuple(goal.position for goal in episode.goals)
    simulator.embodiment = body
    try:
        expert = ExpertSettings(goals, settings.stop_radius_m, settings.horizon)
        agent = Agent(simulator, episode.start_pose, expert)
    except UserError as error:
        return Skipped(episode, str(error))
    frames: dict[str, np.ndarray] = {}
    seen: list[tuple[dict[str, str], ExpertLabel]] = []
    poses: list[Pose] = []
    play = rollout(agent.pose, max_primitives=settings.max_primitives)
    request = next(play)
    stuck: str | None = None
    while True:
        answer: Outcome | tuple[int, ...]
        if isinstance(request, Simulate):
            wants = not request.is_last
            simulator.embodiment = body
            answer = agent.run(request.primitives, wants_images=wants, wants_label=wants)
        else:
            assert isinstance(request, Decide), request
            observation, label = request.outcome.observation, request.outcome.label
            if label is None:
                stuck, answer = str(request.outcome.stuck), ()
            else:
                assert observation is not None
                if observation.depth:
                    label = replace(label, pixel=_pixel(agent, observation, body))
                keys = {name: frame_key(image) for name, image in observation.rgb.items()}
                frames.update((keys[name], image) for name, image in observation.rgb.items())
                for name, image in observation.depth.items():
                    key = keys[f"{name}.depth"] = frame_key(image)
                    frames[key] = image
                seen.append((keys, label))
                poses.append(request.pose)
                proposed = cut(label.primitives, settings.decision)
                if rng.random() < settings.perturbation:
                    proposed = random_decision(settings.decision, body, rng)
                chosen = yield Ask(observation, proposed)
                assert chosen, "a decision has at least one primitive"
                answer = chosen
        try:
            request = play.send(answer)
        except StopIteration as done:
            trajectory = done.value
            break
    end = stuck
    if end is None and not trajectory.has_stopped:
        end = f"no STOP within {settings.max_primitives} primitive actions"
    steps = tuple(
        Step(pose, keys, executed, (label,))
        for pose, (keys, label), executed in zip(poses, seen, trajectory.decisions, strict=True)
    )
    return Walked(body, steps, frames, end)


def _drawn_body(settings: RecordSettings, rng: np.random.Generator) -> Embodiment:
    """The embodiment with this episode's camera heights and pitches; the draws are always made."""
    height, pitch = rng.uniform(-1, 1, size=2)
    cameras = tuple(
        replace(
            camera,
            height_m=round(camera.height_m + height * settings.height_range_m, 4),
            pitch_deg=round(camera.pitch_deg + pitch * settings.pitch_range_deg, 4),
        )
        for camera in settings.embodiment.cameras
    )
    return replace(settings.embodiment, cameras=cameras)


def _pixel(agent: Agent, observation: Observation, body: Embodiment) -> PixelTarget | None:
    """The pointing target: the farthest visible point in any camera with depth, the first one's
    where several see it."""
    points = agent.follower.remaining_path(agent.pose)
    for camera in body.cameras:
        if camera.has_depth:
            target = farthest_visible(points, agent.pose, camera, observation.depth[camera.name])
            if target is not None:
                return target
    return None
