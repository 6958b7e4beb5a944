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
from collections.abc import Callable, Iterator
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
from vla_nav.files import read_json, remove_leftovers, require_free_space, write_json
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
    for split in SPLITS:
        _check_manifest(path / "scenes" / split / "houses.json", asked)
    return {
        split: _write_split(path, split, jobs[split], asked, num_workers)
        for split in SPLITS
        if jobs[split]
    }


def _jobs(path: Path, split: str, options: DatasetOptions, run_seed: int) -> list[_Job]:
    jobs = []
    for index in range(options.num_houses(split)):
        seed = house_seed(run_seed, split, index)
        name = f"house_{seed:07d}"
        part = path / "episodes" / split / "parts" / f"{name}.json"
        jobs.append(_Job(seed, path / "scenes" / split / name, part, options))
    return jobs


def _write_split(
    path: Path, split: str, jobs: list[_Job], asked: dict[str, Any], num_workers: int
) -> int:
    """Make the missing houses of a split, then its episode file."""
    episode_folder = path / "episodes" / split
    episode_file = episode_folder / f"{split}.json.gz"
    done_file = path / "scenes" / split / "houses.json"
    manifest = {**asked, "num_houses": len(jobs)}
    known = read_json(done_file) if done_file.exists() else {}
    is_whole = known.get("num_houses") == len(jobs) and "num_episodes" in known
    if is_whole and episode_file.exists() and all(job.is_made for job in jobs):
        return int(known["num_episodes"])
    for folder in (episode_folder, path / "scenes" / split):
        remove_leftovers(folder)
    write_json(done_file, manifest)
    missing = [job for job in jobs if not (job.part.exists() and job.is_made)]
    _run(missing, num_workers, f"houses {split}", num_done=len(jobs) - len(missing))
    episodes = list(_episodes(split, jobs))
    write_vlnce(episode_file, episodes)
    write_json(done_file, {**manifest, "num_episodes": len(episodes)})
    shutil.rmtree(episode_folder / "parts")
    return len(episodes)


def _run(jobs: list[_Job], num_workers: int, label: str, *, num_done: int) -> None:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(label, total=num_done + len(jobs), completed=num_done)
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
        "start": [round(value, 4) for value in route.start],
        "start_yaw_rad": round(route.start_yaw_rad, 6),
        "goal": [round(value, 4) for value in route.goal],
        "goal_object": route.goal_object.name,
        "geodesic_m": round(route.geodesic_m, 4),
        "path": np.round(route.path, 4).tolist(),
    }


def _episodes(split: str, jobs: list[_Job]) -> Iterator[Episode]:
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


def _check_manifest(file: Path, asked: dict[str, Any]) -> None:
    """Refuse to mix houses of other options into a data set."""
    if not file.exists():
        return
    known = read_json(file)
    for key, value in _flat(asked).items():
        got = _flat(known).get(key)
        if got != value:
            raise UserError(
                f"{file}: holds houses made with {key}={got}, now asked for {value}; "
                "choose another data.path or remove this one's scenes and episodes"
            )


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = list(value) if isinstance(value, tuple) else value
    return flat
