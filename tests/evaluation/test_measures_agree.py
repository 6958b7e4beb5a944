"""Measures on the same walks: ours, habitat-lab's own, and their definitions written out again.

walks in a room (habitat) --primitives--> our Agent     -> positions, distances -> episode_metrics
                          --the same----> habitat-lab   -> its own success, SPL, distance to goal
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import subprocess
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from vla_nav.episodes.types import MOVE_FORWARD, STOP, TURN_LEFT, TURN_RIGHT, Embodiment, Pose
from vla_nav.evaluation.metrics import SuccessRule, episode_metrics
from vla_nav.simulators.habitat_scene import find_scene
from vla_nav.simulators.opening import SimulatorSetup

BODY = Embodiment((), 0.18, 1.5, 30.0, 0.25, True)
RULE = SuccessRule(1.0)
PROGRAM = Path(__file__).with_name("habitat_lab_program.py")


def write_room(path: Path) -> Path:
    """Two rooms joined by a door, a block in each."""
    import trimesh

    scene = trimesh.Scene()
    for low, high in (
        ((0, -0.1, 0), (8, 0, 5)),
        ((-0.1, 0, -0.1), (0, 2.5, 5.1)),
        ((8, 0, -0.1), (8.1, 2.5, 5.1)),
        ((0, 0, -0.1), (8, 2.5, 0)),
        ((0, 0, 5), (8, 2.5, 5.1)),
        ((3.9, 0, 0), (4.1, 2.5, 2.0)),
        ((3.9, 0, 3.2), (4.1, 2.5, 5)),
        ((1.5, 0, 2.0), (2.2, 1.0, 3.0)),
        ((5.5, 0, 1.0), (6.5, 1.8, 2.2)),
    ):
        box = trimesh.creation.box(np.subtract(high, low))
        box.apply_translation(np.add(low, high) / 2)
        scene.add_geometry(box)
    path.write_bytes(scene.export(file_type="glb"))
    return path


def walks(simulator, count: int) -> list[dict]:
    """Starts, goals and primitives: towards the goal at random, with STOP somewhere or never."""
    rng = np.random.default_rng(7)
    found = []
    for index in range(count):
        start = Pose.from_yaw(simulator.random_point(rng), rng.uniform(-3, 3))
        goal = simulator.random_point(rng)
        pose = simulator.reset(start)
        actions = []
        for _ in range(int(rng.integers(5, 60))):
            path = simulator.shortest_path(pose.position, goal)
            if path.distance_m < 0.6:
                break
            ahead = path.points[1] - np.array(pose.position)
            turn = math.remainder(math.atan2(-ahead[0], -ahead[2]) - pose.yaw_rad, 2 * math.pi)
            action = MOVE_FORWARD
            if rng.random() < 0.15:
                action = int(rng.choice([MOVE_FORWARD, TURN_LEFT, TURN_RIGHT]))
            elif abs(turn) > math.radians(20):
                action = TURN_LEFT if turn > 0 else TURN_RIGHT
            actions.append(action)
            pose = simulator.act(action).pose
        if index % 5:
            actions.append(STOP)
        # The reset snaps its pose; the walk begins where the simulator put the agent.
        taken = simulator.reset(start)
        found.append(
            {
                "start": [*taken.position, *taken.rotation],
                "goals": [list(goal)],
                "actions": actions,
            }
        )
    return found


def ours(simulator, walk: dict):
    """(positions, metrics) of a walk in our simulator."""
    pose = Pose(tuple(walk["start"][:3]), tuple(walk["start"][3:]))
    simulator.place(pose)
    positions, collisions = [pose.position], 0
    for action in walk["actions"]:
        if action != STOP:
            motion = simulator.act(action)
            positions.append(motion.pose.position)
            collisions += motion.has_collided
    places = np.array(positions)
    distances = simulator.distances(places, np.array(walk["goals"]))
    scored = episode_metrics(
        places,
        distances,
        np.array(walk["goals"]),
        has_stopped=walk["actions"][-1:] == [STOP],
        num_collisions=collisions,
        rule=RULE,
    )
    return places, distances, scored


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """(stage config, walks, what ours made of them)."""
    folder = tmp_path_factory.mktemp("agree")
    room = write_room(folder / "rooms.glb")
    setup = SimulatorSetup("habitat", {}, os.environ["VLA_NAV_HABITAT_PYTHON"], 120.0)
    simulator = setup.opened(BODY)
    try:
        simulator.load_scene(str(room))
        asked = walks(simulator, 30)
        return folder, room, asked, [ours(simulator, walk) for walk in asked]
    finally:
        simulator.close()


@pytest.mark.habitat
def test_habitat_lab_walks_and_scores_alike(played):
    folder, room, asked, made = played
    scene = Path(find_scene(room, folder=folder).scene_id).name
    request = {
        "folder": str(folder),
        "body": {key: value for key, value in asdict(BODY).items() if key != "cameras"},
        "success_m": RULE.success_m,
        "episodes": [{"scene": scene, **walk} for walk in asked],
    }
    python = os.environ["VLA_NAV_HABITAT_PYTHON"]
    probe = subprocess.run([python, "-c", "import habitat"], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"habitat-lab is not installed beside habitat-sim: {probe.stderr[-200:]}")
    done = subprocess.run(
        [python, str(PROGRAM)], input=json.dumps(request), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    theirs = json.loads(done.stdout)
    assert len(theirs) == len(made) == 30
    for (places, _, scored), lab in zip(made, theirs, strict=True):
        steps = lab["positions"][: len(places)]  # theirs have one more for STOP
        np.testing.assert_array_equal(places, np.array(steps))
        assert lab["success"] == scored.sr
        assert lab["distance_to_goal"] == pytest.approx(scored.ne_m, abs=1e-4)
        assert lab["spl"] == pytest.approx(scored.spl, abs=1e-5)
        assert lab["collisions"] == scored.collisions
    outcomes = {(scored.sr, scored.has_stopped) for _, _, scored in made}
    assert outcomes == {(1.0, True), (0.0, True), (0.0, False)}
    assert sum(scored.collisions for _, _, scored in made) > 5


@pytest.mark.habitat
def test_every_measure_is_its_definition_on_these_walks(played):
    """Definitions of the papers, written here a second time, without the code under test."""
    _, _, asked, made = played
    for walk, (places, distances, scored) in zip(asked, made, strict=True):
        stopped = walk["actions"][-1] == STOP
        success = float(stopped and distances[-1] < RULE.success_m)
        length = sum(math.dist(a, b) for a, b in itertools.pairwise(places))
        assert scored.sr == success
        assert scored.spl == pytest.approx(success * distances[0] / max(distances[0], length))
        assert scored.osr == float(min(distances) < RULE.success_m)
        assert scored.steps == len(walk["actions"])
        path = [
            places[0],
            *(b for a, b in itertools.pairwise(places) if any(a != b)),
        ]
        cost = warping(tuple(map(tuple, path)), tuple(map(tuple, walk["goals"])))
        assert scored.ndtw == pytest.approx(
            math.exp(-cost / (len(walk["goals"]) * RULE.success_m)), rel=1e-9
        )


def warping(path: tuple, reference: tuple) -> float:
    """DTW by its recursive definition."""

    @functools.cache
    def total(i: int, j: int) -> float:
        if i < 0 and j < 0:
            return 0.0
        if i < 0 or j < 0:
            return math.inf
        best = min(total(i - 1, j), total(i, j - 1), total(i - 1, j - 1))
        return best + math.dist(path[i], reference[j])

    return total(len(path) - 1, len(reference) - 1)
