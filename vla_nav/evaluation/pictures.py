"""Pictures of an episode on request: a video of what the agent saw, and a top-down map per floor.

videos/<row>/<episode>.mp4             maps/<row>/<episode>-floor0.png
+-------------+-----------------+      +-----------------+   light     walkable
| first       |  . . goal       |      |    .---( x )    |   blue      reference path
| person      |  '---o agent    |      |  o-'            |   orange    the agent's path
+-------------+-----------------+      +-----------------+   green o   start
| instruction, decision         |                            red x     goal, with its radius
+-------------------------------+
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from vla_nav.episodes.types import PRIMITIVE_NAMES, Embodiment, Episode
from vla_nav.episodes.video import encode_clip
from vla_nav.evaluation.play import Played
from vla_nav.files import atomic_path
from vla_nav.simulators.opening import SimulatorSetup
from vla_nav.simulators.protocol import Simulator
from vla_nav.simulators.topdown import FloorMap

VIDEOS, MAPS = "videos", "maps"
_VIEW_PX = 384  # height of the first-person view in a video
_CAPTION_PX = 56
_FPS = 3
_MARGIN_M = 0.5
_WALL, _FLOOR = (70, 74, 84), (236, 238, 240)
_REFERENCE, _PATH, _START, _GOAL = (66, 133, 244), (242, 133, 0), (30, 150, 70), (200, 40, 40)


class Pictures:
    """Draws the episodes that were asked for; opens the simulator for their maps when needed."""

    def __init__(
        self,
        folder: Path,
        *,
        simulator: SimulatorSetup,
        embodiment: Embodiment,
        scenes: Mapping[str, str],
        filmed: frozenset[tuple[str, ...]],
        mapped: frozenset[tuple[str, ...]],
    ) -> None:
        """scenes: scene id -> file. filmed, mapped: keys of the episodes to draw."""
        self._folder = folder
        self._setup, self._embodiment = simulator, embodiment
        self._scenes = scenes
        self.filmed, self.mapped = filmed, mapped
        self._simulator: Simulator | None = None

    def draw(self, played: Played) -> None:
        """Write the pictures of a finished episode, if it is among those asked for."""
        key = played.unit.key
        if key not in self.filmed and key not in self.mapped:
            return
        floors = self._floors(played.unit.episode)
        name = picture_name(played.unit.episode)
        if key in self.mapped:
            for index, floor in enumerate(floors):
                canvas = Canvas(floor, floors)
                canvas.draw(played.unit.episode, played.trajectory.positions)
                target = self._folder / MAPS / key[0] / f"{name}-floor{index}.png"
                with atomic_path(target) as temporary:
                    canvas.image.save(temporary, format="PNG")
        if key in self.filmed and played.frames:
            target = self._folder / VIDEOS / key[0] / f"{name}.mp4"
            clip = encode_clip(_video_frames(played, floors), fps=_FPS)
            with atomic_path(target) as temporary:
                temporary.write_bytes(clip)

    def close(self) -> None:
        """Release the simulator."""
        if self._simulator is not None:
            self._simulator.close()

    def _floors(self, episode: Episode) -> list[FloorMap]:
        if self._simulator is None:
            self._simulator = self._setup.opened(self._embodiment)
        self._simulator.load_scene(self._scenes[episode.scene_id])
        return self._simulator.floors()


def picture_name(episode: Episode) -> str:
    """The file name of an episode's pictures, without its ending."""
    text = "-".join(part for part in (episode.role, episode.episode_id) if part)
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in text)


class Canvas:
    """One floor as an image, cut to the walkable area; only what lies on this floor is drawn."""

    def __init__(self, floor: FloorMap, floors: list[FloorMap], *, scale_px: int = 5) -> None:
        self._floor, self._floors, self._scale = floor, floors, scale_px
        margin = int(_MARGIN_M / floor.cell_m)
        rows, columns = (np.flatnonzero(floor.is_walkable.any(axis=axis)) for axis in (1, 0))
        self._top, self._left = int(rows[0]) - margin, int(columns[0]) - margin
        height = int(rows[-1]) + margin + 1 - self._top
        width = int(columns[-1]) + margin + 1 - self._left
        cells = np.zeros((height, width), dtype=bool)
        inside_rows = slice(rows[0], rows[-1] + 1)
        inside_columns = slice(columns[0], columns[-1] + 1)
        part = floor.is_walkable[inside_rows, inside_columns]
        cells[margin : margin + part.shape[0], margin : margin + part.shape[1]] = part
        pixels = np.where(cells[..., None], np.uint8(_FLOOR), np.uint8(_WALL)).astype(np.uint8)
        pixels = pixels.repeat(scale_px, axis=0).repeat(scale_px, axis=1)
        self.image = Image.fromarray(pixels)
        self._pen = ImageDraw.Draw(self.image)

    def draw(
        self, episode: Episode, positions: np.ndarray, *, heading: float | None = None
    ) -> None:
        """Reference path, goals, start and the agent's (N, 3) path; its heading where given."""
        self._line(episode.reference_path, _REFERENCE, width=2)
        for goal in episode.goals:
            spot = np.array([goal.position])
            if self._is_here(spot)[0]:
                x, y = self._pixels(spot)[0]
                radius = goal.radius_m / self._floor.cell_m * self._scale
                self._pen.ellipse((x - radius, y - radius, x + radius, y + radius), outline=_GOAL)
                self._pen.line((x - 5, y - 5, x + 5, y + 5), fill=_GOAL, width=3)
                self._pen.line((x - 5, y + 5, x + 5, y - 5), fill=_GOAL, width=3)
        self._line(positions, _PATH, width=3)
        if self._is_here(positions[:1])[0]:
            self._dot(positions[0], _START, 5)
        if self._is_here(positions[-1:])[0]:
            self._dot(positions[-1], _PATH, 5)
            if heading is not None:
                x, y = self._pixels(positions[-1:])[0]
                tip = (x - 14 * np.sin(heading), y - 14 * np.cos(heading))
                self._pen.line((x, y, *tip), fill=(20, 20, 20), width=2)

    def _line(self, points: np.ndarray, colour: tuple[int, int, int], *, width: int) -> None:
        is_here, pixels = self._is_here(points), self._pixels(points)
        for index in range(1, len(points)):
            if is_here[index - 1] and is_here[index]:
                ends = (*pixels[index - 1], *pixels[index])
                self._pen.line(ends, fill=colour, width=width)

    def _dot(self, point: np.ndarray, colour: tuple[int, int, int], radius: int) -> None:
        x, y = self._pixels(point[None])[0]
        self._pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)

    def _is_here(self, points: np.ndarray) -> np.ndarray:
        heights = np.array([floor.height_m for floor in self._floors])
        nearest = np.abs(points[:, 1][:, None] - heights[None]).argmin(axis=1)
        return heights[nearest] == self._floor.height_m

    def _pixels(self, points: np.ndarray) -> np.ndarray:
        column, row = self._floor.pixel(points[:, 0], points[:, 2])
        return np.stack([column - self._left, row - self._top], axis=1) * self._scale


def _video_frames(played: Played, floors: list[FloorMap]) -> list[np.ndarray]:
    """One frame per decision: the first camera, the map up to here, instruction and decision."""
    episode, trajectory = played.unit.episode, played.trajectory
    heights = np.array([floor.height_m for floor in floors])
    pose_index = 0
    frames = []
    for number, seen in enumerate(played.frames):
        pose = trajectory.poses[min(pose_index, len(trajectory.poses) - 1)]
        floor = floors[int(np.abs(heights - pose.position[1]).argmin())]
        canvas = Canvas(floor, floors)
        canvas.draw(episode, trajectory.positions[: pose_index + 1], heading=pose.yaw_rad)
        decision = trajectory.decisions[number]
        frames.append(_composed(next(iter(seen.values())), canvas.image, episode, number, decision))
        pose_index += len(decision)
    width = max(frame.width for frame in frames)
    padded = []
    for frame in frames:  # floors differ in width
        page = Image.new("RGB", (width + width % 2, frame.height), (255, 255, 255))
        page.paste(frame, (0, 0))
        padded.append(np.asarray(page))
    return padded


def _composed(
    view: np.ndarray, chart: Image.Image, episode: Episode, number: int, decision: tuple[int, ...]
) -> Image.Image:
    height, width = view.shape[:2]
    first = Image.fromarray(view).resize(
        (round(_VIEW_PX * width / height), _VIEW_PX), Image.Resampling.NEAREST
    )
    chart = chart.resize((round(_VIEW_PX * chart.width / chart.height), _VIEW_PX))
    page = Image.new("RGB", (first.width + chart.width, _VIEW_PX + _CAPTION_PX), (255, 255, 255))
    page.paste(first, (0, 0))
    page.paste(chart, (first.width, 0))
    names = [PRIMITIVE_NAMES[primitive].lower() for primitive in decision]
    lines = textwrap.wrap(episode.instruction, width=max(40, page.width // 7))[:3]
    lines.append(f"decision {number}: {', '.join(names)}")
    ImageDraw.Draw(page).multiline_text((6, _VIEW_PX + 2), "\n".join(lines), fill=(0, 0, 0))
    return page
