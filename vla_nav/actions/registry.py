"""Action spaces by name: the way from a config or a checkpoint's description back to a space."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vla_nav.actions.chunk import ChunkSpace
from vla_nav.actions.discrete import DiscreteSpace
from vla_nav.actions.pointing import PointingSpace
from vla_nav.actions.types import ActionSpace
from vla_nav.actions.waypoint import WaypointSpace
from vla_nav.errors import UserError, unknown_name

SPACES: dict[str, Callable[..., ActionSpace]] = {
    "discrete": DiscreteSpace,
    "chunk": ChunkSpace,
    "waypoint": WaypointSpace,
    "pointing": PointingSpace,
}


def build_space(description: Mapping[str, object]) -> ActionSpace:
    """The space of `ActionSpace.describe()`. Raises `UserError` for unknown names or keys."""
    options = dict(description)
    name = str(options.pop("name", None))
    if name not in SPACES:
        raise unknown_name("action space", name, SPACES)
    try:
        return SPACES[name](**options)
    except TypeError as error:
        raise UserError(f"actions={name}: {error}") from None
