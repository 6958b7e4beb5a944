"""Natural language for a described route, in several phrasings.

    Turn around and leave the kitchen. Turn left into the corridor, pass the green plant and take
    the second door on the right into the bedroom. Stop next to the red sofa on your left.

Each sentence is drawn from templates with synonyms; all phrasings of a route say the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from vla_nav.simulators.houses.description import Leg, RouteDescription
from vla_nav.simulators.houses.placement import PlacedObject

_LONG_WORDS = 36  # longer instructions are drawn again without a landmark
_LANDMARK_SHARE = 0.5  # of the phrasings that name a landmark where there is one
_ORDINALS = ("", "first", "second", "third", "fourth", "fifth", "sixth")
_NUM_TRIES = 20


def phrase_route(
    route: RouteDescription, rng: np.random.Generator, *, num_phrasings: int
) -> tuple[str, ...]:
    """`num_phrasings` different instructions for one route (fewer if the templates run out)."""
    phrasings: list[str] = []
    for _ in range(_NUM_TRIES * num_phrasings):
        text = _phrase(route, rng, has_landmark=rng.random() < _LANDMARK_SHARE)
        if len(text.split()) > _LONG_WORDS:
            text = _phrase(route, rng, has_landmark=False)
        if text not in phrasings:
            phrasings.append(text)
        if len(phrasings) == num_phrasings:
            break
    return tuple(phrasings)


def object_phrase(item: PlacedObject) -> str:
    """`the red sofa`."""
    return f"the {item.colour} {item.kind}"


def _phrase(route: RouteDescription, rng: np.random.Generator, *, has_landmark: bool) -> str:
    hall = _one(rng, ("corridor", "hallway"))
    your = _one(rng, ("your", "the"))
    sentences = []
    legs = route.legs
    first, following = legs[0], legs[1]
    opening = _start(first, rng)
    if following.room.kind == "corridor":
        sentences.append(
            f"{opening} {_one(rng, ('leave', 'exit', 'walk out of'))} the {first.room.kind}"
        )
    else:
        sentences.append(f"{opening} go from the {first.room.kind} into the {following.room.kind}")
    for leg, target in pairwise(legs[1:]):
        if leg.room.kind == "corridor":
            sentences.append(_along_corridor(leg, target, rng, hall, your, has_landmark))
        elif leg.room.kind != "stairs":
            way = _one(rng, ("go through", "cross", "walk through"))
            to = hall if target.room.kind == "corridor" else target.room.kind
            sentences.append(f"{way} the {leg.room.kind} to the {to}")
    sentences.append(_ending(route, rng, your))
    return " ".join(sentence[0].upper() + sentence[1:] + "." for sentence in sentences)


def _start(leg: Leg, rng: np.random.Generator) -> str:
    """The first turn, up to the next verb: `turn left and`."""
    if leg.turn == "straight":
        return _one(rng, ("go straight ahead and", "walk forward and", "walk straight and"))
    if leg.turn == "around":
        return _one(rng, ("turn around and", "turn back and"))
    if leg.turn.startswith("slight "):
        return f"turn slightly {leg.turn.removeprefix('slight ')} and"
    return f"turn {leg.turn} and"


def _along_corridor(
    leg: Leg, target: Leg, rng: np.random.Generator, hall: str, your: str, has_landmark: bool
) -> str:
    """The way along the corridor and into the next room."""
    if leg.is_across:
        way = _one(rng, (f"cross the {hall}", f"go straight across the {hall}"))
    elif leg.turn in ("left", "right"):
        way = _one(
            rng,
            (f"turn {leg.turn} into the {hall}", f"go {leg.turn} along the {hall}"),
        )
    else:
        way = _one(rng, (f"walk along the {hall}", f"go straight along the {hall}"))
    if has_landmark and leg.landmarks:
        passed = leg.landmarks[0]
        way += f", {_one(rng, ('pass', 'walk past'))} {object_phrase(passed)}"
    return f"{way} and {_through_exit(leg, target, rng, hall, your)}"


def _through_exit(leg: Leg, target: Leg, rng: np.random.Generator, hall: str, your: str) -> str:
    if target.climb != 0:
        word = "up" if target.climb > 0 else "down"
        where = f" on {your} {leg.exit_turn}" if leg.exit_turn in ("left", "right") else " ahead"
        return _one(rng, (f"go {word} the stairs{where}", f"take the stairs {word}{where}"))
    name = f"the {target.room.kind}"
    if leg.is_across:
        return _one(rng, (f"enter {name} opposite", f"go into {name} straight ahead"))
    if leg.exit_ordinal == 0:
        return _one(rng, (f"enter {name} at the end", f"go into {name} at the end"))
    door = f"the {_ORDINALS[leg.exit_ordinal]} door on {your} {leg.exit_turn}"
    return _one(
        rng, (f"take {door} into {name}", f"enter {name}, {door}", f"go through {door} into {name}")
    )


def _ending(route: RouteDescription, rng: np.random.Generator, your: str) -> str:
    stop = _one(rng, ("stop next to", "stop beside", "wait next to", "stop at", "wait by"))
    side = f"on {your} {route.goal_side}"
    if route.goal_side == "straight":
        side = _one(rng, ("in front of you", "straight ahead"))
    return f"{stop} {object_phrase(route.goal)} {side}"


def _one(rng: np.random.Generator, options: Sequence[str]) -> str:
    return options[int(rng.integers(len(options)))]
