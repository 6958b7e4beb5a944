"""The rows of the table: who decides, which instruction they read, what they see.

    row                  decides   reads                    sees
    policy               network   the episode's own        the camera
    swapped_instruction  network   another route's          the camera
    no_instruction       network   nothing                  the camera
    black_images         network   the episode's own        black
    random               chance    -                        -
    expert               expert    -                        -

A policy that follows instructions must lose with another route's; one that looks must lose in the
dark. Chance stops with a declared probability per decision, so its episodes are as long as the
expert's on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from vla_nav.actions.decisions import DecisionRule
from vla_nav.episodes.types import MOVE_FORWARD, STOP, TURN_LEFT, TURN_RIGHT, Embodiment, Episode
from vla_nav.errors import UserError, unknown_name
from vla_nav.seeding import generator
from vla_nav.simulators.protocol import Observation


class Actor(Enum):
    """Who takes the decisions of a row."""

    NETWORK = "network"
    CHANCE = "chance"
    EXPERT = "expert"


@dataclass(frozen=True, slots=True)
class Condition:
    """One row of the table."""

    name: str
    actor: Actor
    reads: str = "own"  # own | swapped | nothing
    is_dark: bool = False

    def observe(self, observation: Observation) -> Observation:
        """What the network is shown of an observation."""
        if not self.is_dark:
            return observation
        return Observation(
            observation.pose,
            {name: np.zeros_like(image) for name, image in observation.rgb.items()},
            {name: np.zeros_like(image) for name, image in observation.depth.items()},
            observation.semantic,
        )


CONDITIONS = (
    Condition("policy", Actor.NETWORK),
    Condition("swapped_instruction", Actor.NETWORK, reads="swapped"),
    Condition("no_instruction", Actor.NETWORK, reads="nothing"),
    Condition("black_images", Actor.NETWORK, is_dark=True),
    Condition("random", Actor.CHANCE),
    Condition("expert", Actor.EXPERT),
)


def conditions_named(names: Sequence[str]) -> tuple[Condition, ...]:
    """The conditions of these rows, in the given order. Raises `UserError` for an unknown one."""
    known = {condition.name: condition for condition in CONDITIONS}
    for name in names:
        if name not in known:
            raise unknown_name("evaluation.rows entry", name, known)
    if len(set(names)) < len(names) or not names:
        raise UserError(f"evaluation.rows={list(names)}: give each row once, at least one")
    return tuple(known[name] for name in names)


def route(episode: Episode) -> tuple[object, ...]:
    """What makes two episodes the same route: scene, start and goals."""
    return (
        episode.scene_id,
        episode.start_pose.position,
        tuple(goal.position for goal in episode.goals),
    )


class Instructions:
    """Which instruction each row reads, from the whole split, so shards and counts don't matter."""

    def __init__(self, episodes: Sequence[Episode], *, seed: int) -> None:
        self._seed = seed
        self._pool = sorted(episodes, key=lambda episode: episode.key)
        self._routes = [route(episode) for episode in self._pool]

    def of(self, condition: Condition, episode: Episode) -> str:
        """The text that `condition` reads in `episode`."""
        if condition.reads == "nothing":
            return ""
        if condition.reads == "own":
            return episode.instruction
        return self.swapped(episode).instruction

    def swapped(self, episode: Episode) -> Episode:
        """Another episode: of a different route and with a different text, by the seed."""
        rng = generator(self._seed, "swapped", *episode.key)
        own = route(episode)
        for index in rng.permutation(len(self._pool)):
            other = self._pool[index]
            if self._routes[index] != own and other.instruction != episode.instruction:
                return other
        raise UserError(
            f"evaluation.rows: swapped_instruction needs a second route in {episode.dataset} "
            f"{episode.split}; leave that row out or give more episodes"
        )


def random_decision(
    rule: DecisionRule, embodiment: Embodiment, rng: np.random.Generator
) -> tuple[int, ...]:
    """A decision of the rule's shape without STOP: turns within a quarter circle, then steps."""
    if rule.name == "turn_then_forward":
        widest = max(1, round(90 / embodiment.turn_deg))
        num_left, num_steps = 0, 0
        while num_left == 0 and num_steps == 0:
            num_left = int(rng.integers(-widest, widest + 1))
            num_steps = int(rng.integers(0, rule.count + 1))
        turn = TURN_LEFT if num_left > 0 else TURN_RIGHT
        return (turn,) * abs(num_left) + (MOVE_FORWARD,) * num_steps
    choices = rng.integers(0, 3, size=rule.count)
    return tuple((MOVE_FORWARD, TURN_LEFT, TURN_RIGHT)[choice] for choice in choices)


def chance_decision(
    rule: DecisionRule,
    embodiment: Embodiment,
    rng: np.random.Generator,
    *,
    stop_probability: float,
) -> tuple[int, ...]:
    """STOP with `stop_probability`, else a `random_decision`."""
    if rng.random() < stop_probability:
        return (STOP,)
    return random_decision(rule, embodiment, rng)
