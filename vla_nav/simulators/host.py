"""Simulators of one process, shared by numbered agents, called with plain values.

    configure   the body and the backend's options, before all else
    set_cameras other cameras on the same body
    open/run    an agent: put it at a pose in a scene; execute, look, ask the expert
    the rest    stateless questions about a scene (distances, paths, snapping, motion)

A scene's simulator is kept for its next use. A backend may have `max_simulators` at once (one, for
habitat-sim); a further scene is loaded into the one that was used longest ago. An agent is nothing
but a pose and a scene, so it does not notice.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from vla_nav.episodes.types import Embodiment
from vla_nav.errors import unknown_name
from vla_nav.simulators import plain
from vla_nav.simulators.agent import Agent
from vla_nav.simulators.protocol import Simulator


class _Hosted(NamedTuple):
    scene: str
    agent: Agent


class Host:
    """Hosts simulators of one backend; the methods named in `METHODS` take and give plain values.

    make: the backend's simulator of a body and keyword options, with no scene loaded yet.
    version: of the simulation library, told to whoever starts a worker.
    """

    METHODS = (
        "configure",
        "set_cameras",
        "load",
        "open",
        "place",
        "run",
        "close",
        "observe_at",
        "move",
        "drive",
        "distances",
        "shortest_path",
        "snap",
        "random_point",
        "floors",
    )

    def __init__(
        self, make: Callable[..., Simulator], *, max_simulators: int, version: str = ""
    ) -> None:
        self.version = version
        self._make = make
        self._max_simulators = max_simulators
        self._embodiment: Embodiment | None = None
        self._options: dict[str, Any] = {}
        self._simulators: OrderedDict[str, Simulator] = OrderedDict()
        self._agents: dict[int, _Hosted] = {}

    @property
    def max_scenes(self) -> int:
        """How many scenes stay loaded: agents of more at once load them by turns."""
        return self._max_simulators

    def configure(self, embodiment: dict[str, Any], options: dict[str, Any]) -> None:
        """Set the body and the backend's keyword options; forgets every scene and agent.

        Raises `UserError` for an option that the backend does not have."""
        _, *known = inspect.signature(self._make).parameters  # the first is the body
        for name in options:
            if name not in known:
                raise unknown_name("simulators.options", name, known)
        for simulator in self._simulators.values():
            simulator.close()
        self._embodiment = plain.embodiment_from_plain(embodiment)
        self._options = options
        self._simulators, self._agents = OrderedDict(), {}

    def set_cameras(self, embodiment: dict[str, Any]) -> None:
        """Exchange the cameras; the body must be the configured one."""
        self._embodiment = plain.embodiment_from_plain(embodiment)
        for simulator in self._simulators.values():
            simulator.embodiment = self._embodiment

    def load(self, scene: str) -> None:
        """Load a scene ahead of its first use."""
        self._scene(scene)

    def open(
        self, agent: int, scene: str, pose: list[float], expert: dict[str, Any] | None
    ) -> list[float]:
        """Put a (new or old) agent at `pose`; return the pose taken."""
        opened = Agent(
            self._scene(scene), plain.pose_from_plain(pose), plain.expert_from_plain(expert)
        )
        self._agents[agent] = _Hosted(scene, opened)
        return plain.pose_to_plain(opened.pose)

    def place(self, agent: int, pose: list[float]) -> None:
        """Put an opened agent exactly at a pose that was given out before."""
        self._agents[agent].agent.pose = plain.pose_from_plain(pose)

    def run(
        self,
        agent: int,
        primitives: list[int],
        wants_images: bool,
        wants_label: bool,
        semantic: bool = False,
    ) -> dict[str, Any]:
        """Execute a decision: see `Agent.run`."""
        hosted = self._agents[agent]
        hosted.agent.simulator = self._scene(hosted.scene)
        outcome = hosted.agent.run(
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

    def drive(
        self, scene: str, pose: list[float], forward_m: float, turn_rad: float
    ) -> dict[str, Any]:
        """Where a turn and a way of any size lead."""
        start = plain.pose_from_plain(pose)
        motion = self._scene(scene).drive(start, forward_m, turn_rad)
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
        return [floor.to_plain() for floor in self._scene(scene).floors()]

    def _scene(self, scene: str) -> Simulator:
        """The simulator with that scene loaded, now the most recently used one."""
        simulator = self._simulators.pop(scene, None)
        if simulator is None:
            if len(self._simulators) < self._max_simulators:
                assert self._embodiment is not None, "configure comes first"
                simulator = self._make(self._embodiment, **self._options)
            else:
                _, simulator = self._simulators.popitem(last=False)
            try:
                simulator.load_scene(scene)
            except BaseException:
                simulator.close()
                raise
        self._simulators[scene] = simulator
        return simulator
