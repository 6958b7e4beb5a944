"""The worker process: frames, equality with the simulator itself, errors of a user."""

import io
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worker_rooms import BODY, START, reader_of, write_rooms

from vla_nav.episodes.types import MOVE_FORWARD, TURN_LEFT, TURN_RIGHT, Pose
from vla_nav.errors import UserError
from vla_nav.simulators.agent import ExpertSettings
from vla_nav.simulators.client import (
    LocalWorker,
    WorkerFaultError,
    WorkerProcess,
    start_worker,
)
from vla_nav.simulators.mesh import MeshSimulator
from vla_nav.simulators.remote import RemoteSimulator
from vla_nav.simulators.topdown import floor_maps
from vla_nav.simulators.worker import read_frame, write_frame

GOAL = (2.0, 0.0, -1.5)


@pytest.fixture(scope="module")
def scene(tmp_path_factory) -> str:
    return write_rooms(tmp_path_factory.mktemp("scene"))


@pytest.fixture(scope="module")
def process():
    started = WorkerProcess("mesh", BODY, {"cell_m": 0.1})
    yield started
    started.close()


ARRAYS = st.builds(
    lambda dtype, shape: (np.arange(np.prod(shape, dtype=int)) % 250).astype(dtype).reshape(shape),
    st.sampled_from(["uint8", "float32", "<f8", "int64", "bool", "uint32"]),
    st.sampled_from([(), (0,), (1,), (3, 0), (63,), (5, 7, 3)]),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5) | ARRAYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@settings(max_examples=40, deadline=None)
@given(VALUES)
def test_every_value_survives_a_frame(value):
    stream = io.BytesIO()
    write_frame(stream, value)
    stream.seek(0)
    back = read_frame(reader_of(stream))

    def same(a, b):
        if isinstance(a, np.ndarray):
            return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        if isinstance(a, list):
            return len(a) == len(b) and all(map(same, a, b))
        if isinstance(a, dict):
            return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
        return type(a) is type(b) and a == b

    assert same(value, back)
    assert stream.read() == b""


def test_a_length_that_is_no_frame_is_refused_before_it_is_read():
    with pytest.raises(ValueError, match="are allowed"):
        read_frame(reader_of(io.BytesIO(b"Trace" * 3)))


def walk(simulator, scene):
    """Every method of the protocol; plain values to compare."""
    simulator.load_scene(scene)
    seen = [simulator.reset(START)]
    for primitive in (MOVE_FORWARD, TURN_LEFT, MOVE_FORWARD, TURN_RIGHT, *[MOVE_FORWARD] * 14):
        seen.append(simulator.act(primitive))
    images = simulator.observe(semantic=True)
    seen += [images.pose, simulator.move(START, MOVE_FORWARD)]
    for kind in (images.rgb, images.depth, images.semantic):
        seen += [(name, image.dtype.str, image.tobytes()) for name, image in kind.items()]
    seen.append(simulator.drive(START, 0.6, 0.7))
    seen += [floor.to_plain()["is_walkable"].tobytes() for floor in simulator.floors()]
    simulator.place(START)
    looking = replace(BODY.cameras[0], pitch_deg=-20.0)
    simulator.embodiment = replace(BODY, cameras=(looking,))
    seen.append(simulator.observe().rgb["front"].tobytes())
    simulator.embodiment = BODY
    seen.append(simulator.geodesic_distance(START.position, [GOAL, (50.0, 0.0, 50.0)]))
    seen.append(simulator.geodesic_distance(START.position, [(50.0, 0.0, 50.0)]))
    path = simulator.shortest_path(START.position, GOAL)
    seen += [path.distance_m, path.points.tolist()]
    seen += [simulator.snap((1.0, 0.1, 0.5)), simulator.snap((50.0, 0.0, 0.0))]
    seen.append(simulator.observe().rgb["front"].tobytes())
    assert seen[-1] not in seen[:-1]
    return seen


def test_behind_the_pipe_is_the_same_simulator(scene, process):
    here = walk(MeshSimulator(BODY, cell_m=0.1), scene)
    assert walk(RemoteSimulator(process, BODY, backend="mesh"), scene) == here
    local = LocalWorker("mesh", BODY, {"cell_m": 0.1})
    assert walk(RemoteSimulator(local, BODY, backend="mesh"), scene) == here
    assert any(motion.has_collided for motion in here[1:19])


def test_an_option_of_another_backend_is_named_before_a_scene_is_loaded():
    for is_local in (True, False):
        with pytest.raises(
            UserError, match=r"simulators\.options 'navmesh'.*allowed: cell_m, max_"
        ):
            start_worker("mesh", BODY, {"cell_m": 0.1, "navmesh": "auto"}, is_local=is_local)


def test_random_points_follow_the_generator(scene, process):
    simulator = RemoteSimulator(process, BODY, backend="mesh")
    simulator.load_scene(scene)
    draws = [[simulator.random_point(np.random.default_rng(s)) for _ in range(2)] for s in (1, 2)]
    assert draws[0][0] == draws[0][1] != draws[1][0]


def test_agents_of_one_process_do_not_disturb_each_other(scene, process):
    expert = ExpertSettings((GOAL,), 0.3, 8)

    def agent(yaw):
        simulator = RemoteSimulator(process, BODY, backend="mesh")
        simulator.load_scene(scene)
        simulator.reset(Pose.from_yaw(START.position, yaw), expert)
        return simulator

    def step(simulator, primitive):
        outcome = simulator.execute((primitive,), wants_images=True, wants_label=True)
        return outcome.poses, outcome.observation.rgb["front"].tobytes(), outcome.label

    plan = [MOVE_FORWARD, TURN_LEFT, MOVE_FORWARD, MOVE_FORWARD]
    first, second = agent(0.3), agent(2.0)
    alone = [[step(one, primitive) for primitive in plan] for one in (first, second)]
    first, second = agent(0.3), agent(2.0)
    mixed = [(step(first, primitive), step(second, primitive)) for primitive in plan]
    assert [list(one) for one in zip(*mixed, strict=True)] == alone
    assert alone[0] != alone[1]


def test_a_decision_in_one_round_trip_equals_its_single_steps(scene, process):
    simulator = RemoteSimulator(process, BODY, backend="mesh")
    simulator.load_scene(scene)
    plan = (TURN_LEFT, MOVE_FORWARD, MOVE_FORWARD, MOVE_FORWARD)
    simulator.reset(START)
    single = [simulator.act(primitive) for primitive in plan]
    image = simulator.observe().rgb["front"]
    simulator.reset(START)
    whole = simulator.execute(plan, wants_images=True, wants_label=False)
    assert list(whole.poses) == [motion.pose for motion in single]
    assert list(whole.collided) == [motion.has_collided for motion in single]
    assert np.array_equal(whole.observation.rgb["front"], image)
    assert whole.label is None


def test_errors_cross_the_pipe_with_their_text_and_the_worker_lives_on(scene, process):
    simulator = RemoteSimulator(process, BODY, backend="mesh")
    with pytest.raises(UserError, match=r"/nowhere/x\.glb"):
        simulator.load_scene("/nowhere/x.glb")
    with pytest.raises(WorkerFaultError, match="unknown method '__init__'"):
        process.call("__init__")
    with pytest.raises(WorkerFaultError, match=r"(?s)TypeError.*Traceback"):
        process.call("snap", scene=scene, spot=[0, 0, 0])
    simulator.load_scene(scene)
    assert simulator.reset(START).position[0] == START.position[0]


def test_floors_come_through_as_they_are(scene, process):
    simulator = MeshSimulator(BODY, cell_m=0.1)
    simulator.load_scene(scene)
    (here,) = floor_maps(simulator.walkable)
    (there,) = process.call("floors", scene=scene)
    assert np.array_equal(here.is_walkable, there["is_walkable"])
    column, row = here.pixel(np.array([START.position[0]]), np.array([START.position[2]]))
    assert here.is_walkable[int(row[0]), int(column[0])]
    column, row = here.pixel(np.array([0.0]), np.array([-1.0]))  # inside the wall
    assert not here.is_walkable[int(row[0]), int(column[0])]
