"""What habitat-sim does silently or to its process, and that the backend keeps it away.

The numbers of the tests are those of design notes: each is a fact that was met with the library.
"""

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
from mesh_scenes import SceneBuilder, embodiment, two_floors_with_stairs

from vla_nav.episodes.types import MOVE_FORWARD, TURN_LEFT, TURN_RIGHT, Camera, Pose
from vla_nav.errors import UserError
from vla_nav.simulators.agent import ExpertSettings
from vla_nav.simulators.client import WorkerDiedError, WorkerFaultError
from vla_nav.simulators.mesh import MeshSimulator
from vla_nav.simulators.opening import SimulatorSetup

pytestmark = pytest.mark.habitat

FRONT = Camera("front", 32, 24, 90.0, 1.25, has_depth=True)
DOWN = Camera("down", 16, 16, 60.0, 1.0, pitch_deg=-30.0)
BODY = embodiment(cameras=(FRONT, DOWN))
RED, BLUE = (200, 40, 30), (30, 60, 200)


def setup(**options) -> SimulatorSetup:
    return SimulatorSetup("habitat", options, os.environ["VLA_NAV_HABITAT_PYTHON"], 120.0)


def room() -> SceneBuilder:
    """6 x 4 m, a red wall at the end z = 0 and a blue pillar beside it."""
    builder = SceneBuilder().room(0, 0, 6, 4)
    builder.box((0, 0, -0.05), (6, 2.5, 0.001), rgb=RED, name="red")
    return builder.box((4.5, 0, 1), (5.0, 2.5, 1.5), rgb=BLUE, name="blue")


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    return {
        "room": str(room().write(folder / "room.glb")),
        "stairs": str(two_floors_with_stairs().write(folder / "stairs.glb")),
    }


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


def test_1_the_device_is_looked_for_and_a_wrong_one_is_explained(scenes):
    wrong = setup(gpu_device_id=63).opened(BODY)
    try:
        with pytest.raises(Exception, match=r"ended with code 1.*(CUDA device 63|context)"):
            wrong.load_scene(scenes["room"])
    finally:
        wrong.close()


def test_2_a_scene_has_a_navigation_mesh_or_is_refused(scenes, tmp_path):
    giant = setup().opened(replace(BODY, height_m=9.0, radius_m=3.0))
    try:
        with pytest.raises(UserError, match=r"no floor for an agent of radius 3 m and height 9 m"):
            giant.load_scene(scenes["room"])
        with pytest.raises(UserError, match="no floor for an agent"):
            giant.load_scene(scenes["room"])
    finally:
        giant.close()
    strict = setup(navmesh="file").opened(BODY)
    try:
        with pytest.raises(UserError, match=r"no navigation mesh beside it.*navmesh=recompute"):
            strict.load_scene(scenes["room"])
        copy = room().write(tmp_path / "copy.glb")
        (tmp_path / "copy.navmesh").write_bytes(b"this is not one, however long it may be" * 9)
        with pytest.raises(UserError, match=r"copy\.navmesh: not a navigation mesh"):
            strict.load_scene(str(copy))
    finally:
        strict.close()
    with pytest.raises(
        UserError, match=r"navmesh 'never'.*allowed: auto, file, matching, recompute"
    ):
        setup(navmesh="never").opened(BODY).load_scene(scenes["room"])


def test_3_a_gltf_stands_upright(in_room):
    """2 m before the red wall, looking at it."""
    in_room.reset(Pose.from_yaw((2.0, 0.0, 2.0), 0.0))
    seen = in_room.observe()
    assert seen.depth["front"][12, 16] == pytest.approx(2.0, abs=0.01)
    red, green, blue = map(int, seen.rgb["front"][12, 16])
    assert red > 2 * max(green, blue)
    floor_m = (1.25 + seen.pose.position[1]) / (11.5 / 16)  # the lowest row of pixels
    assert seen.depth["front"][23, 16] == pytest.approx(floor_m, abs=0.02)


def test_4_a_scene_is_loaded_in_seconds(simulator, scenes):
    for name in ("stairs", "room", "stairs", "room"):
        begun = time.monotonic()
        simulator.load_scene(scenes[name])
        simulator.reset(Pose.from_yaw((1.0, 0.0, 2.0), 0.0))
        simulator.observe()
        assert time.monotonic() - begun < 5


def test_5_agents_of_two_scenes_share_the_one_simulator(scenes):
    """What they live through is what each would alone, though every turn changes the scene."""

    def walk(agent, scene, count):
        outcomes = []
        for index in range(count):
            outcomes.append(
                worker.call(
                    "run",
                    agent=agent,
                    primitives=[MOVE_FORWARD, TURN_LEFT if index % 2 else TURN_RIGHT],
                    wants_images=True,
                    wants_label=True,
                )
            )
            yield outcomes[-1]

    def opened(agent, scene):
        goals = [[5.0, 0.0, 3.0]]
        worker.call(
            "open",
            agent=agent,
            scene=scenes[scene],
            pose=[1.0, 0.0, 2.0, 0.0, 0.0, 0.0, 1.0],
            expert={"goals": goals, "stop_radius_m": 0.5, "horizon": 4},
        )
        return walk(agent, scene, 3)

    worker = setup().started(BODY)
    try:
        alone = [list(opened(number, scene)) for number, scene in enumerate(("room", "stairs"))]
        mixed = list(zip(opened(0, "room"), opened(1, "stairs"), strict=True))
    finally:
        worker.close()
    for number in range(2):
        for got, expected in zip([pair[number] for pair in mixed], alone[number], strict=True):
            np.testing.assert_array_equal(got["poses"], expected["poses"])
            assert got["label"]["primitives"] == expected["label"]["primitives"]
            for camera in ("front", "down"):
                np.testing.assert_array_equal(
                    got["observation"]["rgb"][camera], expected["observation"]["rgb"][camera]
                )
    assert not np.array_equal(
        alone[0][0]["observation"]["rgb"]["front"], alone[1][0]["observation"]["rgb"]["front"]
    )


def test_6_places_off_the_mesh_have_no_numbers(in_room):
    far = (50.0, 0.0, 50.0)
    assert in_room.snap(far) is None
    assert in_room.snap((math.nan, 0.0, 0.0)) is None
    assert in_room.geodesic_distance((1.0, 0.0, 1.0), [far]) == math.inf
    assert in_room.geodesic_distance(far, [(1.0, 0.0, 1.0)]) == math.inf
    assert in_room.geodesic_distance((math.nan, 0.0, 1.0), [(1.0, 0.0, 1.0)]) == math.inf
    assert in_room.geodesic_distance((1.0, 0.0, 1.0), []) == math.inf
    assert in_room.geodesic_distance((1.0, 0.0, 1.0), [far, (1.0, 0.0, 3.0)]) == pytest.approx(
        2.0, abs=0.05
    )
    path = in_room.shortest_path((1.0, 0.0, 1.0), far)
    assert (path.distance_m, path.points.shape) == (math.inf, (0, 3))
    with pytest.raises(UserError, match=r"start \(50\.000, 0\.000, 50\.000\) has no walkable"):
        in_room.reset(Pose.from_yaw(far, 0.0))
    in_room.reset(Pose.from_yaw((1.0, 0.0, 1.0), 0.0), ExpertSettings((far,), 0.5, 4))
    outcome = in_room.execute((), wants_images=False, wants_label=True)
    assert outcome.label is None
    assert "no path from (1.00, " in outcome.stuck


def test_7_whole_numbers_and_xyzw_rotations_are_taken(in_room):
    half = math.sqrt(0.5)
    taken = in_room.reset(Pose((2, 0, 2), (0, half, 0, half)))  # yaw 90 degrees: looks along -x
    moved = in_room.act(MOVE_FORWARD).pose
    np.testing.assert_allclose(
        np.subtract(moved.position, taken.position), (-0.25, 0, 0), atol=1e-5
    )
    assert in_room.geodesic_distance((2, 0, 2), [(2, 0, 3)]) == pytest.approx(1.0, abs=0.05)


def test_8_images_are_copies_of_the_stated_types(in_room):
    in_room.reset(Pose.from_yaw((2.0, 0.0, 2.0), 0.0))
    first = in_room.observe(semantic=True)
    kept = first.rgb["front"].copy(), first.depth["front"].copy()
    in_room.act(TURN_LEFT)
    second = in_room.observe(semantic=True)
    assert (first.rgb["front"] == kept[0]).all()
    assert (first.depth["front"] == kept[1]).all()
    assert (second.rgb["front"] != kept[0]).any()
    kinds = {
        "rgb": ((24, 32, 3), np.uint8),
        "depth": ((24, 32), np.float32),
        "semantic": ((24, 32), np.uint32),
    }
    for kind, (shape, dtype) in kinds.items():
        image = getattr(first, kind)["front"]
        assert (image.shape, image.dtype) == (shape, dtype)
    assert set(first.rgb) == set(first.semantic) == {"front", "down"}
    assert set(first.depth) == {"front"}
    above = replace(BODY, cameras=(replace(FRONT, pitch_deg=80.0),))  # no ceiling: nothing is hit
    in_room.embodiment = above
    assert (in_room.observe().depth["front"] == 0).any()
    height = in_room.reset(Pose.from_yaw((2.0, 0.0, 2.0), 0.0)).position[1]
    assert -0.01 <= height <= 0.21


def test_9_bad_scenes_are_refused_and_the_worker_lives_on(simulator, scenes, tmp_path):
    whole = room().write(tmp_path / "cut.glb").read_bytes()
    kept = len(whole) * 9 // 10
    cut = whole[:8] + kept.to_bytes(4, "little") + whole[12:kept]
    (tmp_path / "cut.glb").write_bytes(cut)  # a header that fits, and a part of the rest
    for path, message in (
        (tmp_path / "lost.glb", "no such scene file"),
        (tmp_path / "cut.glb", r"cut\.glb: habitat-sim .* cannot load the scene"),
    ):
        for _ in range(2):
            with pytest.raises(UserError, match=message):
                simulator.load_scene(str(path))
    simulator.embodiment = BODY
    simulator.load_scene(scenes["room"])
    simulator.reset(Pose.from_yaw((2.0, 0.0, 2.0), 0.0))
    assert simulator.observe().depth["front"][12, 16] == pytest.approx(2.0, abs=0.01)
    with pytest.raises(WorkerFaultError, match="KeyError"):
        simulator._worker.call("run", agent=-1, primitives=[], wants_images=0, wants_label=0)


def test_10_the_body_is_the_configured_one(in_room):
    """Turn, step and radius; 90 degrees of view; the versions are told."""
    start = in_room.reset(Pose.from_yaw((2.0, 0.0, 2.0), 0.0))
    turned = in_room.act(TURN_LEFT).pose
    assert turned.yaw_rad - start.yaw_rad == pytest.approx(math.radians(30), abs=1e-5)
    pose = in_room.reset(Pose.from_yaw((2.0, 0.0, 1.0), 0.0))
    for _ in range(8):
        pose, has_collided = in_room.act(MOVE_FORWARD)
    assert has_collided
    assert 0.17 <= pose.position[2] <= 0.30  # eroded by 0.18 m, rounded up to cells of 0.05 m
    seen = in_room.observe().rgb["down"]
    assert seen.shape == (16, 16, 3)
    hello = in_room._worker.hello
    assert (hello["backend"], hello["protocol"]) == ("habitat", 1)
    assert hello["version"].startswith("0.")


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
        with pytest.raises(WorkerDiedError, match=r"(code -9|its input) \(the process was killed"):
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
