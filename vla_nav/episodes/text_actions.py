"""Actions as English text, NaVILA's way, decoded totally: every text is an action or `unparsed`.

    The next action is move forward 75 cm.                            F F F     (step 0.25 m)
    The next action is turn left 30 degree.                           L L       (turn 15 deg)
    I think I should stop because I have finished the instruction.    STOP

Public data has these texts with 25, 50, 75 cm and 15, 30, 45 degree (NaVILA-Dataset R2R: ten texts
in 353,894 records). Case, blanks, the final period, `degrees`, `75cm` and a missing "The next
action is" make no difference; a whole number of units from 1 to 12 is read. Everything else (other
words, another amount, several actions, nothing, thousands of tokens) is outside the grammar: the
declared fallback is taken and `is_parsed` is False. NaVILA's own evaluation
(evaluation/vlnce_baselines/navila_trainer.py, AnjieCheng/NaVILA) searches for words instead: any
text with "stop" in it stops, and an amount that it cannot find is one unit.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from vla_nav.episodes.types import MOVE_FORWARD, STOP, TURN_LEFT, TURN_RIGHT
from vla_nav.errors import UserError, unknown_name

FALLBACKS: dict[str, tuple[int, ...]] = {"turn": (TURN_LEFT,), "stop": (STOP,)}
MAX_UNITS = 12  # of one text: 3 m or half a turn
MAX_CHARACTERS = 200  # a longer text is no action

_STOP_SENTENCE = "i think i should stop because i have finished the instruction"
_GRAMMAR = re.compile(
    r"(?:the next action is )?(?:"
    r"(?P<stop>stop)"
    r"|move forward (?P<cm>[0-9]{1,4}) ?(?:cm|centimet(?:er|re)s?)"
    r"|turn (?P<side>left|right) (?P<deg>[0-9]{1,3}) ?(?:deg|degrees?)"
    r")"
)


class TextAction(NamedTuple):
    """The primitives of a text; where `is_parsed` is False, those of the declared fallback."""

    primitives: tuple[int, ...]
    is_parsed: bool


def decode_action_text(
    text: object, *, turn_deg: float = 15.0, step_m: float = 0.25, fallback: str = "turn"
) -> TextAction:
    """The action of a text; total: no text, however long or odd, raises.

    fallback: "turn" (one turn to the left) or "stop"; another one is a `UserError`.

    >>> decode_action_text("The next action is turn right 45 degree.")
    TextAction(primitives=(3, 3, 3), is_parsed=True)
    >>> decode_action_text("go forward a bit")
    TextAction(primitives=(2,), is_parsed=False)
    """
    if fallback not in FALLBACKS:
        raise unknown_name("fallback of text actions", fallback, FALLBACKS)
    unparsed = TextAction(FALLBACKS[fallback], False)
    if not isinstance(text, str) or len(text) > MAX_CHARACTERS:
        return unparsed
    plain = " ".join(text.lower().split()).removesuffix(".").rstrip()
    if plain == _STOP_SENTENCE:
        return TextAction((STOP,), True)
    match = _GRAMMAR.fullmatch(plain)
    if match is None:
        return unparsed
    if match["stop"]:
        return TextAction((STOP,), True)
    if match["cm"]:
        primitive, count = MOVE_FORWARD, _units(int(match["cm"]), 100 * step_m)
    else:
        primitive = TURN_LEFT if match["side"] == "left" else TURN_RIGHT
        count = _units(int(match["deg"]), turn_deg)
    return TextAction((primitive,) * count, True) if count else unparsed


def action_text(
    primitives: tuple[int, ...], *, turn_deg: float = 15.0, step_m: float = 0.25
) -> str:
    """The text of equal primitives, as the public data spells it.

    Raises `UserError` for what no one text says: none, mixed or more than `MAX_UNITS` primitives.
    """
    kinds = set(primitives)
    count = len(primitives)
    if kinds == {STOP} and count == 1:
        return "I think I should stop because I have finished the instruction."
    if kinds == {MOVE_FORWARD} and count <= MAX_UNITS:
        return f"The next action is move forward {count * step_m * 100:g} cm."
    if kinds in ({TURN_LEFT}, {TURN_RIGHT}) and count <= MAX_UNITS:
        side = "left" if TURN_LEFT in kinds else "right"
        return f"The next action is turn {side} {count * turn_deg:g} degree."
    raise UserError(
        f"text action of primitives {primitives}: one text says STOP, or 1 to {MAX_UNITS} "
        "MOVE_FORWARD, TURN_LEFT or TURN_RIGHT of one kind"
    )


def _units(amount: int, unit: float) -> int:
    """How many units an amount is; 0 unless it is a whole number of them, 1 .. `MAX_UNITS`."""
    count = round(amount / unit)
    return count if 1 <= count <= MAX_UNITS and abs(count * unit - amount) < 1e-6 else 0
