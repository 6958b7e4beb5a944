"""What goes wrong with a worker: crashes, hangs, impostors, prints, a program that is killed."""

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from worker_rooms import BODY, reader_of, write_rooms

from vla_nav.episodes.types import MOVE_FORWARD
from vla_nav.errors import UserError
from vla_nav.simulators import worker as worker_file
from vla_nav.simulators.client import (
    WorkerDiedError,
    WorkerProcess,
)
from vla_nav.simulators.opening import SimulatorSetup
from vla_nav.simulators.pool import AgentLostError, SimulatorPool
from vla_nav.simulators.worker import read_frame, write_frame


@pytest.fixture(scope="module")
def scene(tmp_path_factory) -> str:
    return write_rooms(tmp_path_factory.mktemp("scene"))


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
