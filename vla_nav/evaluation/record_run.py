"""`vla-nav record`: many processes, each with its own part files, one finished data set.

    episodes/<split>/<split>.json.gz  --one unit per scene-->  worker: load the scene, record its
                                                               episodes, write one part
    recorded/<split>/parts/  --finalise in the file's order-->  recorded/<split>/{data,meta}/

A kill at any moment loses the units in progress; a second start records the episodes that no part
holds. The result is the same for any number of workers and any number of kills.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vla_nav.actions.decisions import DecisionRule
from vla_nav.episodes.lerobot_layout import PARTS
from vla_nav.episodes.lerobot_writer import (
    LeRobotWriter,
    completed_episodes,
    require_space_to_record,
)
from vla_nav.episodes.types import Episode
from vla_nav.errors import UserError
from vla_nav.evaluation.process_units import progress_bar, run_units
from vla_nav.evaluation.recording import Recorded, RecordSettings, record_episode
from vla_nav.evaluation.setup import embodiment_of, read_episodes, scene_files
from vla_nav.files import file_digest, locked, read_json, write_json
from vla_nav.simulators.opening import SimulatorSetup

_UNIT_EPISODES = 32  # a unit's episodes: one part, lost together when killed
_SKIPPED = "skipped.json"  # beside data/ and meta/: episodes without a recording, with reasons
_INFO = "meta/info.json"
_LOCK = ".lock"  # in parts/, goes with it


class RecordSummary(NamedTuple):
    """What a recording came to."""

    root: Path
    num_recorded: int
    num_before: int
    skipped: list[dict[str, str]]
    num_steps: int
    wall_s: float

    def __str__(self) -> str:
        rate = f", {self.num_steps / self.wall_s:.0f} decisions/s" if self.num_steps else ""
        lines = [
            f"{self.root}: {self.num_recorded} episodes recorded ({self.num_steps} decisions) in "
            f"{self.wall_s:.1f} s{rate}; {self.num_before} were there before; "
            f"{len(self.skipped)} skipped"
        ]
        lines += [f"  skipped {one['episode_id']}: {one['reason']}" for one in self.skipped[:5]]
        if len(self.skipped) > 5:
            lines.append(f"  ... all of them in {self.root / _SKIPPED}")
        return "\n".join(lines)


class _Unit(NamedTuple):
    scene: str
    episodes: tuple[Episode, ...]


class _Done(NamedTuple):
    num_recorded: int
    num_steps: int
    skipped: list[tuple[tuple[str, str, str, str], str]]


class _Job(NamedTuple):
    """Everything a worker process needs besides its unit."""

    root: str
    dataset: str
    split: str
    storage: str
    settings: RecordSettings
    simulator: SimulatorSetup
    recording: dict[str, Any]


def record_from(config: Mapping[str, Any]) -> int:
    """Record as the composed configuration `conf/record.yaml` says; the exit code."""
    data, options, simulators = config["data"], config["record"], config["simulators"]
    settings = RecordSettings(
        embodiment=embodiment_of(simulators),
        decision=DecisionRule.parse(options["decision"]),
        seed=config["seed"],
        stop_radius_m=options["stop_radius_m"],
        horizon=options["horizon"],
        perturbation=options["perturbation"],
        height_range_m=options["height_range_m"],
        pitch_range_deg=options["pitch_range_deg"],
        max_primitives=options["max_primitives"],
    )
    episodes = select_first(read_episodes(data), options["num_episodes"], data["episodes"])
    summary = record(
        episodes,
        scenes=scene_files(episodes, data["scenes"]),
        root=Path(data["recorded"]),
        settings=settings,
        simulator=SimulatorSetup.of(simulators),
        storage=options["storage"],
        num_workers=config["num_workers"],
        recording={
            "backend": simulators["backend"],
            "simulator": simulators["options"],
            "episodes": file_digest(data["episodes"]),
        },
    )
    print(summary)
    return 0


def select_first(episodes: list[Episode], count: int | None, source: str) -> list[Episode]:
    """The first `count` episodes; `UserError` where that leaves none or asks for too many."""
    if not episodes:
        raise UserError(f"{source}: holds no episodes; nothing to record")
    if count is not None and not 1 <= count <= len(episodes):
        raise UserError(
            f"record.num_episodes={count}: allowed: 1 to {len(episodes)} of {source}, or null"
        )
    return episodes[:count]


def record(
    episodes: Sequence[Episode],
    *,
    scenes: Mapping[str, str],
    root: Path,
    settings: RecordSettings,
    simulator: SimulatorSetup,
    storage: str,
    num_workers: int,
    recording: dict[str, Any],
) -> RecordSummary:
    """Record `episodes` (one data set and split) into the LeRobot v3 set `root`; resumable.

    scenes: scene id -> file. simulator: the backend to record in. recording: further facts for
    the conventions. num_workers: 0 records in this process. Raises `UserError` for a full disk, a
    set of other conventions, or when no episode can be recorded.
    """
    assert episodes, "the caller refuses an empty selection"
    begun = time.perf_counter()
    first = episodes[0]
    facts = {**settings.describe(), **recording}
    job = _Job(str(root), first.dataset, first.split, storage, settings, simulator, facts)
    if (root / _INFO).exists():
        return _finished_before(job, episodes, begun)
    before = completed_episodes(root)
    left = (episode for episode in episodes if episode.key not in before)
    num_steps = sum(_expected_steps(episode, settings) for episode in left)
    require_space_to_record(root, settings.embodiment, num_steps=num_steps)
    with locked(root / PARTS / _LOCK, what="`vla-nav record`"):
        if (root / _INFO).exists():  # the process that held the lock before has finished it
            return _finished_before(job, episodes, begun)
        return _record(job, episodes, scenes, num_workers, begun)


def _record(
    job: _Job,
    episodes: Sequence[Episode],
    scenes: Mapping[str, str],
    num_workers: int,
    begun: float,
) -> RecordSummary:
    """Record what no part holds yet, then finalise; the caller holds the folder."""
    root = Path(job.root)
    before = completed_episodes(root)
    left = [episode for episode in episodes if episode.key not in before]
    _writer(job)  # claims the folder, or refuses one of other conventions, before any work
    reasons: dict[tuple[str, str, str, str], str] = {}
    num_recorded = num_taken = 0
    units, work = _units(left, scenes), partial(_record_unit, job)
    with progress_bar() as progress:
        bar = progress.add_task("record", total=len(episodes), completed=len(episodes) - len(left))
        for done in run_units(work, units, num_workers, where=job.root):
            num_recorded += done.num_recorded
            num_taken += done.num_steps
            reasons.update(done.skipped)
            progress.advance(bar, done.num_recorded + len(done.skipped))
    order = [episode.key for episode in episodes if episode.key not in reasons]
    if not order:
        raise UserError(
            f"{root}: none of the {len(episodes)} episodes could be recorded; the first reason: "
            f"{next(iter(reasons.values()))}"
        )
    skipped = [
        {"role": episode.role, "episode_id": episode.episode_id, "reason": reasons[episode.key]}
        for episode in episodes
        if episode.key in reasons
    ]
    write_json(root / _SKIPPED, skipped)
    _writer(job).finalise(order)
    wall_s = time.perf_counter() - begun
    return RecordSummary(root, num_recorded, len(before), skipped, num_taken, wall_s)


def _finished_before(job: _Job, episodes: Sequence[Episode], begun: float) -> RecordSummary:
    """A finished set is left alone if it is what was asked for, and refused otherwise."""
    root = Path(job.root)
    there = read_json(root / _INFO)["vla_nav"]["recording"]
    for key, value in job.recording.items():
        if there.get(key) != value:
            raise UserError(
                f"{root}: holds a finished data set with record.{key}={there.get(key)!r}, now it "
                f"is {value!r}; record into another data.path, or delete it"
            )
    skipped = read_json(root / _SKIPPED) if (root / _SKIPPED).exists() else []
    keys = completed_episodes(root) | {
        (job.dataset, job.split, entry["role"], entry["episode_id"]) for entry in skipped
    }
    missing = [episode for episode in episodes if episode.key not in keys]
    if missing or len(keys) != len(episodes):
        raise UserError(
            f"{root}: holds a finished data set of {len(keys)} episodes, now {len(episodes)} are "
            "asked for; record into another data.path, or delete it"
        )
    return RecordSummary(root, 0, len(keys), skipped, 0, time.perf_counter() - begun)


def _record_unit(job: _Job, unit: _Unit) -> _Done:
    """Record the episodes of one scene into one part."""
    skipped, num_recorded, num_steps = [], 0, 0
    with closing(job.simulator.opened(job.settings.embodiment)) as simulator:
        simulator.load_scene(unit.scene)
        with _writer(job) as writer:
            for episode in unit.episodes:
                result = record_episode(episode, simulator, job.settings)
                if isinstance(result, Recorded):
                    writer.add(result.episode, result.frames)
                    num_recorded += 1
                    num_steps += len(result.episode.steps)
                else:
                    skipped.append((episode.key, result.reason))
    return _Done(num_recorded, num_steps, skipped)


def _writer(job: _Job) -> LeRobotWriter:
    return LeRobotWriter(
        job.root,
        dataset=job.dataset,
        split=job.split,
        embodiment=job.settings.embodiment,
        decision=str(job.settings.decision),
        storage=job.storage,
        recording=job.recording,
        episodes_per_part=_UNIT_EPISODES,
    )


def _units(episodes: Sequence[Episode], scenes: Mapping[str, str]) -> list[_Unit]:
    """Episodes of one scene together, largest scenes first so that the end is even."""
    by_scene: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        by_scene[episode.scene_id].append(episode)
    units = [
        _Unit(scenes[scene], tuple(group[at : at + _UNIT_EPISODES]))
        for scene, group in by_scene.items()
        for at in range(0, len(group), _UNIT_EPISODES)
    ]
    return sorted(units, key=lambda unit: -len(unit.episodes))


def _expected_steps(episode: Episode, settings: RecordSettings) -> int:
    """A generous guess of an episode's decisions, for the size estimate."""
    legs = np.diff(episode.reference_path, axis=0)  # (R - 1, 3)
    length_m = float(np.linalg.norm(legs, axis=1).sum())
    per_decision = settings.decision.count if settings.decision.name != "primitive" else 1
    walked = length_m / settings.embodiment.step_m / per_decision
    return int(2 * walked / (1 - settings.perturbation)) + 10
