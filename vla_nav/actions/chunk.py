"""Action space `chunk`: the primitives of a whole decision, one token each.

    ids       0 STOP | 1 MOVE_FORWARD | 2 TURN_LEFT | 3 TURN_RIGHT | 4 END
    grammar   STOP  |  move move* END  |  move * length

    length 4:   F F F F        L F END        STOP

END closes a decision shorter than `length` (turn_then_forward decisions vary, and the one before
STOP is cut short); it never comes first, so every chunk moves the agent or stops.
"""

from __future__ import annotations

import numpy as np

from vla_nav.actions.decisions import DecisionRule, cut, fixed
from vla_nav.actions.grammar import check_fallback, is_complete, token_mask, unparsed
from vla_nav.actions.types import Action, Decoded, Primitives, Stop
from vla_nav.episodes.types import PRIMITIVE_NAMES, STOP, Embodiment, ExpertLabel, Pose, Step
from vla_nav.errors import UserError

_NUM_PRIMITIVES = 4
END = 4


class ChunkSpace:
    """Up to `length` primitives per decision; `decision` (default `fixed(length)`) cuts labels."""

    name = "chunk"

    def __init__(
        self, *, length: int, decision: str | DecisionRule | None = None, fallback: str = "turn"
    ) -> None:
        if length < 1:
            raise UserError(f"actions.length: got {length}, must be >= 1")
        self.max_length = length
        self.num_tokens = _NUM_PRIMITIVES + 1
        self.fallback = check_fallback(fallback)
        self.decision = fixed(length) if decision is None else DecisionRule.parse(decision)
        self.token_names = (*PRIMITIVE_NAMES[:_NUM_PRIMITIVES], "END")
        self._first = token_mask(self.num_tokens, range(_NUM_PRIMITIVES))
        self._later = token_mask(self.num_tokens, range(STOP + 1, _NUM_PRIMITIVES + 1))
        self._none = token_mask(self.num_tokens)

    def label(self, pose: Pose, label: ExpertLabel) -> Action:
        """The expert's next decision, at most `length` primitives of it."""
        return _action(cut(label.primitives, self.decision)[: self.max_length])

    def executed(self, step: Step) -> Action:
        """The step's primitives, at most `length` of them."""
        return _action(step.executed[: self.max_length])

    def encode(self, action: Action) -> tuple[int, ...]:
        """The primitives' ids, then END unless the chunk is full; what follows STOP is dropped."""
        ids = self.primitives(action, None)[: self.max_length]
        for primitive_id in ids:
            if primitive_id >= _NUM_PRIMITIVES:
                raise UserError(f"actions=chunk has no {PRIMITIVE_NAMES[primitive_id]}")
        if ids[0] == STOP:
            return (STOP,)
        ids = ids[: ids.index(STOP)] if STOP in ids else ids
        return ids if len(ids) == self.max_length else (*ids, END)

    def decode(self, tokens: tuple[int, ...]) -> Decoded:
        """The primitives before END; total."""
        if not is_complete(self, tokens):
            return unparsed(self.fallback)
        return Decoded(_action(tuple(t for t in tokens if t != END)), True)

    def allowed(self, prefix: tuple[int, ...]) -> np.ndarray:
        """Primitives first; then moves or END; nothing after STOP, END or `length` tokens."""
        if not prefix:
            return self._first
        is_done = len(prefix) >= self.max_length or prefix[-1] in (STOP, END)
        return self._none if is_done else self._later

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
        return {
            "name": self.name,
            "length": self.max_length,
            "decision": str(self.decision),
            "fallback": self.fallback,
        }


def _action(primitives: tuple[int, ...]) -> Action:
    assert primitives, "a decision has at least one primitive"
    return Stop() if primitives == (STOP,) else Primitives(tuple(primitives))
