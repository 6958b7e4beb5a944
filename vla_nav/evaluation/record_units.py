"""The work of a recording, cut into units: what one process does, and the part that it writes.

    scene s  episodes e1 ... e32  --walked by the expert (and a policy)--> one part
    kept     numbers 0 ... 31     --copied from an older set-------------> one part

A unit is lost whole when its process is killed, and done again by the next start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from vla_nav.episodes.lerobot_writer import LeRobotWriter
from vla_nav.episodes.types import Episode
from vla_nav.evaluation.dagger import record_rollouts
from vla_nav.evaluation.dagger_run import Dagger, Kept, copied, policy_of
from vla_nav.evaluation.recording import Recorded, RecordSettings, Skipped, record_episode
from vla_nav.simulators.client import WorkerDiedError
from vla_nav.simulators.opening import SimulatorSetup
from vla_nav.simulators.protocol import Simulator
from vla_nav.simulators.remote import RemoteSimulator

UNIT_EPISODES = 32

EpisodeKey = tuple[str, str, str, str]


class Unit(NamedTuple):
    """Episodes of one scene to walk, or numbers of the kept set to copy."""

    scene: str
    episodes: tuple[Episode, ...]
    kept: tuple[int, ...] = ()


class Done(NamedTuple):
    """What came of a unit; copied episodes are not counted."""

    num_recorded: int
    num_steps: int
    skipped: list[tuple[EpisodeKey, str]]


class Job(NamedTuple):
    """Everything a worker process needs besides its unit."""

    root: str
    dataset: str
    split: str
    storage: str
    settings: RecordSettings
    simulator: SimulatorSetup
    recording: dict[str, Any]
    dagger: Dagger | None
    kept: Kept | None


def units_of(
    job: Job, episodes: Sequence[Episode], scenes: Mapping[str, str], before: set[EpisodeKey]
) -> list[Unit]:
    """The units that are left: what is to be copied, then the scenes with most episodes first, so
    that the end is even. episodes: those to walk. before: keys that some part holds."""
    kept = () if job.kept is None else job.kept.keys
    to_copy = [number for number, key in enumerate(kept) if key not in before]
    by_scene: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        by_scene[episode.scene_id].append(episode)
    walks = [
        Unit(scenes[scene], tuple(group[at : at + UNIT_EPISODES]))
        for scene, group in by_scene.items()
        for at in range(0, len(group), UNIT_EPISODES)
    ]
    copies = [
        Unit("", (), tuple(to_copy[at : at + UNIT_EPISODES]))
        for at in range(0, len(to_copy), UNIT_EPISODES)
    ]
    return [*copies, *sorted(walks, key=lambda unit: -len(unit.episodes))]


def do_unit(job: Job, unit: Unit) -> Done:
    """Copy or record the episodes of a unit into one part."""
    skipped: list[tuple[EpisodeKey, str]] = []
    num_recorded = num_steps = 0
    if unit.kept:
        assert job.kept is not None
        with part_writer(job) as writer:
            for result in copied(job.kept.root, unit.kept):
                writer.add(result.episode, result.frames)
        return Done(0, 0, [])
    with closing(job.simulator.opened(job.settings.embodiment)) as simulator:
        simulator.load_scene(unit.scene)
        with part_writer(job) as writer:
            for result in _walks(job, unit, simulator):
                if isinstance(result, Recorded):
                    writer.add(result.episode, result.frames)
                    num_recorded += 1
                    num_steps += len(result.episode.steps)
                else:
                    skipped.append((result.episode.key, result.reason))
    return Done(num_recorded, num_steps, skipped)


def recorded_twice(
    episode: Episode, simulator: Simulator, settings: RecordSettings
) -> Recorded | Skipped:
    """The episode; where its simulator's process dies over it, once more in a fresh one."""
    reason = ""
    for _ in range(2):
        try:
            return record_episode(episode, simulator, settings)
        except WorkerDiedError as error:
            assert isinstance(simulator, RemoteSimulator)
            reason = str(error)
            simulator.revive()
    return Skipped(episode, f"its simulator died twice: {reason}")


def part_writer(job: Job) -> LeRobotWriter:
    """A writer into the job's data set; claims the folder, or refuses one of other conventions."""
    return LeRobotWriter(
        job.root,
        dataset=job.dataset,
        split=job.split,
        embodiment=job.settings.embodiment,
        decision=str(job.settings.decision),
        storage=job.storage,
        recording=job.recording,
        episodes_per_part=UNIT_EPISODES,
    )


def _walks(job: Job, unit: Unit, simulator: Simulator) -> Iterator[Recorded | Skipped]:
    if job.dagger is None:
        return (recorded_twice(episode, simulator, job.settings) for episode in unit.episodes)
    mixture, policy = job.dagger.mixture, policy_of(job.dagger)
    return record_rollouts(unit.episodes, simulator, job.settings, mixture, policy)
