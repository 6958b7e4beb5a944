"""`vla-nav convert`: episodes of any format into one LeRobot v3 data set of ours, resumably.

    source --plan: read once, no pixels--> what is there, what is left, room for it on the disk
           --units of some episodes, many processes--> parts --finalise--> data set --> its card

A kill at any moment loses the units in progress; the same command goes on. The result is the same
for any number of workers and any number of kills. Where a source has poses but no pixels, its
frames can be rendered; where it has ground-truth actions but no steps, the steps can be made.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from vla_nav import __version__
from vla_nav.episodes.conversion import EpisodeKey, Plan, convert_episode, plan
from vla_nav.episodes.data_card import SKIPPED, data_card, rules_of, write_card, write_skipped
from vla_nav.episodes.lerobot_finalise import DiskFullError, finalise
from vla_nav.episodes.lerobot_layout import INFO, PARTS
from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.episodes.lerobot_writer import LeRobotWriter, completed_episodes, estimate_bytes
from vla_nav.episodes.source import EpisodeSource
from vla_nav.episodes.types import Episode, FrameSource
from vla_nav.errors import UserError, unknown_name
from vla_nav.evaluation.convert_job import (
    ConvertJob,
    ConvertSettings,
    convert_job,
    episodes_left,
    opened,
    source_episodes,
)
from vla_nav.evaluation.process_units import progress_bar, run_units
from vla_nav.evaluation.rendered_frames import RenderedFrames, posed
from vla_nav.evaluation.setup import embodiment_of
from vla_nav.evaluation.source_body import StatedBody
from vla_nav.files import locked, read_json, require_free_space
from vla_nav.simulators.opening import SimulatorSetup

_UNIT_EPISODES = 32
_UNIT_STEPS = 2048  # a unit is closed at the first of the two
_LOCK = ".lock"
_BODIES = ("stated", "simulators")


class ConvertSummary(NamedTuple):
    """What a conversion came to."""

    root: Path
    num_converted: int
    num_before: int
    num_steps: int
    skipped: tuple[tuple[EpisodeKey, str], ...]
    wall_s: float

    def __str__(self) -> str:
        rate = f", {self.num_steps / self.wall_s:.0f} steps/s" if self.num_steps else ""
        lines = [
            f"{self.root}: {self.num_converted} episodes converted ({self.num_steps} steps) in "
            f"{self.wall_s:.1f} s{rate}; {self.num_before} were there before; "
            f"{len(self.skipped)} left out"
        ]
        if self.num_converted and not self.num_steps:
            lines.append(
                "no episode has a step: nothing to train on; where the source has ground "
                "truth, give convert.steps=ground_truth"
            )
        lines += [f"  left out {'/'.join(filter(None, k))}: {why}" for k, why in self.skipped[:5]]
        if len(self.skipped) > 5:
            lines.append(f"  ... all of them in {self.root / 'skipped.json'}")
        return "\n".join(lines)


class _Done(NamedTuple):
    num_taken: int
    num_converted: int
    num_steps: int
    skipped: tuple[tuple[EpisodeKey, str], ...]


def convert_from(config: Mapping[str, Any]) -> int:
    """Convert as the composed configuration `conf/convert.yaml` says; the exit code."""
    data, options, simulators = config["data"], config["convert"], config["simulators"]
    if options["embodiment"] not in _BODIES:
        raise unknown_name("convert.embodiment", options["embodiment"], _BODIES)
    settings = ConvertSettings(
        path=data["path"],
        split=data["split"],
        root=Path(options["to"]) / "recorded" / data["split"],
        format=data["format"],
        role=data["role"],
        dataset=options["dataset"],
        num_episodes=options["num_episodes"],
        steps=options["steps"],
        decision=options["decision"],
        storage=options["storage"],
        embodiment=embodiment_of(simulators) if options["embodiment"] == "simulators" else None,
        body=StatedBody(**options["body"]),
        render=SimulatorSetup.of(simulators) if options["render"] else None,
        scenes=data["scenes"],
    )
    print(convert(settings, num_workers=config["num_workers"]))
    return 0


def convert(settings: ConvertSettings, *, num_workers: int = 0) -> ConvertSummary:
    """Convert, or go on where a killed conversion stopped; a finished one is left alone.

    num_workers: 0 works in this process. Raises `UserError` for a source that cannot be read or
    does not state its conventions, for a full disk, and where no episode can be converted.
    """
    begun = time.perf_counter()
    root = settings.root
    source = opened(settings, is_again=True)
    if Path(source.root).resolve() == root.resolve():
        raise UserError(f"{root}: is the source itself; name another folder as convert.to")
    before = completed_episodes(root)
    left_out: list[tuple[EpisodeKey, str]] = []
    found = plan(source_episodes(settings, left_out), done=before)
    found = replace(found, skipped=(*found.skipped, *left_out))
    if not found.order:
        raise _nothing(source, found)
    job = convert_job(settings, source, found)
    if (root / INFO).exists():
        return _finished_before(job, source, found, before, begun)
    _require_space(job, found, len(before))
    with locked(root / PARTS / _LOCK, what="`vla-nav convert`"):
        before = completed_episodes(root)
        if (root / INFO).exists():  # the process that held the lock before has finished it
            return _finished_before(job, source, found, before, begun)
        return _convert(job, source, found, before, num_workers, begun)


def _convert(
    job: ConvertJob,
    source: EpisodeSource,
    found: Plan,
    before: Collection[EpisodeKey],
    num_workers: int,
    begun: float,
) -> ConvertSummary:
    """Write what no part holds yet, then finalise; the caller holds the folder."""
    settings = job.settings
    _writer(job)  # claims the folder, or refuses one of other conventions, before any work
    late: dict[EpisodeKey, str] = {}  # why an episode of the plan could not be written
    num_converted = num_steps = 0
    with progress_bar() as progress:
        bar = progress.add_task("convert", total=len(found.order), completed=len(before))
        left = episodes_left(settings, found, before)
        units = _units(left, by_scene=settings.render is not None)
        work = partial(_convert_unit, job)
        for done in run_units(work, units, num_workers, where=str(settings.root)):
            num_converted += done.num_converted
            num_steps += done.num_steps
            late.update(done.skipped)
            progress.advance(bar, done.num_taken)
    order = [key for key in found.order if key not in late]
    skipped = (*found.skipped, *((key, late[key]) for key in found.order if key in late))
    if not order:
        raise UserError(
            f"{source.root}: none of the {len(found.order)} episodes could be converted; the "
            f"first reason: {skipped[0][1]}"
        )
    write_skipped(settings.root, skipped)
    _writer(job).finalise(order)
    _write_card(job, source, found, skipped)
    wall_s = time.perf_counter() - begun
    return ConvertSummary(settings.root, num_converted, len(before), num_steps, skipped, wall_s)


def _convert_unit(job: ConvertJob, unit: tuple[Episode, ...]) -> _Done:
    """Write some episodes as one part, or several where they are large."""
    if job.settings.render is not None:
        with closing(job.settings.render.opened(job.body)) as simulator:
            return _convert_episodes(job, unit, RenderedFrames(simulator, job.scenes))
    return _convert_episodes(job, unit, opened(job.settings).frames if job.has_frames else None)


def _convert_episodes(
    job: ConvertJob, unit: tuple[Episode, ...], frames: FrameSource | None
) -> _Done:
    skipped: list[tuple[EpisodeKey, str]] = []
    num_converted = num_steps = 0
    with _writer(job) as writer:
        for episode in unit:
            try:
                if job.settings.render is not None:
                    episode = posed(episode, job.body)
                made = convert_episode(episode, frames)
                writer.add(made.episode, made.frames)
            except DiskFullError:
                raise
            except UserError as error:
                skipped.append((episode.key, str(error)))
                continue
            num_converted += 1
            num_steps += len(episode.steps)
    return _Done(len(unit), num_converted, num_steps, tuple(skipped))


def _units(episodes: Iterable[Episode], *, by_scene: bool) -> Iterator[tuple[Episode, ...]]:
    """Episodes in small groups; by_scene: of one scene each, so that it is loaded once a group."""
    groups: dict[str, list[Episode]] = defaultdict(list)
    steps: dict[str, int] = defaultdict(int)
    for episode in episodes:
        name = episode.scene_id if by_scene else ""
        groups[name].append(episode)
        steps[name] += len(episode.steps)
        if len(groups[name]) >= _UNIT_EPISODES or steps[name] >= _UNIT_STEPS:
            yield tuple(groups.pop(name))
            del steps[name]
    yield from map(tuple, groups.values())


def _require_space(job: ConvertJob, found: Plan, num_before: int) -> None:
    has_pixels = found.num_frames > 0 or job.settings.render is not None
    body = job.body if has_pixels else replace(job.body, cameras=())
    needed = estimate_bytes(body, num_steps=found.num_steps) + 2 * found.row_bytes
    count = len(found.order) - num_before
    require_free_space(job.settings.root, needed, what=f"converting {count} episodes")


def _writer(job: ConvertJob) -> LeRobotWriter:
    return LeRobotWriter(
        job.settings.root,
        dataset=job.dataset,
        split=job.settings.split,
        embodiment=job.body,
        decision=job.decision,
        storage=job.settings.storage,
        recording=job.facts,
        episodes_per_part=_UNIT_EPISODES,
    )


def _finished_before(
    job: ConvertJob,
    source: EpisodeSource,
    found: Plan,
    before: Collection[EpisodeKey],
    begun: float,
) -> ConvertSummary:
    """A finished set is left alone if it is what was asked for, and refused otherwise."""
    root = job.settings.root
    data = LeRobotDataset(root)
    there = data.conventions
    wanted = job.conventions()
    for key, value in wanted.items():
        own = there.recording.get(key) if key in job.facts else getattr(there, key)
        if own != value:
            raise UserError(
                f"{root}: holds a finished data set with {key}={own!r}, now it is {value!r}; "
                "convert into another convert.to, or delete it"
            )
    skipped_file = root / SKIPPED
    rows = read_json(skipped_file) if skipped_file.exists() else []
    skipped = tuple(
        ((row["dataset"], row["split"], row["role"], row["episode_id"]), row["reason"])
        for row in rows
    )
    if not {*found.order} <= {*before, *(key for key, _ in skipped)}:
        raise UserError(
            f"{root}: holds a finished data set of {len(before)} episodes, now {len(found.order)} "
            "are asked for; convert into another convert.to, or delete it"
        )
    _write_card(job, source, found, skipped)  # a kill may have come before it
    finalise(root)  # only removes what is left of the parts
    return ConvertSummary(root, 0, len(before), 0, skipped, time.perf_counter() - begun)


def _write_card(
    job: ConvertJob, source: EpisodeSource, found: Plan, skipped: tuple[tuple[EpisodeKey, str], ...]
) -> None:
    root, rendered = job.settings.root, None
    if job.settings.render is not None:
        render = job.settings.render
        rendered = f"the {render.backend} simulator ({dict(render.options)})"
    has_frames = job.has_frames and found.has_frames
    rules = rules_of(found, decision=job.decision, has_frames=has_frames, rendered=rendered)
    if job.settings.steps == "ground_truth":
        rules.append("Steps were made from the ground-truth actions and locations of the source.")
    card = data_card(
        LeRobotDataset(root),
        facts=source.facts,
        source=job.settings.path,
        source_digest=found.digest,
        rules=rules,
        skipped=skipped,
        version=__version__,
    )
    write_card(root, card)


def _nothing(source: EpisodeSource, found: Plan) -> UserError:
    if found.skipped:
        return UserError(
            f"{source.root}: none of its {len(found.skipped)} episodes can be converted; the "
            f"first reason: {found.skipped[0][1]}"
        )
    return UserError(f"{source.root}: holds no episode of split '{source.split}'")
