"""A whole data set of houses and episodes on disk: parallel, resumable, the same every time.

    <path>/scenes/<split>/houses.json                  what was asked for (checked on every start)
    <path>/scenes/<split>/<house>/<house>.{glb,json}   one house
    <path>/episodes/<split>/parts/<house>.json         its episodes, written last; gone when done
    <path>/episodes/<split>/<split>.json.gz            all episodes, VLN-CE format, in house order

A house and its episodes depend on its seed alone, so neither the number of workers nor a kill
changes a byte. Splits draw their seeds from disjoint ranges.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vla_nav.episodes.types import Episode, Goal, Pose
from vla_nav.episodes.vlnce import write_vlnce
from vla_nav.errors import UserError
from vla_nav.files import (
    file_digest,
    locked,
    read_json,
    remove_leftovers,
    require_free_space,
    write_json,
)
from vla_nav.seeding import generator
from vla_nav.simulators.houses.dataset_options import MAX_HOUSES, DatasetOptions
from vla_nav.simulators.houses.export import export_house
from vla_nav.simulators.houses.house import generate_house
from vla_nav.simulators.houses.instructions import phrase_route
from vla_nav.simulators.houses.routes import Route, sample_routes
from vla_nav.simulators.mesh import MeshSimulator

DATASET = "houses"
SUCCESS_RADIUS_M = 3.0
SPLITS = ("train", "val_unseen")
_SEEDS_PER_RUN = len(SPLITS) * MAX_HOUSES


@dataclass(frozen=True, slots=True)
class _Job:
    """All that one house needs, sent to a worker."""

    seed: int
    scene_folder: Path
    part: Path
    options: DatasetOptions

    @property
    def name(self) -> str:
        return self.scene_folder.name

    @property
    def is_made(self) -> bool:
        """Whether the house is on disk (its part file, written last, may be gone)."""
        return all(
            (self.scene_folder / f"{self.name}{suffix}").exists() for suffix in (".json", ".glb")
        )


def house_seed(run_seed: int, split: str, index: int) -> int:
    """The seed of a split's house: neither splits nor run seeds share one."""
    assert 0 <= index < MAX_HOUSES
    return run_seed * _SEEDS_PER_RUN + SPLITS.index(split) * MAX_HOUSES + index


def write_dataset(
    path: str | Path, options: DatasetOptions, *, run_seed: int, num_workers: int
) -> dict[str, int]:
    """Write both splits; return the number of episodes of each. A second call does nothing.

    Raises `UserError` where `path` holds houses of other options or the disk is too small.
    """
    path = Path(path)
    jobs = {split: _jobs(path, split, options, run_seed) for split in SPLITS}
    assert not {job.seed for job in jobs["train"]} & {job.seed for job in jobs["val_unseen"]}
    num_missing = sum(not job.is_made for split in SPLITS for job in jobs[split])
    require_free_space(
        path, options.bytes_of(num_missing), what=f"writing {num_missing} houses with episodes"
    )
    asked = {"seed": run_seed, **options.facts()}
    splits = {split: _Split(path, split, tuple(jobs[split]), asked) for split in SPLITS}
    for split in splits.values():
        split.check_manifest()
    if _unfinished(splits):  # a finished set may lie on a disk that takes no lock
        with locked(path / "scenes" / ".lock", what="`vla-nav houses`"):
            _make(_unfinished(splits), num_workers)
    return {name: split.num_episodes() for name, split in splits.items() if split.jobs}


def _unfinished(splits: Mapping[str, _Split]) -> list[_Split]:
    return [split for split in splits.values() if split.jobs and not split.is_finished()]


def _make(splits: Sequence[_Split], num_workers: int) -> None:
    missing = [job for split in splits for job in split.begin()]
    _run(missing, num_workers, num_done=sum(len(split.jobs) for split in splits) - len(missing))
    for split in splits:
        split.finish()


def _jobs(path: Path, split: str, options: DatasetOptions, run_seed: int) -> list[_Job]:
    jobs = []
    for index in range(options.num_houses(split)):
        seed = house_seed(run_seed, split, index)
        name = f"house_{seed:07d}"
        part = path / "episodes" / split / "parts" / f"{name}.json"
        jobs.append(_Job(seed, path / "scenes" / split / name, part, options))
    return jobs


@dataclass(frozen=True, slots=True)
class _Split:
    """The files of one split and the steps to make them."""

    path: Path
    name: str
    jobs: tuple[_Job, ...]
    asked: dict[str, Any]

    @property
    def manifest_file(self) -> Path:
        return self.path / "scenes" / self.name / "houses.json"

    @property
    def episode_file(self) -> Path:
        return self.path / "episodes" / self.name / f"{self.name}.json.gz"

    def check_manifest(self) -> None:
        """Refuse to mix houses of other options into a data set."""
        if not self.manifest_file.exists():
            return
        known = _flat(read_json(self.manifest_file))
        for key, value in _flat(self.asked).items():
            if known.get(key) != value:
                raise UserError(
                    f"{self.manifest_file}: holds houses made with {key}={known.get(key)}, now "
                    f"asked for {value}; choose another data.path or remove this one's scenes "
                    "and episodes"
                )

    def is_finished(self) -> bool:
        """Whether everything asked for is on disk."""
        if not self.manifest_file.exists() or not self.episode_file.exists():
            return False
        known = read_json(self.manifest_file)
        is_whole = known.get("num_houses") == len(self.jobs) and "num_episodes" in known
        if not is_whole or not all(job.is_made for job in self.jobs):
            return False
        for name, digest in known.get("xxh3_128", {}).items():
            if file_digest(self.path / name) != digest:
                raise UserError(
                    f"{self.path / name}: not what was written, its checksum differs from that in "
                    f"{self.manifest_file.name}; delete it and start again to have it made anew"
                )
        return True

    def begin(self) -> list[_Job]:
        """Clear a killed run's temporary files; return the jobs still to do."""
        for folder in (self.manifest_file.parent, self.episode_file.parent):
            remove_leftovers(folder)
        write_json(self.manifest_file, self.asked)
        return [job for job in self.jobs if not (job.part.exists() and job.is_made)]

    def finish(self) -> None:
        """Join the part files to the episode file; the manifest tells the end."""
        episodes = list(_episodes(self.name, self.jobs))
        write_vlnce(self.episode_file, episodes)
        counts = {"num_houses": len(self.jobs), "num_episodes": len(episodes)}
        scenes = [path for job in self.jobs for path in sorted(job.scene_folder.iterdir())]
        digests = {
            str(file.relative_to(self.path)): file_digest(file)
            for file in [self.episode_file, *scenes]
        }
        write_json(self.manifest_file, self.asked | counts | {"xxh3_128": digests})
        shutil.rmtree(self.episode_file.parent / "parts")

    def num_episodes(self) -> int:
        return int(read_json(self.manifest_file)["num_episodes"])


def _run(jobs: list[_Job], num_workers: int, *, num_done: int) -> None:
    """Make houses under a progress bar (on stderr, where it is a terminal)."""
    if not jobs:
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("houses", total=num_done + len(jobs), completed=num_done)
        for _ in _completed(_make_house, jobs, num_workers):
            progress.advance(task)


def _completed(
    function: Callable[[_Job], None], jobs: list[_Job], num_workers: int
) -> Iterator[None]:
    """Run the jobs, here or in processes; yield once for each that is done."""
    if num_workers < 2 or len(jobs) < 2:
        for job in jobs:
            yield function(job)
        return
    with ProcessPoolExecutor(min(num_workers, len(jobs)), mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(function, job) for job in jobs]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _make_house(job: _Job) -> None:
    """Write one house and, last, its part file of episodes."""
    options = job.options
    house = generate_house(job.seed, options.house, name=job.name)
    simulator = MeshSimulator(options.agent.embodiment())
    simulator.load_scene(str(export_house(house, job.scene_folder)))
    routes = sample_routes(
        house,
        simulator,
        generator(job.seed, "routes"),
        num_routes=options.num_routes,
        options=options.route,
    )
    rows = []
    for index, route in enumerate(routes):
        rng = generator(job.seed, "phrasing", index)
        texts = phrase_route(route.description, rng, num_phrasings=options.instructions_per_route)
        rows += [_row(route, index, text) for text in texts]
    write_json(job.part, rows[: options.episodes_per_house])


def _row(route: Route, index: int, text: str) -> dict[str, Any]:
    return {
        "route": index,
        "instruction": text,
        "start": _rounded(route.start),
        "start_yaw_rad": round(route.start_yaw_rad, 6),
        "goal": _rounded(route.goal),
        "goal_object": route.goal_object.name,
        "geodesic_m": round(route.geodesic_m, 4),
        "path": _rounded(route.path),
    }


def _rounded(values: Any) -> list[Any]:
    """To a tenth of a millimetre, without negative zeros."""
    return (np.round(np.asarray(values, dtype=np.float64), 4) + 0.0).tolist()


def _episodes(split: str, jobs: tuple[_Job, ...]) -> Iterator[Episode]:
    """All episodes of a split in house order; ids count episodes and routes from 0."""
    episode_id = first_trajectory = 0
    for job in jobs:
        rows = read_json(job.part)
        for row in rows:
            yield Episode(
                dataset=DATASET,
                split=split,
                role="",
                episode_id=str(episode_id),
                scene_id=f"{split}/{job.name}/{job.name}.glb",
                instruction=row["instruction"],
                start_pose=Pose.from_yaw(tuple(row["start"]), row["start_yaw_rad"]),
                goals=(Goal(tuple(row["goal"]), SUCCESS_RADIUS_M),),
                reference_path=np.array(row["path"], dtype=np.float64),
                embodiment=None,
                metadata={
                    "trajectory_id": first_trajectory + row["route"],
                    "info": {
                        "geodesic_distance": row["geodesic_m"],
                        "goal_object": row["goal_object"],
                    },
                },
            )
            episode_id += 1
        first_trajectory += 1 + max((row["route"] for row in rows), default=-1)


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = list(value) if isinstance(value, tuple) else value
    return flat
