"""The worker process: frames, equality with the simulator itself, crashes, hangs and impostors."""

import io
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trimesh
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_nav.episodes.types import MOVE_FORWARD, TURN_LEFT, TURN_RIGHT, Camera, Embodiment, Pose
from vla_nav.errors import UserError
from vla_nav.simulators import worker as worker_file
from vla_nav.simulators.agent import ExpertSettings
from vla_nav.simulators.client import (
    LocalWorker,
    WorkerDiedError,
    WorkerFaultError,
    WorkerProcess,
    start_worker,
)
from vla_nav.simulators.mesh import MeshSimulator
from vla_nav.simulators.opening import SimulatorSetup
from vla_nav.simulators.pool import AgentLostError, SimulatorPool
from vla_nav.simulators.remote import RemoteSimulator
from vla_nav.simulators.topdown import floor_maps
from vla_nav.simulators.worker import read_frame, write_frame

BODY = Embodiment((Camera("front", 17, 13, 90.0, 1.0, -5.0, True),), 0.2, 1.5, 30.0, 0.25, True)
START = Pose.from_yaw((-2.0, 0.0, 1.0), 0.3)
GOAL = (2.0, 0.0, -1.5)


@pytest.fixture(scope="module")
def scene(tmp_path_factory) -> str:
    """Two rooms of 4 x 5 m with a wall between them and a door in it."""
    boxes = [
        ((8.4, 0.1, 5.4), (0.0, -0.05, 0.0)),
        ((8.4, 0.1, 5.4), (0.0, 2.65, 0.0)),
        *(((8.4, 2.6, 0.2), (0.0, 1.3, z)) for z in (-2.6, 2.6)),
        *(((0.2, 2.6, 5.4), (x, 1.3, 0.0)) for x in (-4.1, 4.1)),
        ((0.2, 2.6, 3.0), (0.0, 1.3, -1.1)),
        ((0.2, 2.6, 1.0), (0.0, 1.3, 2.1)),
    ]
    parts = []
    for size, centre in boxes:
        box = trimesh.creation.box(size)
        box.apply_translation(centre)
        box.visual.face_colors = [int(40 + 20 * len(parts)), 120, 200, 255]
        parts.append(box)
    path = tmp_path_factory.mktemp("scene") / "rooms.glb"
    trimesh.Scene(parts).export(path)
    return str(path)


@pytest.fixture(scope="module")
def process():
    started = WorkerProcess("mesh", BODY, {"cell_m": 0.1})
    yield started
    started.close()


def reader_of(stream: io.BytesIO):
    def read(count: int) -> bytes:
        data = stream.read(count)
        if len(data) < count:
            raise EOFError
        return data

    return read


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


def test_closing_a_dead_worker_drops_what_it_never_took(scene):
    started = WorkerProcess("mesh", BODY, {})
    os.kill(started.pid, signal.SIGKILL)
    started._process.wait()
    started._process.stdin.write(b"unsent")  # still in this process's buffer
    started.close()


def test_a_crash_is_told_apart_from_those_it_took_along(scene):
    pool = SimulatorPool("mesh", BODY, {}, num_workers=1)

    def ask(ticket, method, **arguments):
        pool.submit(0, ticket, method, **arguments)
        (answer,) = pool.completed(30)
        return answer

    opening = {"scene": scene, "pose": [-2.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0], "expert": None}
    running = {"primitives": [MOVE_FORWARD], "wants_images": False, "wants_label": False}
    try:
        assert ask("a", "open", agent=0, **opening).error is None
        assert ask("b", "open", agent=1, **opening).error is None
        os.kill(pool.pids()[0], signal.SIGKILL)
        died = ask("c", "run", agent=0, **running)
        assert (died.ticket, type(died.error)) == ("c", WorkerDiedError)
        assert "ended with code -9" in str(died.error) or "closed its input" in str(died.error)
        assert isinstance(ask("d", "run", agent=1, **running).error, AgentLostError)
        assert ask("e", "open", agent=1, **opening).error is None
        assert ask("f", "run", agent=1, **running).error is None
        assert isinstance(ask("g", "run", agent=0, **running).error, AgentLostError)
        assert pool.num_restarts == 1
    finally:
        pids = pool.pids()
        pool.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_worker_that_hangs_is_given_up_after_the_timeout(scene):
    started = WorkerProcess("mesh", BODY, {}, timeout_s=30.0)
    try:
        started._timeout_s = 0.3
        os.kill(started.pid, signal.SIGSTOP)
        begun = time.monotonic()
        with pytest.raises(WorkerDiedError, match=r"gave no answer in 0\.3 s"):
            started.call("snap", scene=scene, point=[0.0, 0.0, 0.0])
        assert time.monotonic() - begun < 5
    finally:
        started.close()


def impostor(folder: Path, body: str) -> str:
    """An 'interpreter' that is something else."""
    path = folder / "python"
    path.write_text(f"#!{sys.executable}\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_impostors_are_named(tmp_path):
    with pytest.raises(UserError, match=r"simulators\.python: cannot start /nowhere/python"):
        WorkerProcess("mesh", BODY, {}, python="/nowhere/python")
    frame = "import sys, msgpack; b = msgpack.packb({'protocol': 99});"
    frame += "sys.stdout.buffer.write(len(b).to_bytes(4, 'little') + b)"
    with pytest.raises(UserError, match="speaks worker protocol 99, this program 1"):
        WorkerProcess("mesh", BODY, {}, python=impostor(tmp_path, frame))
    with pytest.raises(WorkerDiedError, match="broke the protocol"):
        WorkerProcess("mesh", BODY, {}, python=impostor(tmp_path, "print('Hello, world')"))
    dies = "import sys; sys.exit('no module named habitat')"
    with pytest.raises(WorkerDiedError, match="ended with code 1: no module named habitat"):
        WorkerProcess("mesh", BODY, {}, python=impostor(tmp_path, dies))
    with pytest.raises(UserError, match=r"simulators\.python=.*no module named habitat"):
        SimulatorPool("mesh", BODY, {}, num_workers=1, python=impostor(tmp_path, dies))


@pytest.mark.parametrize(
    "start",
    [
        lambda python: SimulatorPool("habitat", BODY, {}, num_workers=1, python=python),
        lambda python: SimulatorSetup("habitat", {}, python).opened(BODY),
    ],
)
def test_a_known_fault_of_the_start_is_one_flat_line(tmp_path, start):
    dies = "import sys; sys.exit(\"No module named 'habitat_sim'\")"
    python = impostor(tmp_path, dies)
    with pytest.raises(UserError) as caught:
        start(python)
    words = f"simulators.python={python}: no worker of backend 'habitat' starts: the interpreter "
    assert str(caught.value).startswith(f"{words}has no habitat_sim; install it in an environment")


def test_prints_of_a_backend_do_not_reach_the_pipe():
    program = f"""
import os, sys
sys.path.insert(0, {str(Path(worker_file.__file__).parents[2])!r})
from vla_nav.simulators import worker
class Host:
    METHODS = ("shout",)
    def shout(self):
        print("python noise", flush=True); os.write(1, b"C noise"); return "quiet"
worker.make_host = lambda backend: Host()
sys.argv = ["worker", "mesh"]
sys.exit(worker.main())
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    requests = io.BytesIO()
    for _ in range(2):
        write_frame(requests, {"method": "shout", "arguments": {}})
    out, err = process.communicate(requests.getvalue())
    replies = io.BytesIO(out)
    assert read_frame(reader_of(replies))["protocol"] == worker_file.PROTOCOL_VERSION
    assert [read_frame(reader_of(replies)) for _ in range(2)] == [{"value": "quiet"}] * 2
    assert replies.read() == b""
    assert err.count(b"noise") == 4
    assert process.returncode == 0  # the input ended, so it ended


def test_the_worker_file_stands_alone():
    program = f"""
import importlib.util, sys
sys.path = [p for p in sys.path if p and "vla_nav" not in p]
spec = importlib.util.spec_from_file_location("alone", {worker_file.__file__!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
heavy = {{"torch", "vla_nav", "trimesh", "pyarrow", "rich"}} & set(sys.modules)
assert not heavy, heavy
"""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, cwd="/")


def test_a_worker_does_not_outlive_a_killed_program():
    program = f"""
import sys, time
sys.path.insert(0, {str(Path(worker_file.__file__).parents[2])!r})
from vla_nav.episodes.types import Camera, Embodiment
from vla_nav.simulators.client import WorkerProcess
body = Embodiment((Camera("front", 8, 8, 90.0, 1.0),), 0.2, 1.5, 30.0, 0.25, True)
print(WorkerProcess("mesh", body, {{}}).pid, flush=True)
time.sleep(600)
"""
    main = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    pid = int(main.stdout.readline())
    main.kill()
    main.wait()
    deadline = time.monotonic() + 20
    stat = Path(f"/proc/{pid}/stat")
    while stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.02)
