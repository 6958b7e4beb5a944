"""What a data set of houses is made of, from the `houses` section of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from vla_nav.episodes.types import Embodiment
from vla_nav.errors import UserError, unknown_name
from vla_nav.simulators.houses.export import FORMAT_VERSION
from vla_nav.simulators.houses.house import HouseOptions
from vla_nav.simulators.houses.routes import RouteOptions

MAX_HOUSES = 1_000_000  # of a split
_HOUSE_BYTES = 400_000  # measured: GLB and metadata of one floor at detail 1
_EPISODE_BYTES = 6_000  # part file and episode file


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """The body in whose walkable area routes are drawn, and the motion that must solve them."""

    radius_m: float = 0.18
    height_m: float = 1.5
    turn_deg: float = 30.0
    step_m: float = 0.25

    def embodiment(self) -> Embodiment:
        """The body without cameras."""
        return Embodiment(
            (), self.radius_m, self.height_m, self.turn_deg, self.step_m, is_sliding=True
        )


@dataclass(frozen=True, slots=True)
class DatasetOptions:
    """All options; every house of a data set is made with the same ones."""

    num_train: int
    num_val_unseen: int
    episodes_per_house: int = 20
    instructions_per_route: int = 2
    house: HouseOptions = field(default_factory=HouseOptions)
    route: RouteOptions = field(default_factory=RouteOptions)
    agent: AgentOptions = field(default_factory=AgentOptions)

    def __post_init__(self) -> None:
        bounds = {
            "num_train": (0, MAX_HOUSES),
            "num_val_unseen": (0, MAX_HOUSES),
            "episodes_per_house": (1, 200),
            "instructions_per_route": (1, 10),
        }
        for key, (low, high) in bounds.items():
            value = getattr(self, key)
            if not low <= value <= high:
                raise UserError(f"houses.{key}={value}: allowed are {low} to {high}")

    @property
    def num_routes(self) -> int:
        """Routes of a house."""
        return -(-self.episodes_per_house // self.instructions_per_route)

    def num_houses(self, split: str) -> int:
        """How many houses a split has."""
        return {"train": self.num_train, "val_unseen": self.num_val_unseen}[split]

    def bytes_of(self, num_houses: int) -> int:
        """About how much disk so many houses and their episodes take."""
        scale = self.house.num_floors * self.house.detail**2
        return num_houses * (_HOUSE_BYTES * scale + _EPISODE_BYTES * self.episodes_per_house)

    def facts(self) -> dict[str, Any]:
        """Everything that shapes a single house and its episodes, as JSON values."""
        facts = asdict(self)
        del facts["num_train"], facts["num_val_unseen"]
        return {"format_version": FORMAT_VERSION, **facts}


def dataset_options(config: Mapping[str, Any]) -> DatasetOptions:
    """Read the `houses` section: the keys of `HouseOptions` stand directly in it."""
    config = dict(config)
    house_keys = {item.name for item in fields(HouseOptions)}
    house = {key: config.pop(key) for key in list(config) if key in house_keys}
    for key in ("num_rooms", "num_objects"):
        if key in house:
            house[key] = tuple(house[key])
    own_keys = {item.name for item in fields(DatasetOptions)} - {"house"}
    for key in config:
        if key not in own_keys:
            raise _unknown(key, own_keys | house_keys, "houses")
    parts = {
        "house": _built(HouseOptions, house, "houses"),
        "route": _built(RouteOptions, config.pop("route", {}), "houses.route"),
        "agent": _built(AgentOptions, config.pop("agent", {}), "houses.agent"),
    }
    return DatasetOptions(**{**config, **parts})


def _built(kind: type, values: Mapping[str, Any], place: str) -> Any:
    allowed = {item.name for item in fields(kind)}
    for key in values:
        if key not in allowed:
            raise _unknown(key, allowed, place)
    return kind(**values)


def _unknown(key: str, allowed: set[str], place: str) -> UserError:
    return unknown_name("key", f"{place}.{key}", [f"{place}.{name}" for name in allowed])
