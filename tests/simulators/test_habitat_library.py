"""What habitat-sim does silently or to its process, and that the backend keeps it away.

The numbers of the tests are those of design notes: each is a fact that was met with the library.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import pytest
from habitat_rooms import BODY, FRONT, room, setup, written

from vla_nav.episodes.types import MOVE_FORWARD, TURN_LEFT, TURN_RIGHT, Pose
from vla_nav.errors import UserError
from vla_nav.simulators.agent import ExpertSettings
from vla_nav.simulators.client import WorkerFaultError

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
