"""Action spaces <-> tokens: discrete, chunk, waypoint, pointing; decisions; total decoding."""

from vla_nav.actions.chunk import ChunkSpace
from vla_nav.actions.decisions import DecisionRule, cut
from vla_nav.actions.discrete import DiscreteSpace
from vla_nav.actions.grammar import decode_text
from vla_nav.actions.pointing import PointingSpace, farthest_visible
from vla_nav.actions.registry import build_space
from vla_nav.actions.targets import Target, target_of
from vla_nav.actions.types import (
    Action,
    ActionSpace,
    Decoded,
    Pointing,
    Primitives,
    Stop,
    Waypoint,
)
from vla_nav.actions.waypoint import WaypointSpace

__all__ = [
    "Action",
    "ActionSpace",
    "ChunkSpace",
    "DecisionRule",
    "Decoded",
    "DiscreteSpace",
    "Pointing",
    "PointingSpace",
    "Primitives",
    "Stop",
    "Target",
    "Waypoint",
    "WaypointSpace",
    "build_space",
    "cut",
    "decode_text",
    "farthest_visible",
    "target_of",
]
