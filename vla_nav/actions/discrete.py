"""Action space `discrete`: one token per primitive action, one primitive per decision.

ids   0 STOP | 1 MOVE_FORWARD | 2 TURN_LEFT | 3 TURN_RIGHT | (4 LOOK_UP | 5 LOOK_DOWN)
"""

from __future__ import annotations

import numpy as np

from vla_nav.actions.decisions import DecisionRule, primitive
from vla_nav.actions.grammar import check_fallback, is_complete, token_mask, unparsed
from vla_nav.actions.types import Action, Decoded, Primitives, Stop
from vla_nav.episodes.types import PRIMITIVE_NAMES, STOP, Embodiment, ExpertLabel, Pose, Step
from vla_nav.errors import UserError


class DiscreteSpace:
    """One primitive action per decision. `looks` adds LOOK_UP and LOOK_DOWN."""

    name = "discrete"
    max_length = 1

    def __init__(self, *, looks: bool = False, fallback: str = "turn") -> None:
        self.num_tokens = 6 if looks else 4
        self.fallback = check_fallback(fallback)
        self.decision: DecisionRule = primitive()
        self.token_names = PRIMITIVE_NAMES[: self.num_tokens]
        self._first = token_mask(self.num_tokens, range(self.num_tokens))
        self._none = token_mask(self.num_tokens)

    def label(self, pose: Pose, label: ExpertLabel) -> Action:
        """The expert's next primitive."""
        return _action(label.primitives[:1])

    def executed(self, step: Step) -> Action:
        """The step's one primitive. Raises `UserError` where a step has several."""
        return _action(step.executed)

    def encode(self, action: Action) -> tuple[int, ...]:
        """One id."""
        primitive_id = self.primitives(action, None)[0]
        if primitive_id >= self.num_tokens:
            raise UserError(
                f"actions=discrete has no {PRIMITIVE_NAMES[primitive_id]}; set actions.looks=true"
            )
        return (primitive_id,)

    def decode(self, tokens: tuple[int, ...]) -> Decoded:
        """The primitive of one id; total."""
        if not is_complete(self, tokens):
            return unparsed(self.fallback)
        return Decoded(_action(tokens), True)

    def allowed(self, prefix: tuple[int, ...]) -> np.ndarray:
        """Every id first, nothing after it."""
        return self._none if prefix else self._first

    def primitives(
        self,
        action: Action,
        embodiment: Embodiment | None,
        depth: dict[str, np.ndarray] | None = None,
    ) -> tuple[int, ...]:
        """The action's own primitives."""
        if isinstance(action, Stop):
            return (STOP,)
        assert isinstance(action, Primitives), action
        return action.ids

    def describe(self) -> dict[str, object]:
        """Constructor keywords and the name."""
        return {"name": self.name, "looks": self.num_tokens == 6, "fallback": self.fallback}


def _action(primitives: tuple[int, ...]) -> Action:
    if len(primitives) != 1:
        raise UserError(
            f"actions=discrete needs one primitive action per decision, got {len(primitives)}; "
            "record with decision=primitive, or choose actions=waypoint or actions=chunk"
        )
    return Stop() if primitives[0] == STOP else Primitives(tuple(primitives))
