"""Actions a policy may take, and what an action space must offer to turn them into tokens.

An action space owns a small vocabulary of local ids 0 .. num_tokens-1; a model appends it behind
its text vocabulary. `encode` and `decode` are inverse on what `encode` emits, and `decode` is
total: any token sequence gives an action, with `is_parsed` False and the declared fallback where
the sequence is outside the grammar.

    Waypoint frame (the agent's):  x forward, y left, yaw counter-clockwise

              forward_m
                 ^
                 |
    left_m <-----+
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from vla_nav.actions.decisions import DecisionRule
from vla_nav.episodes.types import Camera, Embodiment, ExpertLabel, Pose, Step


@dataclass(frozen=True, slots=True)
class Stop:
    """End the episode here."""


@dataclass(frozen=True, slots=True)
class Primitives:
    """One or more primitive actions to execute in order (ids of `vla_nav.episodes.types`)."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Waypoint:
    """A pose to reach, in the agent's frame."""

    forward_m: float
    left_m: float
    yaw_rad: float


@dataclass(frozen=True, slots=True)
class Pointing:
    """A pixel to walk to (`u`, `v` in [0, 1] from left and top) and the heading to take there."""

    camera: str
    u: float
    v: float
    yaw_rad: float


Action = Stop | Primitives | Waypoint | Pointing


class Decoded(NamedTuple):
    """An action, and whether the tokens were inside the grammar (else the fallback was taken)."""

    action: Action
    is_parsed: bool


class ActionSpace(Protocol):
    """What a policy predicts: labels, tokens, decoding, and the primitives that execute it."""

    name: str
    num_tokens: int
    max_length: int
    token_names: tuple[str, ...]
    decision: DecisionRule

    def label(self, pose: Pose, label: ExpertLabel) -> Action:
        """The action that the expert's label at `pose` asks for."""
        ...

    def executed(self, step: Step) -> Action:
        """The executed primitives of a step as an action of this space (context of later steps)."""
        ...

    def encode(self, action: Action) -> tuple[int, ...]:
        """Local token ids, 1 .. max_length of them; values are clipped to the grid first."""
        ...

    def decode(self, tokens: tuple[int, ...]) -> Decoded:
        """The action of local token ids; total."""
        ...

    def allowed(self, prefix: tuple[int, ...]) -> np.ndarray:
        """Which ids may follow `prefix`: (num_tokens,) bool; all False once it is complete."""
        ...

    def primitives(
        self, action: Action, embodiment: Embodiment, depth: dict[str, np.ndarray] | None = None
    ) -> tuple[int, ...]:
        """The primitive actions that execute `action`; STOP alone for `Stop`.

        depth: camera name -> (H, W) float32 metres, used by `Pointing` where it is given.
        """
        ...

    def describe(self) -> dict[str, object]:
        """Plain values that rebuild this space; stored in checkpoints and compared on loading."""
        ...


def camera_named(embodiment: Embodiment, name: str) -> Camera:
    """The camera of that name. Raises `KeyError` where there is none."""
    for camera in embodiment.cameras:
        if camera.name == name:
            return camera
    raise KeyError(name)
