"""DAgger: the policy walks, the expert says at every state what it would have done.

    state      s0        s1        s2        s3         executed by expert (beta) or policy
    executed   expert -> policy -> policy -> expert ...
    label      a0*       a1*       a2*       a3*        the expert's, always

Ross, Gordon, Bagnell, "A Reduction of Imitation Learning and Structured Prediction to No-Regret
Online Learning" (2011), algorithm 3.1: the executed policy is beta * expert + (1 - beta) * policy,
drawn per decision (`mixture: step`) or once per episode (`mixture: episode`). In the tree a state's
label is a branch of what was executed, and all walks of an episode branch off each other.

The draws depend on the run's seed, the round and the episode's key. The policy decides one state
per forward where `num_slots` is 1, so that the data does not depend on workers, kills or order;
with more slots a batched sum may round a near tie to the other side.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from vla_nav.actions.types import Action, ActionSpace
from vla_nav.episodes.rollouts import original_id
from vla_nav.episodes.types import Episode
from vla_nav.errors import UserError, unknown_name
from vla_nav.evaluation.recording import Ask, Recorded, RecordSettings, Skipped, Walked, walked
from vla_nav.evaluation.rollout import until_stop
from vla_nav.seeding import generator
from vla_nav.simulators.client import WorkerDiedError
from vla_nav.simulators.protocol import Observation, Simulator
from vla_nav.simulators.remote import RemoteSimulator

MIXTURES = ("step", "episode")
MAX_ATTEMPTS = 2  # at an episode, where the simulator's process dies over it
ABOUT = "dagger"  # metadata of a rollout: round, who decided, how it ended
_EXPERT, _POLICY = "e", "p"


class Policy(Protocol):
    """What decides beside the expert (`vla_nav.models.policy.VLAPolicy`)."""

    space: ActionSpace

    def reset(self, slot: int, instruction: str, *, name: str) -> None:
        """Begin an episode in a slot."""
        ...

    def has_room(self, slot: int) -> bool:
        """Whether the slot's context takes another decision."""
        ...

    def act(self, observations: Mapping[int, Observation]) -> Mapping[int, Action]:
        """One decision for every slot given."""
        ...

    def note_executed(self, slot: int, primitives: tuple[int, ...]) -> None:
        """What was executed after the last `act`, where it is not that action."""
        ...


@dataclass(frozen=True, slots=True)
class Mixture:
    """Who executes: the expert with probability `beta`, drawn per step or per episode.

    round: number of this DAgger round, part of the draws and of the rollouts' ids.
    """

    beta: float
    mixture: str = "step"
    round: int = 1
    num_slots: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.beta <= 1:
            raise UserError(
                f"record.beta={self.beta}: the expert's share of the decisions; allowed: 0 to 1"
            )
        if self.mixture not in MIXTURES:
            raise unknown_name("record.mixture", self.mixture, MIXTURES)
        for key in ("round", "num_slots"):
            if getattr(self, key) < 1:
                raise UserError(f"record.{key}={getattr(self, key)}: allowed: 1 and more")

    def describe(self) -> dict[str, Any]:
        """What a reader of the data should know."""
        return {"beta": self.beta, "mixture": self.mixture, "round": self.round}


@dataclass
class _Walk:
    """An episode under way in a slot."""

    episode: Episode
    steps: Generator[Ask, tuple[int, ...] | None, Walked | Skipped]
    rng: np.random.Generator
    is_expert: bool  # for the whole episode
    ask: Ask
    attempts: int = 1
    by: str = ""  # who executed each step
    full_from: int | None = None  # from this step on the policy's context was full


def record_rollouts(
    episodes: Sequence[Episode],
    simulator: Simulator,
    settings: RecordSettings,
    mixture: Mixture,
    policy: Policy,
) -> Iterator[Recorded | Skipped]:
    """Walk the episodes of one loaded scene, up to `num_slots` at a time; yielded in their order.

    A walk that ends without STOP (the step limit, an expert that is stuck at a state) is kept up to
    there: its states were visited. One over which the simulator's process dies is walked once more.
    """
    done: dict[int, Recorded | Skipped] = {}
    slots: dict[int, tuple[int, _Walk]] = {}  # slot -> (place in `episodes`, walk)
    waiting = deque((place, episode, 1) for place, episode in enumerate(episodes))
    given = 0
    while given < len(episodes):
        for slot in range(mixture.num_slots):
            while slot not in slots and waiting:
                place, episode, attempts = waiting.popleft()
                try:
                    begun = _begun(episode, simulator, settings, mixture)
                except WorkerDiedError as error:
                    _retry(place, episode, attempts, error, simulator, waiting, done)
                    continue
                if isinstance(begun, Skipped):
                    done[place] = begun
                    continue
                begun.attempts = attempts
                policy.reset(slot, episode.instruction, name="/".join(episode.key))
                slots[slot] = place, begun
        walks = {slot: walk for slot, (_, walk) in slots.items()}
        for slot, primitives in _decisions(walks, settings, mixture, policy).items():
            place, walk = slots[slot]
            try:
                walk.ask = walk.steps.send(primitives)
            except StopIteration as end:
                done[place] = _kept(walk, end.value, mixture)
                del slots[slot]
            except WorkerDiedError as error:
                del slots[slot]
                _retry(place, walk.episode, walk.attempts, error, simulator, waiting, done)
        while given in done:
            yield done.pop(given)
            given += 1


def _retry(
    place: int,
    episode: Episode,
    attempts: int,
    error: WorkerDiedError,
    simulator: Simulator,
    waiting: deque[tuple[int, Episode, int]],
    done: dict[int, Recorded | Skipped],
) -> None:
    """A fresh process for the simulator. The other walks hold their own poses and go on in it."""
    assert isinstance(simulator, RemoteSimulator), "only a process of its own can die"
    simulator.revive()
    simulator.reset(episode.start_pose)
    if attempts < MAX_ATTEMPTS:
        waiting.appendleft((place, episode, attempts + 1))
    else:
        done[place] = Skipped(episode, f"its simulator died {attempts} times: {error}")


def _begun(
    episode: Episode, simulator: Simulator, settings: RecordSettings, mixture: Mixture
) -> _Walk | Skipped:
    """The walk at its first state."""
    name = original_id(episode)
    rng = generator(settings.seed, "dagger", mixture.round, *episode.key[:3], name)
    is_expert = mixture.mixture == "episode" and rng.random() < mixture.beta
    steps = walked(episode, simulator, settings)
    try:
        return _Walk(episode, steps, rng, is_expert, next(steps))
    except StopIteration as end:
        if isinstance(end.value, Skipped):
            return end.value
        return Skipped(episode, str(end.value.end))


def _decisions(
    walks: Mapping[int, _Walk], settings: RecordSettings, mixture: Mixture, policy: Policy
) -> dict[int, tuple[int, ...]]:
    """What to execute in every slot. The policy looks at every state of a walk that it takes part
    in, since its later contexts hold them all."""
    looking: dict[int, Observation] = {}
    for slot, walk in walks.items():
        if walk.is_expert or walk.full_from is not None:
            continue
        if policy.has_room(slot):
            looking[slot] = walk.ask.observation
        else:
            walk.full_from = len(walk.by)
    actions = policy.act(looking) if looking else {}
    chosen: dict[int, tuple[int, ...]] = {}
    for slot, walk in walks.items():
        if slot not in actions:
            walk.by += _EXPERT
            chosen[slot] = walk.ask.proposed
            continue
        is_expert = mixture.mixture == "step" and walk.rng.random() < mixture.beta
        if is_expert:
            policy.note_executed(slot, walk.ask.proposed)
            chosen[slot] = walk.ask.proposed
        else:
            depth = dict(walk.ask.observation.depth) or None
            wanted = policy.space.primitives(actions[slot], settings.embodiment, depth)
            chosen[slot] = until_stop(wanted)
        walk.by += _EXPERT if is_expert else _POLICY
    return chosen


def _kept(walk: _Walk, end: Walked | Skipped, mixture: Mixture) -> Recorded | Skipped:
    """The rollout as an episode; one without any step is skipped."""
    assert isinstance(end, Walked), "a walk that has begun ends as one"
    if not end.steps:
        return Skipped(walk.episode, str(end.end))
    about = {
        "round": mixture.round,
        "by": walk.by[: len(end.steps)],
        "end": end.end or "STOP",
        "full_from": walk.full_from,
    }
    metadata = {**walk.episode.metadata, ABOUT: about}
    episode = replace(walk.episode, embodiment=end.body, steps=end.steps, metadata=metadata)
    return Recorded(episode, end.frames)
