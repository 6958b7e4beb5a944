"""Simulators of one process, shared by numbered agents, called with plain values.

    configure   the body and the backend's options, before all else
    open/run    an agent: put it at a pose in a scene; execute, look, ask the expert
    the rest    stateless questions about a scene (distances, paths, snapping, motion)

One simulator is kept per scene, the least recently used beyond `MAX_SCENES` is closed.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np

from vla_nav.episodes.types import Embodiment
from vla_nav.simulators import plain
from vla_nav.simulators.agent import Agent
from vla_nav.simulators.mesh import MeshSimulator
from vla_nav.simulators.topdown import floor_maps

MAX_SCENES = 6


class MeshHost:
    """Hosts `MeshSimulator`s; the methods named in `METHODS` take and give plain values."""

    METHODS = (
        "configure",
        "load",
        "open",
        "place",
        "run",
        "close",
        "observe_at",
        "move",
        "distances",
        "shortest_path",
        "snap",
        "random_point",
        "floors",
    )
    version = ""

    def __init__(self) -> None:
        self._embodiment: Embodiment | None = None
        self._options: dict[str, Any] = {}
        self._simulators: OrderedDict[str, MeshSimulator] = OrderedDict()
        self._agents: dict[int, Agent] = {}

    def configure(self, embodiment: dict[str, Any], options: dict[str, Any]) -> None:
        """Set the body and the backend's keyword options; forgets every scene and agent."""
        for simulator in self._simulators.values():
            simulator.close()
        self._embodiment = plain.embodiment_from_plain(embodiment)
        self._options = options
        self._simulators, self._agents = OrderedDict(), {}

    def load(self, scene: str) -> None:
        """Load a scene ahead of its first use."""
        self._scene(scene)

    def open(
        self, agent: int, scene: str, pose: list[float], expert: dict[str, Any] | None
    ) -> list[float]:
        """Put a (new or old) agent at `pose`; return the pose taken."""
        simulator = self._scene(scene)
        self._agents[agent] = Agent(
            simulator, plain.pose_from_plain(pose), plain.expert_from_plain(expert)
        )
        return plain.pose_to_plain(self._agents[agent].pose)

    def place(self, agent: int, pose: list[float]) -> None:
        """Put an opened agent exactly at a pose that was given out before."""
        self._agents[agent].pose = plain.pose_from_plain(pose)

    def run(
        self,
        agent: int,
        primitives: list[int],
        wants_images: bool,
        wants_label: bool,
        semantic: bool = False,
    ) -> dict[str, Any]:
        """Execute a decision: see `Agent.run`."""
        outcome = self._agents[agent].run(
            tuple(primitives), wants_images=wants_images, wants_label=wants_label, semantic=semantic
        )
        return plain.outcome_to_plain(outcome)

    def close(self, agent: int) -> None:
        """Forget an agent."""
        self._agents.pop(agent, None)

    def observe_at(self, scene: str, pose: list[float], semantic: bool) -> dict[str, Any] | None:
        """Images at a pose."""
        simulator = self._scene(scene)
        simulator.place(plain.pose_from_plain(pose))
        return plain.observation_to_plain(simulator.observe(semantic=semantic))

    def move(self, scene: str, pose: list[float], primitive: int) -> dict[str, Any]:
        """Where one primitive leads."""
        motion = self._scene(scene).move(plain.pose_from_plain(pose), primitive)
        return {"pose": plain.pose_to_plain(motion.pose), "collided": motion.has_collided}

    def distances(self, scene: str, points: np.ndarray, goals: np.ndarray) -> np.ndarray:
        """Geodesic distance of (N, 3) points to the nearest of (G, 3) goals: (N,) float64."""
        simulator = self._scene(scene)
        targets = [tuple(goal) for goal in goals.tolist()]
        return np.array(
            [simulator.geodesic_distance(tuple(point), targets) for point in points.tolist()],
            dtype=np.float64,
        )

    def shortest_path(self, scene: str, start: list[float], goal: list[float]) -> dict[str, Any]:
        """Length and corner points."""
        path = self._scene(scene).shortest_path(tuple(start), tuple(goal))
        return {"distance_m": path.distance_m, "points": np.asarray(path.points, np.float64)}

    def snap(self, scene: str, point: list[float]) -> list[float] | None:
        """The nearest walkable point or None."""
        snapped = self._scene(scene).snap(tuple(point))
        return None if snapped is None else list(snapped)

    def random_point(self, scene: str, seed: int) -> list[float]:
        """A walkable point drawn with a generator of that seed."""
        return list(self._scene(scene).random_point(np.random.default_rng(seed)))

    def floors(self, scene: str) -> list[dict[str, Any]]:
        """Top-down walkable maps, one per floor: see `FloorMap`."""
        return [floor.to_plain() for floor in floor_maps(self._scene(scene).walkable)]

    def _scene(self, scene: str) -> MeshSimulator:
        simulator = self._simulators.get(scene)
        if simulator is None:
            assert self._embodiment is not None, "configure comes first"
            simulator = MeshSimulator(self._embodiment, **self._options)
            simulator.load_scene(scene)
            self._simulators[scene] = simulator
            while len(self._simulators) > MAX_SCENES:
                self._simulators.popitem(last=False)
        self._simulators.move_to_end(scene)
        return simulator
