"""How an expert's primitive actions are cut into decisions: what one policy call is asked for.

    primitive              | L | L | F | F | F | F | F | R | STOP |
    turn_then_forward(4)   | L   L   F   F   F   F | F | R | STOP |
    fixed(3)               | L   L   F | F   F   F | F   R | STOP |

STOP is always a decision of its own, so every rule teaches it exactly once. The rule is written
with the data (one frame is recorded per decision) and belongs to an action space
(`ActionSpace.decision`): training and evaluation refuse a space whose rule is another one.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from vla_nav.episodes.types import LOOK_DOWN, LOOK_UP, MOVE_FORWARD, STOP, TURN_LEFT, TURN_RIGHT
from vla_nav.errors import UserError, unknown_name

RULE_NAMES = ("primitive", "turn_then_forward", "fixed")
_TURNS = frozenset((TURN_LEFT, TURN_RIGHT, LOOK_UP, LOOK_DOWN))


@dataclass(frozen=True, slots=True)
class DecisionRule:
    """A rule's name and its count: forward steps (`turn_then_forward`) or actions (`fixed`)."""

    name: str
    count: int = 1

    def __post_init__(self) -> None:
        if self.name not in RULE_NAMES:
            raise unknown_name("decision rule", self.name, RULE_NAMES)
        if self.count < 1:
            raise UserError(f"decision rule {self.name}({self.count}): the count must be >= 1")
        if self.name == "primitive" and self.count != 1:
            raise UserError(f"decision rule primitive({self.count}): use fixed({self.count})")

    def __str__(self) -> str:
        return self.name if self.name == "primitive" else f"{self.name}({self.count})"

    @staticmethod
    def parse(text: str | DecisionRule) -> DecisionRule:
        """The rule of a text such as `primitive`, `turn_then_forward(4)` or `fixed(3)`."""
        if isinstance(text, DecisionRule):
            return text
        match = re.fullmatch(r"\s*([a-z_]+)\s*(?:\(\s*(?:[a-z_]+\s*=\s*)?(\d+)\s*\))?\s*", text)
        if match is None:
            raise UserError(
                f"decision rule '{text}' is not understood; allowed: primitive, "
                "turn_then_forward(4), fixed(3)"
            )
        name, count = match.groups()
        default = 4 if name == "turn_then_forward" else 1
        return DecisionRule(name, int(count) if count else default)


def primitive() -> DecisionRule:
    """One primitive action per decision."""
    return DecisionRule("primitive")


def turn_then_forward(max_forward: int = 4) -> DecisionRule:
    """The leading turns, then up to `max_forward` forward steps; STOP is a decision of its own."""
    return DecisionRule("turn_then_forward", max_forward)


def fixed(num_primitives: int) -> DecisionRule:
    """`num_primitives` actions per decision, fewer before STOP."""
    return DecisionRule("fixed", num_primitives)


def cut(primitives: tuple[int, ...], rule: DecisionRule) -> tuple[int, ...]:
    """The first decision of `primitives` under `rule`; empty only for an empty input.

    >>> cut((TURN_LEFT, MOVE_FORWARD, MOVE_FORWARD, STOP), turn_then_forward(1))
    (2, 1)
    """
    if primitives[:1] == (STOP,):
        return (STOP,)
    if rule.name != "turn_then_forward":
        head = primitives[: rule.count]
        return head[: head.index(STOP)] if STOP in head else head
    num_turns = 0
    while num_turns < len(primitives) and primitives[num_turns] in _TURNS:
        num_turns += 1
    end = num_turns
    while (
        end < len(primitives) and end - num_turns < rule.count and primitives[end] == MOVE_FORWARD
    ):
        end += 1
    return primitives[:end]


def stated_rule(decisions: Collection[tuple[int, ...]]) -> DecisionRule | None:
    """The simplest rule under which every one of `decisions` is one decision, or None.

    >>> str(stated_rule([(TURN_LEFT, MOVE_FORWARD, MOVE_FORWARD), (STOP,)]))
    'turn_then_forward(2)'
    """
    longest = max(map(len, decisions), default=0)
    if longest <= 1:
        return primitive()
    most = max(decision.count(MOVE_FORWARD) for decision in decisions)
    for rule in (turn_then_forward(max(1, most)), fixed(longest)):
        if all(cut(decision, rule) == decision for decision in decisions):
            return rule
    return None
