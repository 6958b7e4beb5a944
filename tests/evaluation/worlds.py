"""Running commands and building configurations, episodes and policies for the tests here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vla_nav.actions.decisions import DecisionRule
from vla_nav.actions.discrete import DiscreteSpace
from vla_nav.actions.types import Action
from vla_nav.commands.cli import main
from vla_nav.commands.compose import compose_config, plain
from vla_nav.episodes.types import Embodiment, Episode, Goal, Pose
from vla_nav.evaluation.setup import embodiment_of, read_episodes, scene_files
from vla_nav.simulators.mesh import MeshSimulator
from vla_nav.simulators.protocol import Observation

SMALL_CAMERA = "simulators.embodiment.cameras=[{name: front, width_px: 16, height_px: 12, \
hfov_deg: 90.0, height_m: 1.25, pitch_deg: 0.0, has_depth: false}]"


def run_command(command: str, *overrides: str) -> int:
    """A command in this process; its exit code."""
    return main([command, *overrides])


def start_command(command: str, *overrides: str) -> subprocess.Popen[bytes]:
    """A command in a process (and process group) of its own."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "vla_nav.commands.cli", command, *overrides],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def kill_when(process: subprocess.Popen[bytes], is_time: Callable[[], bool]) -> None:
    """Kill -9 the process alone (not its children) as soon as `is_time()`."""
    deadline = time.monotonic() + 60
    while not is_time():
        assert process.poll() is None, process.stdout.read().decode()
        assert time.monotonic() < deadline, "it never came to the point of being killed"
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def await_end(pids: list[int]) -> None:
    """Return once none of the processes lives any more."""
    deadline = time.monotonic() + 20
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, f"left behind: {[p for p in pids if is_alive(p)]}"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children_of(pid: int) -> list[int]:
    """The child processes of a process, by /proc."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += map(int, task.read_text().split())
    return found


def evaluate_config(world: Path, output: Path, *overrides: str) -> dict[str, Any]:
    """The composed configuration of `vla-nav evaluate` on the small world, as plain values."""
    return plain(
        compose_config(
            "evaluate",
            [
                f"data.path={world}",
                f"paths.output_dir={output}",
                "evaluation.num_episodes=null",
                "evaluation.rows=[random,expert]",
                "evaluation.num_threads=1",
                "num_workers=0",
                SMALL_CAMERA,
                *overrides,
            ],
        )
    )


def record_config(world: Path, *overrides: str) -> dict[str, Any]:
    """The composed configuration of `vla-nav record` on the small world, as plain values."""
    return plain(
        compose_config(
            "record",
            [
                f"data.path={world}",
                "data.split=val_unseen",
                "num_workers=0",
                SMALL_CAMERA,
                *overrides,
            ],
        )
    )


def body_of(config: Mapping[str, Any]) -> Embodiment:
    return embodiment_of(config["simulators"])


def episodes_of(config: Mapping[str, Any]) -> tuple[list[Episode], dict[str, str]]:
    """Episodes and scene files of a configuration."""
    episodes = read_episodes(config["data"])
    return episodes, scene_files(episodes, config["data"]["scenes"])


def made_episode(name: str = "0", *, scene: str = "s/s.glb", **changes: Any) -> Episode:
    """An episode without a scene, for what only reads fields."""
    plain_one = Episode(
        dataset="houses",
        split="val_unseen",
        role="",
        episode_id=name,
        scene_id=scene,
        instruction=f"go to place {name}",
        start_pose=Pose.from_yaw((0.0, 0.0, 0.0), 0.0),
        goals=(Goal((float(int(name)) if name.isdigit() else 1.0, 0.0, 5.0), 3.0),),
        reference_path=np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 5.0]]),
        embodiment=None,
    )
    return replace(plain_one, **changes)


def results_of(folder: Path) -> dict[tuple[str, ...], dict[str, Any]]:
    """Every line of every results file, by key; a key that stands there twice is an error."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for path in sorted(folder.glob("results-*.jsonl")):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            key = (record["row"], record["episode_id"])
            assert key not in found, f"{key} twice"
            found[key] = record
    return found


def report_of(folder: Path) -> dict[str, Any]:
    """The report of an evaluation."""
    return json.loads((folder / "report.json").read_text())


class PixelPolicy:
    """A deterministic stand-in for a trained network: its choice depends on instruction, pixels
    and how often it was asked, so every condition of the table changes what it does."""

    def __init__(self, *, stops_after: int = 12, room: int = 1000) -> None:
        self.space = DiscreteSpace()
        self.batch_sizes: list[int] = []
        self._stops_after, self._room = stops_after, room
        self._texts: dict[int, str] = {}
        self._asked: dict[int, int] = {}

    def reset(self, slot: int, instruction: str, *, name: str) -> None:
        self._texts[slot], self._asked[slot] = instruction, 0

    def has_room(self, slot: int) -> bool:
        return self._asked[slot] < self._room

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        self.batch_sizes.append(len(observations))
        actions = {}
        for slot, seen in observations.items():
            self._asked[slot] += 1
            image = next(iter(seen.rgb.values()))
            text = f"{self._texts[slot]} {self._asked[slot]}".encode()
            code = zlib.crc32(text, zlib.crc32(image.tobytes()))
            token = 0 if self._asked[slot] >= self._stops_after else 1 + code % 3
            actions[slot] = self.space.decode((token,)).action
        return actions


PRIMITIVE = DecisionRule("primitive")


def files_of(root: Path) -> dict[str, bytes]:
    """Every file below `root` by its relative path."""
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def first_scene(config: Mapping[str, Any]) -> MeshSimulator:
    """The built-in simulator in the scene of the first episode."""
    episodes, scenes = episodes_of(config)
    loaded = MeshSimulator(body_of(config))
    loaded.load_scene(scenes[episodes[0].scene_id])
    return loaded
