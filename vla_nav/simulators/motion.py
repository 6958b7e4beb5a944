"""One primitive action from any pose: Habitat's semantics on the walkable area.

MOVE_FORWARD goes `step_m` along the heading over the floor. Where the clearance falls to the
agent's radius the agent stops (sliding off), or the rest of the step goes on along the obstacle
(sliding on), as if dragged to the walkable point nearest to its target:

        target x                     contact c, obstacle's normal n
             . |                     rest' = rest - (rest . n) n
    start . c -+--> slides           repeated until the rest is used up
               | n <-
"""

from __future__ import annotations

import math

from vla_nav.episodes.types import (
    LOOK_DOWN,
    LOOK_UP,
    MOVE_FORWARD,
    PRIMITIVE_NAMES,
    STOP,
    TURN_LEFT,
    TURN_RIGHT,
    Embodiment,
    Pose,
)
from vla_nav.errors import UserError
from vla_nav.simulators.protocol import Motion
from vla_nav.simulators.walkable import Walkable

_COLLISION_EPS_M = 1e-5  # a step shorter than asked for by more than this is a collision
_SNAP_HEIGHT_M = 0.6  # how far above or below a given point its floor may be
_MAX_SLIDES = 4
_CONTACT_SLACK_M = 1e-5
_CONTACT_M = 5e-4  # contact is found to this accuracy


class Mover:
    """Moves over one walkable area. Looks tables up one number at a time: memory views are the
    fastest way to do that in Python."""

    def __init__(self, walkable: Walkable, embodiment: Embodiment) -> None:
        columns = walkable.columns
        self._cell_m = columns.cell_m
        self._x0, self._z0 = columns.x0_m, columns.z0_m
        self._num_x, self._num_z = columns.num_x, columns.num_z
        self._start = memoryview(columns.start)
        self._x = memoryview(columns.x_m)
        self._z = memoryview(columns.z_m)
        self._height = memoryview(columns.height_m)
        self._slope = memoryview(columns.slope.reshape(-1))
        self._links = memoryview(walkable.links.reshape(-1))
        self._stencil = memoryview(walkable.stencil_m.reshape(-1))
        self._radius = walkable.radius_m - 1e-4
        self._needed_m = self._radius
        self._sample_m = min(columns.cell_m, 0.1) * 0.9
        self._embodiment = embodiment
        half = math.radians(embodiment.turn_deg) / 2
        self._half_turn = math.sin(half), math.cos(half)

    def move(self, pose: Pose, primitive: int) -> Motion:
        """Where `primitive` leads from `pose`. LOOK_UP and LOOK_DOWN are not offered: cameras are
        fixed on the agent. Raises `UserError` for them and for a pose off the floor."""
        if primitive == MOVE_FORWARD:
            return self._forward(pose, self._embodiment.step_m)
        if primitive in (TURN_LEFT, TURN_RIGHT):
            sin, cos = self._half_turn
            return Motion(_turned(pose, -sin if primitive == TURN_RIGHT else sin, cos), False)
        if primitive == STOP:
            return Motion(pose, False)
        if primitive in (LOOK_UP, LOOK_DOWN):
            raise UserError(
                f"{PRIMITIVE_NAMES[primitive]} is not offered by the mesh simulator: its cameras "
                "are fixed; set the camera's pitch_deg instead"
            )
        raise UserError(f"unknown primitive action {primitive}; allowed: 0 .. 3")

    def drive(self, pose: Pose, forward_m: float, turn_rad: float) -> Motion:
        """Turn by any angle, then go any way, in equal pieces of at most a step."""
        if turn_rad:
            pose = _turned(pose, math.sin(turn_rad / 2), math.cos(turn_rad / 2))
        has_collided = False
        count = math.ceil(abs(forward_m) / self._embodiment.step_m - 1e-9)
        for _ in range(count):
            motion = self._forward(pose, forward_m / count)
            pose, has_collided = motion.pose, has_collided or motion.has_collided
        return Motion(pose, has_collided)

    def node_at(self, x: float, y: float, z: float) -> int:
        """The node whose cell holds (x, z), nearest in height to y; -1 if none is within reach."""
        ix, iz = (
            math.floor((x - self._x0) / self._cell_m),
            math.floor((z - self._z0) / self._cell_m),
        )
        if not (0 <= ix < self._num_x and 0 <= iz < self._num_z):
            return -1
        column = iz * self._num_x + ix
        best, best_m = -1, _SNAP_HEIGHT_M
        for node in range(self._start[column], self._start[column + 1]):
            away = abs(self._height[node] - y)
            if away < best_m:
                best, best_m = node, away
        return best

    def nearby(
        self, x: float, y: float, z: float, aside_m: float
    ) -> tuple[int, float, float] | None:
        """The node, x and z of a point with clearance enough at most about `aside_m` from (x, z)
        and on the floor next to y; None if moving away from the obstacle finds none."""
        node = self.node_at(x, y, z)
        if node < 0 or abs(self._height[node] - y) > _SNAP_HEIGHT_M / 2:
            return None
        if self.clearance(node, x, z) >= self._radius - _CONTACT_SLACK_M:
            return node, float(x), float(z)
        self._needed_m = self._radius
        return self._push_out(node, x, z, aside_m)

    def drag(
        self, start: tuple[float, float, float], target: tuple[float, float, float]
    ) -> tuple[float, float, float]:
        """The floor point nearest to `target` that a slide from the walkable point `start` finds;
        `start` itself where that comes no nearer."""
        x, y, z = start
        node = self.node_at(x, y, z)
        self._needed_m = self._radius
        node, x, z, rest_x, rest_z = self._advance(node, x, z, target[0] - x, target[2] - z)
        if rest_x or rest_z:
            node, x, z = self._slide(node, x, z, rest_x, rest_z)
        end = x, self.floor_height(node, x, z), z
        return end if math.dist(end, target) < math.dist(start, target) else start

    def clearance(self, node: int, x: float, z: float) -> float:
        """Clearance in metres at a point of the node's cell."""
        u = (x - self._x[node]) / self._cell_m
        v = (z - self._z[node]) / self._cell_m
        centre = node * 9 + 4
        side_x, side_z = (1, u) if u >= 0 else (-1, -u)
        step_z, side_v = (3, v) if v >= 0 else (-3, -v)
        table = self._stencil
        near = table[centre] + (table[centre + side_x] - table[centre]) * side_z
        far_x = table[centre + step_z]
        far = far_x + (table[centre + step_z + side_x] - far_x) * side_z
        return near + (far - near) * side_v

    def floor_height(self, node: int, x: float, z: float) -> float:
        """Height in metres of the floor at a point of the node's cell."""
        return (
            self._height[node]
            + self._slope[2 * node] * (x - self._x[node])
            + self._slope[2 * node + 1] * (z - self._z[node])
        )

    def off_the_wall(self, node: int, x: float, z: float, margin_m: float) -> tuple[float, float]:
        """(x, z) moved away from the nearest obstacle until the clearance exceeds the radius by
        `margin_m`, where there is room for that."""
        missing = self._radius + margin_m - self.clearance(node, x, z)
        if missing <= 0:
            return x, z
        normal_x, normal_z = self._normal(node, x, z)
        return x + normal_x * missing, z + normal_z * missing

    def _forward(self, pose: Pose, step_m: float) -> Motion:
        x, y, z = pose.position
        rx, ry, rz, rw = pose.rotation
        dx, dz = -2 * (rx * rz + rw * ry), -(1 - 2 * (rx * rx + ry * ry))
        scale = step_m / math.hypot(dx, dz)
        dx, dz = dx * scale, dz * scale
        node = self.node_at(x, y, z)
        if node < 0:
            raise UserError(
                f"position ({x:.3f}, {y:.3f}, {z:.3f}) is off the floor; reset to a walkable one"
            )
        # A pose already nearer to an obstacle than the radius may still move, only not closer.
        self._needed_m = min(self._radius, self.clearance(node, x, z) - 1e-6)
        start_x, start_z = x, z
        node, x, z, rest_x, rest_z = self._advance(node, x, z, dx, dz)
        if (rest_x or rest_z) and self._embodiment.is_sliding:
            node, x, z = self._slide(node, x, z, rest_x, rest_z)
        moved_m = math.hypot(x - start_x, z - start_z)
        has_collided = moved_m + _COLLISION_EPS_M < abs(step_m)
        return Motion(Pose((x, self.floor_height(node, x, z), z), pose.rotation), has_collided)

    def _advance(
        self, node: int, x: float, z: float, dx: float, dz: float
    ) -> tuple[int, float, float, float, float]:
        """Go straight by (dx, dz) until the clearance runs out: node, x, z and the rest left."""
        length = math.hypot(dx, dz)
        if length < 1e-9:
            return node, x, z, 0.0, 0.0
        count = math.ceil(length / self._sample_m)
        step_x, step_z = dx / count, dz / count
        for done in range(count):
            there = self._reach(node, x + step_x, z + step_z)
            if there < 0:
                low, high = 0.0, 1.0  # walkable at low, not at high
                while (high - low) * length / count > _CONTACT_M:
                    middle = (low + high) / 2
                    there = self._reach(node, x + step_x * middle, z + step_z * middle)
                    if there < 0:
                        high = middle
                    else:
                        low, best = middle, there
                if low:
                    node = best
                left = count - done - low
                return node, x + step_x * low, z + step_z * low, step_x * left, step_z * left
            node, x, z = there, x + step_x, z + step_z
        return node, x, z, 0.0, 0.0

    def _reach(self, node: int, x: float, z: float) -> int:
        """The node that holds (x, z), at most one cell from `node`; -1 unless walkable there."""
        there = self._hop(node, x, z)
        if there < 0 or self.clearance(there, x, z) < self._needed_m:
            return -1
        return there

    def _hop(self, node: int, x: float, z: float) -> int:
        half = self._cell_m / 2
        u, v = x - self._x[node], z - self._z[node]
        along_x = 0 if u >= half else (2 if u < -half else -1)
        along_z = 1 if v >= half else (3 if v < -half else -1)
        links = self._links
        if along_x < 0:
            return node if along_z < 0 else links[node * 4 + along_z]
        first = links[node * 4 + along_x]
        if along_z < 0:
            return first
        if first >= 0 and (there := links[first * 4 + along_z]) >= 0:
            return there
        first = links[node * 4 + along_z]
        return links[first * 4 + along_x] if first >= 0 else -1

    def _slide(
        self, node: int, x: float, z: float, rest_x: float, rest_z: float
    ) -> tuple[int, float, float]:
        for _ in range(_MAX_SLIDES):
            normal_x, normal_z = self._normal(node, x, z)
            into = rest_x * normal_x + rest_z * normal_z
            if into < 0:
                rest_x, rest_z = rest_x - into * normal_x, rest_z - into * normal_z
            length = math.hypot(rest_x, rest_z)
            if length < 1e-3:
                break
            # Short pieces, each pushed back onto the line of equal clearance, follow curved walls.
            piece = min(1.0, self._cell_m / 2 / length)
            goal_x, goal_z = x + rest_x * piece, z + rest_z * piece
            there = self._push_out(node, goal_x, goal_z, self._cell_m / 2)
            if there is None:
                node, x, z, rest_x, rest_z = self._advance(node, x, z, rest_x, rest_z)
                continue
            node, x, z = there
            rest_x, rest_z = rest_x * (1 - piece), rest_z * (1 - piece)
            node, x, z, rest_x, rest_z = self._advance(node, x, z, rest_x, rest_z)
        return node, x, z

    def _push_out(
        self, node: int, x: float, z: float, limit_m: float
    ) -> tuple[int, float, float] | None:
        """Node, x, z moved along the gradient until walkable; None if more than `limit_m` off."""
        for _ in range(3):
            there = self._hop(node, x, z)
            if there < 0:
                return None
            missing = self._needed_m - self.clearance(there, x, z)
            if missing <= 0:
                return there, x, z
            if missing > limit_m:
                return None
            normal_x, normal_z = self._normal(there, x, z)
            x += normal_x * (missing + 1e-4)
            z += normal_z * (missing + 1e-4)
        return None

    def _normal(self, node: int, x: float, z: float) -> tuple[float, float]:
        """Unit gradient of the clearance: away from the obstacle."""
        h = self._cell_m / 4
        gx = self._probe(node, x + h, z) - self._probe(node, x - h, z)
        gz = self._probe(node, x, z + h) - self._probe(node, x, z - h)
        length = math.hypot(gx, gz)
        return (gx / length, gz / length) if length > 1e-9 else (0.0, 0.0)

    def _probe(self, node: int, x: float, z: float) -> float:
        there = self._hop(node, x, z)
        # Off the graph the node's own stencil extrapolates into the obstacle.
        return self.clearance(there if there >= 0 else node, x, z)


def _turned(pose: Pose, sin: float, cos: float) -> Pose:
    """The pose after its rotation is multiplied by (0, sin, 0, cos) from the right."""
    x, y, z, w = pose.rotation
    rotation = (x * cos - z * sin, y * cos + w * sin, z * cos + x * sin, w * cos - y * sin)
    return Pose(pose.position, rotation)
