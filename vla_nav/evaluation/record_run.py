"""`vla-nav record`: many processes, each with its own part files, one finished data set.

    episodes/<split>/<split>.json.gz  --one unit per scene-->  worker: load the scene, record its
                                                               episodes, write one part
    recorded/<split>/parts/  --finalise in the file's order-->  recorded/<split>/{data,meta}/

`record.source=dagger` walks with a policy beside the expert, and may keep the episodes of an older
set (`vla_nav.evaluation.dagger_run`): those are copied in units of their own.

A kill at any moment loses the units in progress; a second start records the episodes that no part
holds. The result is the same for any number of workers and any number of kills.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vla_nav.actions.decisions import DecisionRule
from vla_nav.episodes.lerobot_layout import PARTS
from vla_nav.episodes.lerobot_writer import completed_episodes, require_space_to_record
from vla_nav.episodes.types import Episode
from vla_nav.errors import UserError
from vla_nav.evaluation.dagger_run import (
    Dagger,
    dagger_of,
    kept_of,
    require_own_folder,
    rollouts_of,
)
from vla_nav.evaluation.process_units import progress_bar, run_units
from vla_nav.evaluation.record_units import Job, do_unit, part_writer, units_of
from vla_nav.evaluation.recording import RecordSettings
from vla_nav.evaluation.setup import embodiment_of, episodes_digest, read_episodes, scene_files
from vla_nav.evaluation.tasks import refuse_other_body
from vla_nav.files import locked, read_json, write_json
from vla_nav.simulators.opening import SimulatorSetup

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
    num_kept: int = 0

    def __str__(self) -> str:
        rate = f", {self.num_steps / self.wall_s:.0f} decisions/s" if self.num_steps else ""
        lines = [
            f"{self.root}: {self.num_recorded} episodes recorded ({self.num_steps} decisions) in "
            f"{self.wall_s:.1f} s{rate}; {self.num_before} were there before; "
            f"{len(self.skipped)} skipped"
        ]
        if self.num_kept:
            lines.append(f"  {self.num_kept} episodes of record.onto are kept beside them")
        lines += [f"  skipped {one['episode_id']}: {one['reason']}" for one in self.skipped[:5]]
        if len(self.skipped) > 5:
            lines.append(f"  ... all of them in {self.root / _SKIPPED}")
        return "\n".join(lines)


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
    refuse_other_body(config, settings.embodiment)
    dagger = dagger_of(config, settings)
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
            "episodes": episodes_digest(data),
        },
        dagger=dagger,
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
    dagger: Dagger | None = None,
) -> RecordSummary:
    """Record `episodes` (one data set and split) into the LeRobot v3 set `root`; resumable.

    scenes: scene id -> file. simulator: the backend to record in. recording: further facts for
    the conventions. num_workers: 0 records in this process. dagger: walk with its policy beside the
    expert, and keep its older set. Raises `UserError` for a full disk, a
    set of other conventions, or when no episode can be recorded.
    """
    assert episodes, "the caller refuses an empty selection"
    begun = time.perf_counter()
    first = episodes[0]
    facts = {**settings.describe(), **recording}
    kept = None
    if dagger is not None:
        facts["dagger"] = dagger.describe()
        episodes = rollouts_of(episodes, dagger)
        kept = kept_of(dagger, episodes, settings, storage, backend=simulator.backend)
    job = Job(
        str(root), first.dataset, first.split, storage, settings, simulator, facts, dagger, kept
    )
    if (root / _INFO).exists():
        return _finished_before(job, episodes, begun)
    before = completed_episodes(root)
    left = (episode for episode in episodes if episode.key not in before)
    num_steps = sum(_expected_steps(episode, settings) for episode in left)
    num_steps += 0 if kept is None else sum(kept.num_steps)
    require_space_to_record(root, settings.embodiment, num_steps=num_steps)
    with locked(root / PARTS / _LOCK, what="`vla-nav record`"):
        if (root / _INFO).exists():  # the process that held the lock before has finished it
            return _finished_before(job, episodes, begun)
        return _record(job, episodes, scenes, num_workers, begun)


def _record(
    job: Job,
    episodes: Sequence[Episode],
    scenes: Mapping[str, str],
    num_workers: int,
    begun: float,
) -> RecordSummary:
    """Record what no part holds yet, then finalise; the caller holds the folder."""
    root = Path(job.root)
    before = completed_episodes(root)
    left = [episode for episode in episodes if episode.key not in before]
    part_writer(job)  # claims the folder, or refuses one of other conventions, before any work
    reasons: dict[tuple[str, str, str, str], str] = {}
    num_recorded = num_taken = 0
    kept_keys = () if job.kept is None else job.kept.keys
    units, work = units_of(job, left, scenes, before), partial(do_unit, job)
    with progress_bar() as progress:
        bar = progress.add_task("record", total=len(episodes), completed=len(episodes) - len(left))
        for done in run_units(work, units, num_workers, where=job.root):
            num_recorded += done.num_recorded
            num_taken += done.num_steps
            reasons.update(done.skipped)
            progress.advance(bar, done.num_recorded + len(done.skipped))
    order = [episode.key for episode in episodes if episode.key not in reasons]
    num_kept_before = len(before.intersection(kept_keys))
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
    part_writer(job).finalise([*kept_keys, *order])
    wall_s = time.perf_counter() - begun
    num_before = len(before) - num_kept_before
    return RecordSummary(
        root, num_recorded, num_before, skipped, num_taken, wall_s, num_kept=len(kept_keys)
    )


def _finished_before(job: Job, episodes: Sequence[Episode], begun: float) -> RecordSummary:
    """A finished set is left alone if it is what was asked for, and refused otherwise."""
    root = Path(job.root)
    there = read_json(root / _INFO)["vla_nav"]["recording"]
    require_own_folder(root, there, job.dagger)
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
    kept_keys = () if job.kept is None else job.kept.keys
    keys -= set(kept_keys)
    missing = [episode for episode in episodes if episode.key not in keys]
    if missing or len(keys) != len(episodes):
        raise UserError(
            f"{root}: holds a finished data set of {len(keys)} episodes, now {len(episodes)} are "
            "asked for; record into another data.path, or delete it"
        )
    wall_s = time.perf_counter() - begun
    return RecordSummary(root, 0, len(keys), skipped, 0, wall_s, num_kept=len(kept_keys))


def _expected_steps(episode: Episode, settings: RecordSettings) -> int:
    """A generous guess of an episode's decisions, for the size estimate."""
    legs = np.diff(episode.reference_path, axis=0)  # (R - 1, 3)
    length_m = float(np.linalg.norm(legs, axis=1).sum())
    per_decision = settings.decision.count if settings.decision.name != "primitive" else 1
    walked = length_m / settings.embodiment.step_m / per_decision
    return int(2 * walked / (1 - settings.perturbation)) + 10
