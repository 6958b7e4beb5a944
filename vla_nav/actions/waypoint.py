"""Action space `waypoint`: a pose to reach in the agent's frame, one token per coordinate.

    polar (default)    STOP | bearing_k distance_m            final yaw = bearing
                       STOP | bearing_k distance_m yaw_j      with `yaw` in the order
    cartesian          STOP | yaw_j x_a y_b                   in any order

    x forward_m ^         polar on turn_then_forward data: (bearing, distance) is the decision
                |  * end  itself, "turn k times, walk m steps", so labels are exactly invertible.
                |.'       cartesian needs a grid finer than a step for that: at 30 degrees, three
    y left <----+         and four steps of 0.25 m end in the same cell of 0.25 m.

The label is the expert's pose at the end of its next decision (`decision`: turn_then_forward(4), or
fixed(n) for n primitives ahead). Coordinates are clipped, then rounded to the grid. The token
sequences that would not move the agent are outside the grammar; `encode` gives one step forward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vla_nav.actions.decisions import DecisionRule, cut
from vla_nav.actions.grammar import check_fallback, is_complete, token_mask, unparsed
from vla_nav.actions.manoeuvre import cartesian_plan, dead_reckon, grid_index, polar_plan
from vla_nav.actions.types import Action, Decoded, Primitives, Stop, Waypoint
from vla_nav.episodes.types import STOP, Embodiment, ExpertLabel, Pose, Step, wrap_angle
from vla_nav.errors import UserError, unknown_name

STOP_TOKEN = 0
ORDERS = {
    "polar": ("bearing", "distance"),
    "cartesian": ("yaw", "x", "y"),
}


class WaypointSpace:
    """Waypoints on a polar or cartesian grid.

    turn_deg, step_m: those of the data, used to place executed primitives.
    angle_deg: bins of yaw and bearing (default turn_deg). grid_m: bins of distance, x and y
    (default step_m). range_m: the largest distance, |x| and |y|; larger values are clipped.
    """

    name = "waypoint"

    def __init__(
        self,
        *,
        coordinates: str = "polar",
        order: Sequence[str] | None = None,
        turn_deg: float = 30.0,
        step_m: float = 0.25,
        angle_deg: float | None = None,
        grid_m: float | None = None,
        range_m: float = 1.0,
        decision: str | DecisionRule = "turn_then_forward(4)",
        fallback: str = "turn",
    ) -> None:
        if coordinates not in ORDERS:
            raise unknown_name("actions.coordinates", coordinates, ORDERS)
        self.coordinates = coordinates
        self.order = tuple(order) if order is not None else ORDERS[coordinates]
        self.turn_deg, self.step_m = float(turn_deg), float(step_m)
        self.angle_deg = float(turn_deg if angle_deg is None else angle_deg)
        self.grid_m = float(step_m if grid_m is None else grid_m)
        self.range_m = float(range_m)
        self.decision = DecisionRule.parse(decision)
        self.fallback = check_fallback(fallback)
        self._check()
        self._num_angles = round(360 / self.angle_deg)
        self._num_cells = math.floor(self.range_m / self.grid_m + 1e-6)
        sizes = {
            "yaw": self._num_angles,
            "bearing": self._num_angles,
            "distance": self._num_cells + 1,
            "x": 2 * self._num_cells + 1,
            "y": 2 * self._num_cells + 1,
        }
        first = STOP_TOKEN + 1
        self._ids: dict[str, range] = {}
        for key in self.order:
            self._ids[key] = range(first, first + sizes[key])
            first += sizes[key]
        self.num_tokens = first
        self.max_length = len(self.order)
        # The coordinates that are all zero for a waypoint that does not move the agent; a bearing
        # says nothing where the yaw is given and the distance is zero.
        self._moving = [key for key in self.order if key != "bearing" or "yaw" not in self.order]
        self.token_names = (
            "STOP",
            *(self._token_name(key, i) for key in self.order for i in self._ids[key]),
        )
        self._masks: dict[tuple[int, ...], np.ndarray] = {}

    def label(self, pose: Pose, label: ExpertLabel) -> Action:
        """The expert's pose at the end of its next decision, in the frame of `pose`."""
        decision = cut(label.primitives, self.decision)
        if decision[0] == STOP:
            return Stop()
        return Waypoint(*pose.relative(label.poses[len(decision) - 1]))

    def executed(self, step: Step) -> Action:
        """Where the executed primitives lead without obstacles."""
        return self._as_waypoint(Primitives(step.executed))

    def encode(self, action: Action) -> tuple[int, ...]:
        """STOP, or one id per coordinate in `order`."""
        action = self._as_waypoint(action)
        if isinstance(action, Stop):
            return (STOP_TOKEN,)
        cells = self._cells(action)
        if all(cells[key] == 0 for key in self._moving):
            cells["distance" if self.coordinates == "polar" else "x"] = 1
        return tuple(self._ids[key][cells[key] - self._lowest(key)] for key in self.order)

    def decode(self, tokens: tuple[int, ...]) -> Decoded:
        """The grid pose of the ids; total."""
        if not is_complete(self, tokens):
            return unparsed(self.fallback)
        if tokens[0] == STOP_TOKEN:
            return Decoded(Stop(), True)
        cells = {key: self._cell(key, token) for key, token in zip(self.order, tokens, strict=True)}
        angle = math.radians(self.angle_deg)
        if self.coordinates == "cartesian":
            x, y, yaw = cells["x"] * self.grid_m, cells["y"] * self.grid_m, cells["yaw"] * angle
            return Decoded(Waypoint(x, y, yaw), True)
        distance, bearing = cells["distance"] * self.grid_m, cells["bearing"] * angle
        yaw = cells.get("yaw", cells["bearing"]) * angle
        x, y = distance * math.cos(bearing), distance * math.sin(bearing)
        return Decoded(Waypoint(x, y, yaw), True)

    def allowed(self, prefix: tuple[int, ...]) -> np.ndarray:
        """STOP or the first coordinate; then the others in order; no sequence without motion."""
        mask = self._masks.get(prefix)
        if mask is None:
            mask = self._masks[prefix] = self._allowed(prefix)
        return mask

    def primitives(
        self, action: Action, embodiment: Embodiment, depth: dict[str, np.ndarray] | None = None
    ) -> tuple[int, ...]:
        """Turn to the bearing, walk, turn to the final yaw; never empty."""
        if isinstance(action, Stop):
            return (STOP,)
        if isinstance(action, Primitives):
            return action.ids
        assert isinstance(action, Waypoint), action
        turn_deg, step_m = embodiment.turn_deg, embodiment.step_m
        if self.coordinates == "cartesian":
            return cartesian_plan(
                action.forward_m,
                action.left_m,
                action.yaw_rad,
                turn_deg=turn_deg,
                step_m=step_m,
                grid_m=self.grid_m,
            )
        bearing, distance = _polar(action, step_m / 4)
        # Without a yaw token the heading on arrival is the bearing, whatever the turns' coarseness.
        yaw = action.yaw_rad if "yaw" in self.order or distance == 0 else bearing
        bearing = yaw if distance == 0 else bearing
        return polar_plan(bearing, distance, yaw, turn_deg=turn_deg, step_m=step_m)

    def describe(self) -> dict[str, object]:
        """Constructor keywords and the name."""
        return {
            "name": self.name,
            "coordinates": self.coordinates,
            "order": list(self.order),
            "turn_deg": self.turn_deg,
            "step_m": self.step_m,
            "angle_deg": self.angle_deg,
            "grid_m": self.grid_m,
            "range_m": self.range_m,
            "decision": str(self.decision),
            "fallback": self.fallback,
        }

    def _check(self) -> None:
        known, needed = {"yaw", *ORDERS[self.coordinates]}, set(ORDERS[self.coordinates])
        order = set(self.order)
        if len(order) != len(self.order) or not needed <= order <= known:
            raise UserError(
                f"actions.order: got {list(self.order)}, must hold each of {sorted(needed)} once"
                + (" and may hold yaw" if "yaw" not in needed else "")
            )
        if self.angle_deg <= 0 or abs(360 / self.angle_deg - round(360 / self.angle_deg)) > 1e-6:
            raise UserError(f"actions.angle_deg: got {self.angle_deg}, must divide 360")
        if not 0 < self.grid_m <= self.range_m:
            raise UserError(
                f"actions.grid_m: got {self.grid_m}, must be positive and <= range_m {self.range_m}"
            )

    def _as_waypoint(self, action: Action) -> Action:
        if not isinstance(action, Primitives):
            assert isinstance(action, Stop | Waypoint), action
            return action
        if action.ids[:1] == (STOP,):
            return Stop()
        return Waypoint(*dead_reckon(action.ids, turn_deg=self.turn_deg, step_m=self.step_m))

    def _cells(self, action: Waypoint) -> dict[str, int]:
        """Grid cells by coordinate, clipped."""
        cells: dict[str, int] = {}
        bearing, distance = _polar(action, self.grid_m / 2)
        if distance == 0 and "yaw" not in self.order:
            bearing = action.yaw_rad
        for key in self.order:
            if key in ("yaw", "bearing"):
                angle = action.yaw_rad if key == "yaw" else bearing
                cell = grid_index(math.degrees(wrap_angle(angle)), self.angle_deg)
                cells[key] = (cell - self._lowest(key)) % self._num_angles + self._lowest(key)
            else:
                value = {"distance": distance, "x": action.forward_m, "y": action.left_m}[key]
                lowest = self._lowest(key)
                cells[key] = max(lowest, min(self._num_cells, grid_index(value, self.grid_m)))
        return cells

    def _lowest(self, key: str) -> int:
        """The cell of a coordinate's first id."""
        if key in ("yaw", "bearing"):
            return -((self._num_angles - 1) // 2)
        return 0 if key == "distance" else -self._num_cells

    def _cell(self, key: str, token: int) -> int:
        return token - self._ids[key].start + self._lowest(key)

    def _allowed(self, prefix: tuple[int, ...]) -> np.ndarray:
        if len(prefix) >= self.max_length or prefix[:1] == (STOP_TOKEN,):
            return token_mask(self.num_tokens)
        key = self.order[len(prefix)]
        ids = self._ids[key]
        if not prefix:
            return token_mask(self.num_tokens, range(STOP_TOKEN, STOP_TOKEN + 1), ids)
        cells = {
            key: self._cell(key, token) for key, token in zip(self.order, prefix, strict=False)
        }
        others = [other for other in self._moving if other != key]
        is_still = key in self._moving and all(cells.get(other, 1) == 0 for other in others)
        if not is_still:
            return token_mask(self.num_tokens, ids)
        zero = ids.start - self._lowest(key)
        return token_mask(self.num_tokens, range(ids.start, zero), range(zero + 1, ids.stop))

    def _token_name(self, key: str, token: int) -> str:
        cell = self._cell(key, token)
        if key in ("yaw", "bearing"):
            return f"{key}{cell * self.angle_deg:+g}"
        return f"{key}{cell * self.grid_m:+g}"


def _polar(action: Waypoint, nothing_m: float) -> tuple[float, float]:
    """(bearing_rad, distance_m); both 0 where the distance rounds to nothing."""
    distance = math.hypot(action.forward_m, action.left_m)
    if distance < nothing_m:
        return 0.0, 0.0
    return math.atan2(action.left_m, action.forward_m), distance
