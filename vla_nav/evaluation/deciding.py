"""What slots that wait are told to do: by the network in batches, by chance, by the expert.

slots that wait --Observation--> Condition.observe --> Network.act, fresh slots and others apart
                                                       `- one by one where asked for
Action --> primitive actions, or (execution=geodesic) the place to go to by the shortest path
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from vla_nav.actions.decisions import cut
from vla_nav.actions.targets import Target, target_of
from vla_nav.actions.types import Action, ActionSpace
from vla_nav.episodes.types import STOP
from vla_nav.evaluation.conditions import Actor, Instructions, chance_decision
from vla_nav.evaluation.play import Notes, PlaySettings, Script, Unit
from vla_nav.evaluation.rollout import Decide
from vla_nav.simulators.protocol import Observation


class Network(Protocol):
    """A policy that decides for many slots at once (`vla_nav.models.policy.VLAPolicy`)."""

    space: ActionSpace

    def reset(self, slot: int, instruction: str, *, name: str) -> None:
        """Begin an episode in a slot; `name` seeds what is sampled in it."""
        ...

    def has_room(self, slot: int) -> bool:
        """Whether the slot's context takes another decision."""
        ...

    def act(self, observations: Mapping[int, Observation]) -> Mapping[int, Action]:
        """One decision for every slot given."""
        ...


@dataclass
class Slot:
    """Who plays in a slot. has_begun: the network knows its instruction."""

    number: int
    lane: int
    unit: Unit
    notes: Notes
    rng: np.random.Generator
    script: Script
    has_begun: bool = False


class Decided(NamedTuple):
    """By slot number, what to execute; the slots whose context is full; forwards that it took."""

    chosen: dict[int, Target | tuple[int, ...]]
    full: list[Slot]
    num_calls: int


def without_network(slot: Slot, request: Decide, settings: PlaySettings) -> tuple[int, ...]:
    """What chance or the expert decides."""
    if slot.unit.condition.actor is Actor.CHANCE:
        return chance_decision(
            settings.decision,
            settings.embodiment,
            slot.rng,
            stop_probability=settings.chance_stop_probability,
        )
    if request.outcome.label is None:
        slot.notes.remark = f"the expert gave up: {request.outcome.stuck}"
        return (STOP,)
    return cut(request.outcome.label.primitives, settings.decision)


class Decider:
    """Asks a network for slots. is_one_by_one: one slot per forward."""

    def __init__(
        self,
        network: Network,
        settings: PlaySettings,
        instructions: Instructions,
        *,
        is_one_by_one: bool,
    ) -> None:
        self._network, self._settings = network, settings
        self._instructions, self._is_one_by_one = instructions, is_one_by_one

    def decide(self, waiting: Mapping[int, Decide], slots: Mapping[int, Slot]) -> Decided:
        """Ask for every slot that waits."""
        seen: dict[int, Observation] = {}
        fresh, full = set(), []
        for number, request in sorted(waiting.items()):
            slot = slots[number]
            if not slot.has_begun:
                text = self._instructions.of(slot.unit.condition, slot.unit.episode)
                self._network.reset(number, text, name="/".join(slot.unit.key))
                slot.has_begun = True
                fresh.add(number)
            elif not self._network.has_room(number):
                full.append(slot)
                continue
            assert request.outcome.observation is not None
            seen[number] = slot.unit.condition.observe(request.outcome.observation)
        actions: dict[int, Action] = {}
        batches = self._batches(list(seen), fresh)
        for numbers in batches:
            actions.update(self._network.act({number: seen[number] for number in numbers}))
        chosen = {
            number: self._to_execute(action, dict(seen[number].depth))
            for number, action in actions.items()
        }
        return Decided(chosen, full, len(batches))

    def _batches(self, numbers: list[int], fresh: set[int]) -> list[list[int]]:
        """Slots to decide together. Those that begin bring a whole instruction; apart, they do not
        make the others wait for as many padded tokens."""
        if self._is_one_by_one:
            return [[number] for number in numbers]
        begin = [number for number in numbers if number in fresh]
        go_on = [number for number in numbers if number not in fresh]
        return [batch for batch in (begin, go_on) if batch]

    def _to_execute(self, action: Action, depth: dict[str, np.ndarray]) -> Target | tuple[int, ...]:
        """An action as primitive actions, or as the place to go to by the shortest path."""
        space, body = self._network.space, self._settings.embodiment
        if self._settings.execution == "geodesic":
            target = target_of(space, action, body, depth)
            if target is not None:
                return target
        return space.primitives(action, body, depth)
