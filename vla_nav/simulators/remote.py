"""A simulator that lives behind a worker, and `execute`: one round trip for a whole decision.

RemoteSimulator  --plain values-->  Worker  - - pipes - -  Host  -->  the backend's simulator
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vla_nav.episodes.types import Embodiment, Pose
from vla_nav.simulators import plain
from vla_nav.simulators.agent import ExpertSettings, Outcome
from vla_nav.simulators.client import Worker
from vla_nav.simulators.protocol import GeodesicPath, Motion, Observation
from vla_nav.simulators.topdown import FloorMap


class RemoteSimulator:
    """A `Simulator` whose scene lives behind a worker; the agent's pose is kept on this side."""

    def __init__(
        self,
        worker: Worker,
        embodiment: Embodiment,
        *,
        backend: str,
        restart: Callable[[Embodiment], Worker] | None = None,
    ) -> None:
        """restart: starts another worker, for `revive`."""
        self.backend = backend
        self._restart = restart
        self._embodiment = embodiment
        self._worker = worker
        self._scene: str | None = None
        self._pose: Pose | None = None
        self._agent = id(self)

    @property
    def embodiment(self) -> Embodiment:
        """See `Simulator`; setting it exchanges the cameras of the worker's simulators."""
        return self._embodiment

    @embodiment.setter
    def embodiment(self, embodiment: Embodiment) -> None:
        if embodiment != self._embodiment:
            self._worker.call("set_cameras", embodiment=plain.embodiment_to_plain(embodiment))
            self._embodiment = embodiment

    def load_scene(self, scene_path: str) -> None:
        """See `Simulator`. The worker loads it now, so that its errors come from here."""
        self._worker.call("load", scene=scene_path)
        self._scene, self._pose = scene_path, None

    def revive(self) -> None:
        """After a `WorkerDiedError`: the same scene in a fresh worker, the agent nowhere yet."""
        assert self._restart is not None, "made without a way to restart"
        self._worker.close()
        self._worker = self._restart(self._embodiment)
        if self._scene is not None:
            self.load_scene(self._scene)

    def reset(self, pose: Pose, expert: ExpertSettings | None = None) -> Pose:
        """See `Simulator`; with `expert`, `execute` can give its labels."""
        taken = self._worker.call(
            "open",
            agent=self._agent,
            scene=self._loaded,
            pose=plain.pose_to_plain(pose),
            expert=plain.expert_to_plain(expert),
        )
        self._pose = plain.pose_from_plain(taken)
        return self._pose

    def place(self, pose: Pose) -> None:
        """See `Simulator`."""
        self._worker.call("place", agent=self._agent, pose=plain.pose_to_plain(pose))
        self._pose = pose

    def execute(
        self, primitives: tuple[int, ...], *, wants_images: bool, wants_label: bool
    ) -> Outcome:
        """A whole decision in one round trip: see `Agent.run`."""
        outcome = plain.outcome_from_plain(
            self._worker.call(
                "run",
                agent=self._agent,
                primitives=list(primitives),
                wants_images=wants_images,
                wants_label=wants_label,
            )
        )
        if outcome.poses:
            self._pose = outcome.poses[-1]
        return outcome

    def act(self, primitive: int) -> Motion:
        """See `Simulator`."""
        outcome = self.execute((primitive,), wants_images=False, wants_label=False)
        return Motion(outcome.poses[0], outcome.collided[0])

    def move(self, pose: Pose, primitive: int) -> Motion:
        """See `Simulator`."""
        moved = self._worker.call(
            "move", scene=self._loaded, pose=plain.pose_to_plain(pose), primitive=primitive
        )
        return Motion(plain.pose_from_plain(moved["pose"]), moved["collided"])

    def drive(self, pose: Pose, forward_m: float, turn_rad: float) -> Motion:
        """See `Simulator`."""
        moved = self._worker.call(
            "drive",
            scene=self._loaded,
            pose=plain.pose_to_plain(pose),
            forward_m=forward_m,
            turn_rad=turn_rad,
        )
        return Motion(plain.pose_from_plain(moved["pose"]), moved["collided"])

    def observe(self, *, semantic: bool = False) -> Observation:
        """See `Simulator`."""
        assert self._pose is not None, "reset comes before observe"
        observation = plain.observation_from_plain(
            self._worker.call(
                "observe_at",
                scene=self._loaded,
                pose=plain.pose_to_plain(self._pose),
                semantic=semantic,
            )
        )
        assert observation is not None
        return observation

    def geodesic_distance(
        self, start: tuple[float, float, float], goals: list[tuple[float, float, float]]
    ) -> float:
        """See `Simulator`."""
        return float(self.distances(np.array([start]), np.array(goals))[0])

    def distances(self, points: np.ndarray, goals: np.ndarray) -> np.ndarray:
        """`geodesic_distance` of (N, 3) points to (G, 3) goals in one round trip: (N,)."""
        return self._worker.call("distances", scene=self._loaded, points=points, goals=goals)

    def shortest_path(
        self, start: tuple[float, float, float], goal: tuple[float, float, float]
    ) -> GeodesicPath:
        """See `Simulator`."""
        path = self._worker.call(
            "shortest_path", scene=self._loaded, start=list(start), goal=list(goal)
        )
        return GeodesicPath(path["distance_m"], path["points"])

    def snap(self, point: tuple[float, float, float]) -> tuple[float, float, float] | None:
        """See `Simulator`."""
        snapped = self._worker.call("snap", scene=self._loaded, point=list(point))
        return None if snapped is None else tuple(snapped)

    def random_point(self, rng: np.random.Generator) -> tuple[float, float, float]:
        """See `Simulator`; the point depends on the next number of `rng`."""
        seed = int(rng.integers(2**63))
        return tuple(self._worker.call("random_point", scene=self._loaded, seed=seed))

    def floors(self) -> list[FloorMap]:
        """See `Simulator`."""
        floors = self._worker.call("floors", scene=self._loaded)
        return [FloorMap.from_plain(values) for values in floors]

    def close(self) -> None:
        """End the worker; later calls raise."""
        self._worker.close()

    @property
    def _loaded(self) -> str:
        assert self._scene is not None, "load_scene comes first"
        return self._scene
