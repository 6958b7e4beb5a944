"""Time the mesh simulator on one core: loading, reset, images, steps, geodesics and plans.

    python scripts/benchmark_render.py [scene.glb]     default: a house of over 20,000 triangles

Medians of this process's CPU time; pin it to one core (`taskset -c 0`) of a quiet machine.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np

from vla_nav.episodes.types import MOVE_FORWARD, Camera, Embodiment, Pose
from vla_nav.simulators.follower import GreedyFollower
from vla_nav.simulators.houses import HouseOptions, export_house, generate_house
from vla_nav.simulators.mesh import MeshSimulator
from vla_nav.simulators.stage import load_stage


def median_ms(call: Callable[[], object], repeats: int) -> float:
    call()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return statistics.median(times) * 1e3


def render_all(simulator: MeshSimulator, poses: list[Pose]) -> None:
    for pose in poses:
        simulator.place(pose)
        simulator.observe()


def house_of_20k(folder: str) -> str:
    for seed in range(100):
        path = export_house(generate_house(seed, HouseOptions(detail=2)), folder)
        if len(load_stage(path).faces) >= 20_000:
            return str(path)
    raise RuntimeError("no seed below 100 gives a house of 20,000 triangles")


def main() -> None:
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        scene = sys.argv[1] if len(sys.argv) > 1 else house_of_20k(folder)
        print(f"{len(load_stage(scene).faces)} triangles")
        for name, size, has_depth in (("RGB + depth", 224, True), ("RGB", 48, False)):
            camera = Camera("front", size, size, 90.0, 1.25, has_depth=has_depth)
            simulator = MeshSimulator(Embodiment((camera,), 0.18, 1.5, 30.0, 0.25, True))
            start = time.process_time()
            simulator.load_scene(scene)
            loaded_ms = (time.process_time() - start) * 1e3
            poses = [Pose.from_yaw(simulator.random_point(rng), yaw) for yaw in range(20)]
            image_ms = median_ms(lambda: render_all(simulator, poses), 15) / len(poses)  # noqa: B023
            print(f"{size}x{size} {name}: {image_ms:.2f} ms, {1e3 / image_ms:.0f} frames/s")
        goal = simulator.random_point(rng)
        plan = GreedyFollower(simulator, goal, stop_radius_m=0.5).plan
        far = simulator.geodesic_distance
        for name, call in (
            ("reset", simulator.reset),
            ("step", lambda pose: simulator.move(pose, MOVE_FORWARD)),
            ("geodesic, same goal", lambda pose: far(pose.position, [goal])),
            ("geodesic, new goal", lambda pose: far(goal, [simulator.random_point(rng)])),
            ("plan of 12 actions", lambda pose: plan(pose, 12)),
        ):
            each_ms = median_ms(lambda call=call: [call(pose) for pose in poses], 15) / len(poses)
            print(f"{name}: {each_ms:.4f} ms")
        print(f"loading with walkable area and visibility graph: {loaded_ms:.0f} ms")


if __name__ == "__main__":
    main()
