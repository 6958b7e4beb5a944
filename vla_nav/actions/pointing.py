"""Action space `pointing`: a pixel to walk to and the heading to take there, else a waypoint.

    STOP | [camera_c] u_i v_j yaw_k | waypoint tokens (see waypoint.py), when nothing is in view

    +---------------------+
    |          .          |    label = the farthest visible point of the expert's remaining path
    |        .'           |    (depth test, `farthest_visible`), put there by the recorder
    |      x <- (u, v)    |    yaw = the path's heading at it, relative to the agent's
    |     .'              |
    +----.'---------------+    executed by the depth at the pixel, or by the ray's intersection
                               with the floor where there is no depth image

The camera token exists with several cameras only. A decision walks at most what `decision` allows,
so a far pixel is approached over several decisions. A ray above the horizon without depth is a
direction: the agent turns to it and walks one decision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from vla_nav.actions.decisions import DecisionRule, cut
from vla_nav.actions.grammar import check_fallback, is_complete, token_mask, unparsed
from vla_nav.actions.manoeuvre import grid_index, polar_plan
from vla_nav.actions.projection import project, ray, sample_depth, to_agent_frame, unproject
from vla_nav.actions.types import Action, Decoded, Pointing, Stop, camera_named
from vla_nav.actions.waypoint import WaypointSpace
from vla_nav.episodes.types import (
    STOP,
    Camera,
    Embodiment,
    ExpertLabel,
    PixelTarget,
    Pose,
    Step,
    wrap_angle,
)
from vla_nav.errors import UserError

STOP_TOKEN = 0


class PointingSpace:
    """Pixels on a `num_u` x `num_v` grid, yaw in bins of `angle_deg`, a waypoint as fallback.

    The grid's values are bin centres: u = (i + 1/2) / num_u. `max_forward` bounds the forward
    steps of a decision whose rule does not; `waypoint` holds the keywords of the fallback space.
    """

    name = "pointing"

    def __init__(
        self,
        *,
        cameras: Sequence[str] = ("front",),
        num_u: int = 32,
        num_v: int = 32,
        angle_deg: float = 30.0,
        waypoint: Mapping[str, object] | None = None,
        decision: str | DecisionRule = "turn_then_forward(4)",
        fallback: str = "turn",
    ) -> None:
        self.cameras = tuple(cameras)
        if not self.cameras or len(set(self.cameras)) != len(self.cameras):
            raise UserError(f"actions.cameras: got {list(self.cameras)}, need distinct names")
        if min(num_u, num_v) < 1 or abs(360 / angle_deg - round(360 / angle_deg)) > 1e-6:
            raise UserError(
                f"actions: got num_u={num_u}, num_v={num_v}, angle_deg={angle_deg}; "
                "need positive counts and an angle that divides 360"
            )
        self.num_u, self.num_v, self.angle_deg = num_u, num_v, float(angle_deg)
        self.decision = DecisionRule.parse(decision)
        self.fallback = check_fallback(fallback)
        options = {key: value for key, value in (waypoint or {}).items() if key != "name"}
        self.waypoint = WaypointSpace(
            **{**options, "decision": self.decision, "fallback": fallback}
        )
        sizes = [num_u, num_v, round(360 / self.angle_deg)]
        if len(self.cameras) > 1:
            sizes.insert(0, len(self.cameras))
        self._groups: list[range] = []
        first = STOP_TOKEN + 1
        for size in sizes:
            self._groups.append(range(first, first + size))
            first += size
        self._base = first - 1  # the fallback's id w >= 1 is our id _base + w; its STOP is ours
        self.num_tokens = first + self.waypoint.num_tokens - 1
        self.max_length = max(len(self._groups), self.waypoint.max_length)
        kinds = [*(["camera"] if len(self.cameras) > 1 else []), "u", "v", "heading"]
        self.token_names = (
            "STOP",
            *(
                f"{kind}{i}"
                for kind, ids in zip(kinds, self._groups, strict=True)
                for i in range(len(ids))
            ),
            *self.waypoint.token_names[1:],
        )
        self._masks: dict[tuple[int, ...], np.ndarray] = {}

    def label(self, pose: Pose, label: ExpertLabel) -> Action:
        """STOP, the recorded pixel, or the fallback waypoint when no pixel is in view."""
        if label.primitives[0] == STOP:
            return Stop()
        pixel = label.pixel
        if pixel is None or pixel.camera not in self.cameras:
            return self.waypoint.label(pose, label)
        return Pointing(pixel.camera, pixel.u, pixel.v, pixel.yaw_rad)

    def executed(self, step: Step) -> Action:
        """The executed primitives as a waypoint: they name no pixel."""
        return self.waypoint.executed(step)

    def encode(self, action: Action) -> tuple[int, ...]:
        """STOP, the pixel's ids, or the fallback's ids."""
        if isinstance(action, Stop):
            return (STOP_TOKEN,)
        if not isinstance(action, Pointing):
            ids = self.waypoint.encode(action)
            return tuple(STOP_TOKEN if i == STOP_TOKEN else self._base + i for i in ids)
        num_angles = len(self._groups[-1])
        heading = grid_index(math.degrees(wrap_angle(action.yaw_rad)), self.angle_deg) % num_angles
        cells = [_bin(action.u, self.num_u), _bin(action.v, self.num_v), heading]
        if len(self.cameras) > 1:
            cells.insert(0, self.cameras.index(action.camera))
        return tuple(ids[cell] for ids, cell in zip(self._groups, cells, strict=True))

    def decode(self, tokens: tuple[int, ...]) -> Decoded:
        """STOP, a pixel at its bin's centre, or the fallback's waypoint; total."""
        if not is_complete(self, tokens):
            return unparsed(self.fallback)
        if tokens[0] == STOP_TOKEN:
            return Decoded(Stop(), True)
        if tokens[0] > self._base:
            return self.waypoint.decode(tuple(token - self._base for token in tokens))
        cells = [token - ids.start for ids, token in zip(self._groups, tokens, strict=True)]
        camera = self.cameras[cells[0]] if len(self.cameras) > 1 else self.cameras[0]
        u, v = (cells[-3] + 0.5) / self.num_u, (cells[-2] + 0.5) / self.num_v
        return Decoded(
            Pointing(camera, u, v, wrap_angle(math.radians(cells[-1] * self.angle_deg))), True
        )

    def allowed(self, prefix: tuple[int, ...]) -> np.ndarray:
        """STOP, the first of a pixel or the first of a waypoint; then on along what was begun."""
        mask = self._masks.get(prefix)
        if mask is None:
            mask = self._masks[prefix] = self._allowed(prefix)
        return mask

    def primitives(
        self, action: Action, embodiment: Embodiment, depth: dict[str, np.ndarray] | None = None
    ) -> tuple[int, ...]:
        """Turn to the pixel, walk what the decision rule allows, turn to the heading on arrival."""
        if not isinstance(action, Pointing):
            return self.waypoint.primitives(action, embodiment)
        camera = camera_named(embodiment, action.camera)
        forward, left, _ = ground_point(action, camera, (depth or {}).get(action.camera))
        distance = min(math.hypot(forward, left), 100.0)  # a direction has no length of its own
        bearing = math.atan2(left, forward)
        turn_deg, step_m = embodiment.turn_deg, embodiment.step_m
        plan = polar_plan(bearing, distance, action.yaw_rad, turn_deg=turn_deg, step_m=step_m)
        return cut(plan, self.decision)

    def describe(self) -> dict[str, object]:
        """Constructor keywords and the name."""
        return {
            "name": self.name,
            "cameras": list(self.cameras),
            "num_u": self.num_u,
            "num_v": self.num_v,
            "angle_deg": self.angle_deg,
            "waypoint": self.waypoint.describe(),
            "decision": str(self.decision),
            "fallback": self.fallback,
        }

    def _allowed(self, prefix: tuple[int, ...]) -> np.ndarray:
        if prefix[:1] == (STOP_TOKEN,):
            return token_mask(self.num_tokens)
        if prefix and prefix[0] <= self._base:
            if len(prefix) >= len(self._groups):
                return token_mask(self.num_tokens)
            return token_mask(self.num_tokens, self._groups[len(prefix)])
        inner = self.waypoint.allowed(tuple(token - self._base for token in prefix))
        mask = np.zeros(self.num_tokens, dtype=bool)
        mask[self._base + 1 :] = inner[1:]
        if not prefix:
            mask[STOP_TOKEN] = True
            mask[self._groups[0].start : self._groups[0].stop] = True
        mask.flags.writeable = False
        return mask


def farthest_visible(
    path_points: np.ndarray,
    pose: Pose,
    camera: Camera,
    depth: np.ndarray | None,
    *,
    spacing_m: float = 0.1,
    tolerance: float = 0.05,
) -> PixelTarget | None:
    """The farthest point along a path that the camera sees, or None.

    path_points: (P, 3) corner points of the remaining path, world, metres, on the floor.
    depth: (H, W) float32 planar metres of this camera at `pose` (0 where nothing is hit), or None
    to test the field of view alone. A point is hidden when something is nearer than its own depth
    by more than `tolerance` (relative) plus 5 cm.
    """
    points, headings = _resample(path_points, spacing_m)
    if len(points) == 0:
        return None
    u, v, planar = project(to_agent_frame(points, pose), camera)
    with np.errstate(invalid="ignore"):
        is_visible = (u >= 0) & (u <= 1) & (v >= 0) & (v <= 1)
    candidates = np.flatnonzero(is_visible)
    if depth is not None and len(candidates):
        seen = sample_depth(depth, u[candidates], v[candidates])
        candidates = candidates[planar[candidates] * (1 - tolerance) - 0.05 <= seen]
    if len(candidates) == 0:
        return None
    last = candidates[-1]
    yaw = wrap_angle(float(headings[last]) - pose.yaw_rad)
    return PixelTarget(camera.name, float(u[last]), float(v[last]), yaw)


def ground_point(
    action: Pointing, camera: Camera, depth: np.ndarray | None
) -> tuple[float, float, float]:
    """(forward_m, left_m, up_m) that a pixel points at: by depth, else by the floor, else far."""
    if depth is not None:
        planar = float(sample_depth(depth, np.array([action.u]), np.array([action.v]))[0])
        if math.isfinite(planar):
            return unproject(action.u, action.v, planar, camera)
    forward, left, up = ray(action.u, action.v, camera)
    scale = camera.height_m / -up if up < -1e-3 else 1e3
    return forward * scale, left * scale, 0.0


def _resample(points: np.ndarray, spacing_m: float) -> tuple[np.ndarray, np.ndarray]:
    """Points every `spacing_m` along a polyline (N, 3), the end included, and headings (N,)."""
    points = np.asarray(points, dtype=np.float64).reshape(-1, 3)
    legs = np.diff(points, axis=0)
    lengths = np.linalg.norm(legs, axis=1)
    legs, lengths, starts = (
        legs[lengths > 1e-9],
        lengths[lengths > 1e-9],
        points[:-1][lengths > 1e-9],
    )
    if len(legs) == 0:
        return np.empty((0, 3)), np.empty(0)
    ends = np.cumsum(lengths)
    along = np.append(np.arange(spacing_m, ends[-1], spacing_m), ends[-1])
    leg = np.minimum(np.searchsorted(ends, along), len(legs) - 1)
    share = (along - (ends - lengths)[leg]) / lengths[leg]
    headings = np.arctan2(-legs[:, 0], -legs[:, 2])
    return starts[leg] + legs[leg] * share[:, None], headings[leg]


def _bin(value: float, num_bins: int) -> int:
    return max(0, min(num_bins - 1, math.floor(value * num_bins)))
