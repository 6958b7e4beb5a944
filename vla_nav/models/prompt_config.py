"""What a prompt holds: cameras, depth, pose tokens, and the robot's facts as text.

The facts cost tokens in every tree and say nothing while all episodes share them: `facts: none`
leaves them out, `compact` writes numbers alone, `full` a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from vla_nav.actions.manoeuvre import grid_index
from vla_nav.episodes.types import Embodiment, Pose
from vla_nav.errors import UserError, unknown_name

FACTS = ("none", "compact", "full")


@dataclass(frozen=True)
class PoseTokens:
    """The pose relative to the start as three tokens: forward and left in cells of `grid_m`,
    clipped at `range_m`, and yaw in bins of `angle_deg`."""

    grid_m: float = 0.5
    range_m: float = 20.0
    angle_deg: float = 30.0

    @property
    def num_cells(self) -> int:
        """Cells of one axis, from -range to +range."""
        return 2 * round(self.range_m / self.grid_m) + 1

    @property
    def num_tokens(self) -> int:
        """Ids of the three coordinates."""
        return 2 * self.num_cells + round(360 / self.angle_deg)

    def indices(self, start: Pose, pose: Pose) -> tuple[int, int, int]:
        """Local pose ids (forward, left, yaw) of `pose` seen from `start`."""
        forward, left, yaw = start.relative(pose)
        half = self.num_cells // 2
        x, y = (
            max(-half, min(half, grid_index(value, self.grid_m))) + half
            for value in (forward, left)
        )
        num_angles = round(360 / self.angle_deg)
        angle = grid_index(math.degrees(yaw), self.angle_deg) % num_angles
        return x, self.num_cells + y, 2 * self.num_cells + angle


@dataclass(frozen=True)
class PromptConfig:
    """What a prompt holds. cameras: names in order, or None for all of the embodiment's."""

    cameras: tuple[str, ...] | None = None
    depth: bool = False
    facts: str = "none"
    separator: bool = False
    pose: PoseTokens | None = None

    def __post_init__(self) -> None:
        if self.facts not in FACTS:
            raise unknown_name("models.prompt.facts", self.facts, FACTS)
        if self.cameras is not None:
            object.__setattr__(self, "cameras", tuple(self.cameras))
        if isinstance(self.pose, Mapping):
            object.__setattr__(self, "pose", PoseTokens(**self.pose))

    def describe(self) -> dict[str, object]:
        """Constructor keywords as plain values."""
        described = asdict(self)
        described["cameras"] = None if self.cameras is None else list(self.cameras)
        return described


def streams_of(embodiment: Embodiment, config: PromptConfig) -> tuple[str, ...]:
    """Image streams in order: each camera, then its depth where asked for and present."""
    cameras = {camera.name: camera for camera in embodiment.cameras}
    names = tuple(cameras) if config.cameras is None else config.cameras
    streams: list[str] = []
    for name in names:
        if name not in cameras:
            raise unknown_name("models.prompt.cameras", name, cameras)
        streams.append(name)
        if config.depth:
            if not cameras[name].has_depth:
                raise UserError(
                    f"models.prompt.depth=true: camera '{name}' has no depth; record with it, "
                    "or set models.prompt.depth=false"
                )
            streams.append(f"{name}.depth")
    if not streams:
        raise UserError("models.prompt.cameras: at least one camera is needed")
    return tuple(streams)


def facts_of(embodiment: Embodiment, streams: Sequence[str], style: str) -> str:
    """The robot and its cameras as text; empty for `none`."""
    cameras = [camera for camera in embodiment.cameras if camera.name in streams]
    if style == "none":
        return ""
    if style == "compact":
        views = " ".join(f"{c.height_m:g} {c.hfov_deg:g} {c.pitch_deg:g}" for c in cameras)
        return f"{embodiment.radius_m:g} {embodiment.turn_deg:g} {embodiment.step_m:g} {views}."
    views = " ".join(
        f"Camera {c.name}: {c.height_m:g} m high, {c.hfov_deg:g} degrees wide, "
        f"pitch {c.pitch_deg:g} degrees."
        for c in cameras
    )
    return (
        f"Robot: radius {embodiment.radius_m:g} m, height {embodiment.height_m:g} m, turns by "
        f"{embodiment.turn_deg:g} degrees, steps of {embodiment.step_m:g} m. {views}"
    )
