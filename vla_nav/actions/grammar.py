"""Total decoding: any token sequence becomes an action, and the ones outside the grammar count.

A space states its grammar by `allowed(prefix)` alone. A sequence is inside it when every token is
allowed after those before it and nothing is allowed after the last:

    waypoint (bearing, distance):   STOP  |  bearing_k distance_m
                                    ^ allowed after (): STOP and bearings; after STOP: nothing

Outside it (empty, cut short, too long, foreign ids) the declared fallback is taken: `turn`, one
turn to the left, which changes the view and costs a step, or `stop`, which ends the episode. It is
never a step forward, and the caller learns of it by `Decoded.is_parsed` being False.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vla_nav.actions.types import Action, ActionSpace, Decoded, Primitives, Stop
from vla_nav.episodes.types import TURN_LEFT
from vla_nav.errors import unknown_name

FALLBACKS: dict[str, Action] = {"turn": Primitives((TURN_LEFT,)), "stop": Stop()}


def check_fallback(name: str) -> str:
    """`name`, if it is a declared fallback. Raises `UserError` otherwise."""
    if name not in FALLBACKS:
        raise unknown_name("actions.fallback", name, FALLBACKS)
    return name


def is_complete(space: ActionSpace, tokens: Sequence[int]) -> bool:
    """Whether `tokens` is one whole sequence of the grammar; looks at max_length at most."""
    tokens = tuple(tokens)
    if not 1 <= len(tokens) <= space.max_length:
        return False
    for index, token in enumerate(tokens):
        if not 0 <= token < space.num_tokens or not space.allowed(tokens[:index])[token]:
            return False
    return not space.allowed(tokens).any()


def unparsed(fallback: str) -> Decoded:
    """The declared fallback, marked as not parsed."""
    return Decoded(FALLBACKS[fallback], False)


def token_mask(num_tokens: int, *ranges: range) -> np.ndarray:
    """(num_tokens,) bool, read-only, True on the given ranges of ids."""
    mask = np.zeros(num_tokens, dtype=bool)
    for ids in ranges:
        mask[ids.start : ids.stop] = True
    mask.flags.writeable = False
    return mask


def decode_text(space: ActionSpace, text: str) -> Decoded:
    """The action of a text of token names (`token_names`) parted by blanks or commas; total.

    >>> decode_text(DiscreteSpace(), "go forward a bit")
    Decoded(action=Primitives(ids=(2,)), is_parsed=False)
    """
    ids = {name.lower(): index for index, name in enumerate(space.token_names)}
    words = text[:4096].lower().replace(",", " ").split()
    return space.decode(tuple(ids.get(word, -1) for word in words[: space.max_length + 1]))
