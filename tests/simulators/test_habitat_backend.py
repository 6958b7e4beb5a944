"""The habitat backend in what it offers: sliding, floors, cameras, drives, restarts."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
import trimesh
from habitat_rooms import BODY, DOWN, FRONT, room, setup, written
from mesh_scenes import embodiment

from vla_nav.episodes.types import MOVE_FORWARD, TURN_LEFT, Camera, Pose
from vla_nav.simulators.client import WorkerDiedError
from vla_nav.simulators.mesh import MeshSimulator

pytestmark = pytest.mark.habitat


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return written(tmp_path_factory.mktemp("scenes"))


@pytest.fixture(scope="module")
def simulator(scenes):
    opened = setup().opened(BODY)
    yield opened
    opened.close()


@pytest.fixture
def in_room(simulator, scenes):
    simulator.embodiment = BODY
    simulator.load_scene(scenes["room"])
    return simulator


def test_sliding_is_an_option(scenes):
    ends = {}
    for is_sliding in (True, False):
        simulator = setup().opened(embodiment(is_sliding=is_sliding))
        try:
            simulator.load_scene(scenes["room"])
            simulator.reset(Pose.from_yaw((2.0, 0.0, 0.35), math.radians(-50)))
            motions = [simulator.act(MOVE_FORWARD) for _ in range(4)]
        finally:
            simulator.close()
        assert motions[-1].has_collided
        ends[is_sliding] = motions[-1].pose.position
    assert ends[True][0] > 2.5 > 2.3 > ends[False][0]


def test_the_same_walk_is_the_same_in_another_process(scenes):
    def walk():
        simulator = setup().opened(BODY)
        try:
            simulator.load_scene(scenes["stairs"])
            simulator.reset(Pose.from_yaw((1.0, 0.0, 0.6), -math.pi / 2))
            motions = [simulator.act(MOVE_FORWARD) for _ in range(26)]
            rng = np.random.default_rng(3)
            points = [simulator.random_point(rng) for _ in range(20)]
            return motions, points, simulator.observe().rgb["front"].tobytes()
        finally:
            simulator.close()

    motions, points, image = walk()
    assert (motions, points, image) == walk()
    assert motions[-1].pose.position[1] > 2.5  # up the stairs
    assert len({round(point[1]) for point in points}) >= 2


def test_floors_are_maps_of_where_one_can_stand(simulator, scenes):
    simulator.load_scene(scenes["stairs"])
    floors = simulator.floors()
    # The third one is the roof: habitat-sim takes what is under open sky for floor, too.
    heights = [floor.height_m for floor in floors]
    assert heights == pytest.approx([0.1, 2.9, 5.8], abs=0.15)
    for floor in floors:
        rows, columns = np.nonzero(floor.is_walkable)
        assert len(rows) > 200
        for at in range(0, len(rows), 97):
            x = floor.x0_m + (columns[at] + 0.5) * floor.cell_m
            z = floor.z0_m + (rows[at] + 0.5) * floor.cell_m
            snapped = simulator.snap((x, floor.height_m, z))
            assert math.dist(snapped, (x, floor.height_m, z)) < 0.8


def test_pitch_and_height_are_drawn_without_a_new_simulator(in_room):
    in_room.reset(Pose.from_yaw((2.0, 0.0, 2.0), 0.0))
    level = in_room.observe()
    begun = time.monotonic()
    for _ in range(10):
        low = replace(FRONT, height_m=0.5, pitch_deg=-10.0)
        in_room.embodiment = replace(BODY, cameras=(low, DOWN))
        tilted = in_room.observe()
        in_room.embodiment = BODY
        again = in_room.observe()
    assert time.monotonic() - begun < 3
    np.testing.assert_array_equal(again.rgb["front"], level.rgb["front"])
    # Row 12's upper edge is the optical axis: 2 m along it lies the wall at 2 m / cos(10).
    expected = (2 * math.cos(math.radians(10)), 2.0)
    assert level.depth["front"][12, 16] == pytest.approx(expected[1], abs=0.01)
    assert tilted.depth["front"][12, 16] != pytest.approx(level.depth["front"][12, 16], abs=0.003)


def test_semantic_ids_are_those_of_the_mesh_simulator(simulator, tmp_path):
    """On the same file: without a table of ids, and with one."""
    turned = room()
    ball = trimesh.creation.icosphere(2, 0.4)
    turned.add(ball.apply_translation((1.5, 0.6, 1.0)), "ball")
    for name, table in (("plain", None), ("named", {"red": 7, "blue": 400, "ball": 65000})):
        path = turned.write(tmp_path / f"{name}.glb")
        if table is not None:
            path.with_suffix(".json").write_text(json.dumps({"semantic": table}))
        mesh = MeshSimulator(BODY)
        mesh.load_scene(str(path))
        simulator.embodiment = BODY
        simulator.load_scene(str(path))
        for yaw in (0.0, 1.0, -0.8):
            pose = simulator.reset(Pose.from_yaw((2.5, 0.0, 2.5), yaw))
            mesh.place(pose)
            ours, theirs = (one.observe(semantic=True) for one in (mesh, simulator))
            for camera in ("front", "down"):
                same = ours.semantic[camera] == theirs.semantic[camera]
                assert same.mean() > 0.98, (name, yaw, camera)  # edges fall on either side
        if table is not None:
            assert {7, 65000} & set(np.unique(theirs.semantic["front"]))


def test_a_killed_worker_is_explained_as_killed_and_comes_back(scenes):
    """What the library prints for every scene is not taken for the reason."""
    simulator = setup().opened(BODY)
    try:
        simulator.load_scene(scenes["room"])
        simulator.reset(Pose.from_yaw((2.0, 0.0, 2.0), 0.0))
        image = simulator.observe().rgb["front"].tobytes()
        os.kill(simulator._worker.pid, signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match=r"(code -9|its input); the process was killed"):
            simulator.observe()
        simulator.revive()
        simulator.reset(Pose.from_yaw((2.0, 0.0, 2.0), 0.0))
        assert simulator.observe().rgb["front"].tobytes() == image
    finally:
        simulator.close()


def test_a_drive_is_any_turn_and_any_way(in_room):
    """A step's and a turn's are the primitives; a long one ends at the wall."""
    pose = in_room.reset(Pose.from_yaw((2.0, 0.0, 2.0), 0.3))
    assert in_room.drive(pose, 0.25, 0.0) == in_room.move(pose, MOVE_FORWARD)
    turned, left = in_room.drive(pose, 0.0, math.radians(30)).pose, in_room.move(pose, TURN_LEFT)
    np.testing.assert_allclose(turned.rotation, left.pose.rotation, atol=1e-6)
    assert turned.position == left.pose.position
    far, has_collided = in_room.drive(pose, 1.37, -0.3 - math.pi / 2)  # along +x
    assert not has_collided
    np.testing.assert_allclose(far.position, (3.37, pose.position[1], 2.0), atol=1e-5)
    back, has_collided = in_room.drive(far, -0.3, 0.0)
    np.testing.assert_allclose(back.position, (3.07, pose.position[1], 2.0), atol=1e-5)
    assert not has_collided
    wall, has_collided = in_room.drive(far, 9.0, 0.0)
    assert has_collided
    assert 5.6 < wall.position[0] < 5.83
    assert in_room.observe().pose == pose  # the agent itself has stayed


def test_the_body_of_a_public_task_sees_in_four_directions_at_once(scenes):
    """640 x 480 pixels, a view of 79 degrees, and three more cameras, one of them with depth."""
    cameras = (
        Camera("front", 640, 480, 79.0, 0.88, has_depth=True),
        Camera("up", 64, 48, 79.0, 0.88, pitch_deg=30.0, has_depth=True),
        Camera("down", 64, 48, 79.0, 0.88, pitch_deg=-30.0),
        Camera("wide", 120, 40, 120.0, 0.3),
    )
    simulator = setup().opened(embodiment(cameras=cameras))
    try:
        simulator.load_scene(scenes["room"])
        simulator.reset(Pose.from_yaw((2.0, 0.0, 2.0), 0.0))
        seen = simulator.observe()
    finally:
        simulator.close()
    assert {name: image.shape for name, image in seen.rgb.items()} == {
        "front": (480, 640, 3),
        "up": (48, 64, 3),
        "down": (48, 64, 3),
        "wide": (40, 120, 3),
    }
    assert set(seen.depth) == {"front", "up"}
    # The wall, 2 m away and 2.5 m high, ends 1.62 m above the camera less what it stands too high.
    top_m = 2.5 - 0.88 - seen.pose.position[1]
    row = 240 * (1 - top_m / 2.0 / (math.tan(math.radians(79 / 2)) * 480 / 640))
    hits = np.nonzero(seen.depth["front"][:, 320])[0]
    assert (row < 0 and hits[0] == 0) or hits[0] == pytest.approx(row, abs=2)
    # 30 degrees upward the optical axis meets the wall at 2 m / cos 30 along itself.
    middle = seen.depth["up"][23:25, 31:33].mean()
    assert middle == pytest.approx(2.0 / math.cos(math.radians(30)), abs=0.03)
