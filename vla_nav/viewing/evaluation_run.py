"""A finished or running evaluation as tracks: its result lines, by episode, beside the episodes.

    <run>/results-*.jsonl     one line per (row, episode): scores, primitives, path
    <run>/run.json            body, threshold, digest of the episode file
    <run>/.hydra/evaluate/    where the episodes and scenes were

A line has every primitive and every place, but a place only once: which forward steps were blocked
is inferred, so that each place is reached by the heading nearest to it (`replay.py` knows exactly).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from vla_nav.episodes.types import MOVE_FORWARD, STOP, TURN_LEFT, TURN_RIGHT, Embodiment, Episode
from vla_nav.errors import UserError
from vla_nav.evaluation.comparison_runs import runs_below
from vla_nav.evaluation.results import read_results
from vla_nav.evaluation.setup import episodes_digest, read_episodes
from vla_nav.files import read_json
from vla_nav.simulators import plain
from vla_nav.viewing.content import Spot, Track, num_unparsed
from vla_nav.viewing.outcomes import outcome_of_record

_NOT_SCORES = {
    "row", "dataset", "split", "role", "episode_id", "scene_id", "primitives", "path", "remark",
    "flag", "public", "language",
}  # fmt: skip
_NEEDED = {"sr", "osr", "ne_m", "path_m", "geodesic_m", "has_stopped"}  # to name an outcome
_CONFIG = ".hydra/evaluate/config.yaml"


@dataclass(frozen=True)
class EvaluationRun:
    """rows: names in the order of the report; records: (dataset, split, role, id) -> row -> line;
    data: where episodes, ground truth and scenes are."""

    folder: Path
    rows: tuple[str, ...]
    records: Mapping[tuple[str, ...], Mapping[str, Mapping[str, Any]]]
    facts: Mapping[str, Any]
    data: Mapping[str, Any]
    report: Mapping[str, Any] | None

    @property
    def body(self) -> Embodiment:
        """The body that was evaluated. Raises `UserError` for a damaged run.json."""
        try:
            return plain.embodiment_from_plain(dict(self.facts["embodiment"]))
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{self.folder / 'run.json'}: key embodiment is damaged ({error}); copy it again"
            ) from None

    @property
    def success_m(self) -> float:
        """The distance within which STOP is a success."""
        return float(self.facts["success"]["success_m"])

    def episodes(self) -> Iterator[Episode]:
        """The episodes that have a line, in the order of their file."""
        for episode in read_episodes(self.data):
            if episode.key in self.records:
                yield episode

    def tracks(self, episode: Episode) -> list[Track]:
        """One track per row of the episode."""
        lines = self.records[episode.key]
        return [self._track(episode, lines[row]) for row in self.rows if row in lines]

    def _track(self, episode: Episode, record: Mapping[str, Any]) -> Track:
        body = self.body
        primitives = [int(name) for name in record["primitives"]]
        path = np.asarray(record["path"], dtype=np.float64).reshape(-1, 3)
        spots, is_inferred = walked_spots(
            path, primitives, yaw_rad=episode.start_pose.yaw_rad, turn_deg=body.turn_deg
        )
        notes = [str(record["remark"])] if record.get("remark") else []
        if is_inferred:
            notes.append("which forward steps were blocked is inferred from the path")
        return Track(
            name=record["row"],
            spots=spots,
            actions=[[primitive] for primitive in primitives],
            outcome=outcome_of_record(
                record,
                success_m=self.success_m,
                turn_deg=body.turn_deg,
                num_unparsed=num_unparsed(record),
            ),
            scores={key: value for key, value in record.items() if key not in _NOT_SCORES},
            notes=notes,
        )


def open_run(
    folder: str | Path, *, rows: list[str] | None = None, data: Mapping[str, Any] | None = None
) -> EvaluationRun:
    """The run in `folder`. rows: which ones, None for all. data: values that replace those of the
    run (a data set that was moved). Raises `UserError` for what is missing or does not belong."""
    folder = Path(folder)
    if not (folder / "run.json").is_file():
        raise UserError(_no_run(folder))
    facts = read_json(folder / "run.json")
    if not isinstance(facts, dict) or not {"embodiment", "success", "dataset"} <= facts.keys():
        raise UserError(f"{folder / 'run.json'}: not of an evaluation; name a folder of evaluate")
    records: dict[tuple[str, ...], dict[str, Any]] = {}
    names: list[str] = []
    for (row, *key), record in read_results(folder).items():
        _check(folder, record)
        records.setdefault(tuple(key), {})[row] = record
        if row not in names:
            names.append(row)
    if not records:
        raise UserError(f"{folder}: no results-*.jsonl with a line in it; evaluate first")
    report = read_json(folder / "report.json") if (folder / "report.json").is_file() else None
    if report is not None:
        order = {row["name"]: place for place, row in enumerate(report["rows"])}
        names.sort(key=lambda name: order.get(name, len(order)))
    for row in rows or ():
        if row not in names:
            raise UserError(
                f"view.rows: '{row}' is not in {folder}; rows there: {', '.join(names)}"
            )
    wanted = _locate(folder, facts, data or {})
    return EvaluationRun(folder, tuple(rows or names), records, facts, wanted, report)


def walked_spots(
    path: np.ndarray, primitives: list[int], *, yaw_rad: float, turn_deg: float
) -> tuple[list[Spot], bool]:
    """(x, y, z, yaw) before every primitive and after the last but STOP, and whether it had to be
    inferred which forward steps moved. path: (N, 3) places without repetition."""
    forwards, yaws, yaw = [], [], yaw_rad
    for primitive in primitives:
        yaw += math.radians(turn_deg) * ((primitive == TURN_LEFT) - (primitive == TURN_RIGHT))
        yaws.append(yaw)
        if primitive == MOVE_FORWARD:
            forwards.append(yaw)
    moves = np.diff(path, axis=0)
    has_moved = _which_moved(moves, forwards)
    place = at = 0
    spots = [(*path[0].tolist(), yaw_rad)]
    for primitive, heading in zip(primitives, yaws, strict=True):
        if primitive == STOP:
            continue
        if primitive == MOVE_FORWARD:
            place += has_moved[at]
            at += 1
        spots.append((*path[place].tolist(), math.remainder(heading, 2 * math.pi)))
    return spots, len(forwards) > len(moves)


def _which_moved(moves: np.ndarray, yaws: list[float]) -> list[bool]:
    """Which forward steps made the moves, in order: the choice whose headings fit best.

    cost[i, j]: of explaining the first j moves with the first i forwards (exact, O(F x M)).
    """
    num_moves, count = len(moves), len(yaws)
    if num_moves >= count:
        return [True] * min(num_moves, count) + [False] * max(0, count - num_moves)
    heading = np.stack([-np.sin(yaws), -np.cos(yaws)], axis=1)  # (F, 2) along x and z
    flat = moves[:, [0, 2]]
    unit = flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-9)
    price = 1 - heading @ unit.T  # (F, M): 0 straight ahead
    cost = np.full((count + 1, num_moves + 1), np.inf)
    cost[:, 0] = 0
    took = np.zeros((count + 1, num_moves + 1), dtype=bool)
    for i in range(1, count + 1):
        taken = cost[i - 1, :-1] + price[i - 1]
        took[i, 1:] = taken <= cost[i - 1, 1:]
        cost[i, 1:] = np.minimum(taken, cost[i - 1, 1:])
    moved, j = [], num_moves
    for i in range(count, 0, -1):
        moved.append(bool(took[i, j]))
        j -= int(took[i, j])
    return moved[::-1]


def _no_run(folder: Path) -> str:
    """What to say of a folder that is no evaluation; a sweep's has one per seed below it."""
    found = runs_below(folder)
    if not found:
        return f"view.run={folder}: no folder of an evaluation (run.json); name what evaluate wrote"
    names = ", ".join(str(path) for path in found[:4]) + (", ..." if len(found) > 4 else "")
    return (
        f"view.run={folder}: holds {len(found)} runs, a page shows one; name one of them: {names}"
    )


def _check(folder: Path, record: Mapping[str, Any]) -> None:
    path, primitives = record.get("path"), record.get("primitives")
    is_path = (
        isinstance(path, list)
        and bool(path)
        and all(isinstance(point, list) and len(point) == 3 for point in path)
    )
    is_walk = isinstance(primitives, str) and not set(primitives) - set("012345")
    if not (is_path and is_walk and record.keys() >= _NEEDED):
        raise UserError(
            f"{folder}: the result of {record['row']}, episode {record['episode_id']}, has no "
            "path, primitives and scores; evaluate with this version, or delete the line"
        )


def _locate(folder: Path, facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Paths of episodes, ground truth and scenes: as given, else as the run had them."""
    # A sweep of shards keeps Hydra's files one folder further down, the same paths in each.
    files = [folder / _CONFIG, *sorted(folder.glob(f".shards/*/{_CONFIG}"))]
    file = next((path for path in files if path.is_file()), files[0])
    before: dict[str, Any] = {}
    if file.is_file():
        try:
            before = yaml.safe_load(file.read_text(encoding="utf-8"))["data"]
        except (yaml.YAMLError, KeyError, TypeError, UnicodeDecodeError) as error:
            raise UserError(
                f"{file}: cannot be read ({type(error).__name__}); restore it"
            ) from None
    root = given.get("path") or before.get("path")
    split = str(before.get("split", facts["split"]))
    found: dict[str, Any] = {
        "dataset": facts["dataset"], "split": facts["split"], "role": facts["role"]
    }  # fmt: skip
    for key, place in (
        ("episodes", "${data.path}/episodes/${data.split}/${data.split}.json.gz"),
        ("ground_truth", None),
        ("scenes", "${data.path}/scenes"),
    ):
        value = given.get(key) or before.get(key) or place
        if value and root:
            value = str(value).replace("${data.path}", str(root)).replace("${data.split}", split)
            value = value.replace("${data.role}", facts["role"])
        found[key] = value
    if not found["episodes"] or not Path(found["episodes"]).is_file():
        raise UserError(
            f"{folder}: its episodes are not at {found['episodes']}; name their data set as "
            "data.path=... or the file as data.episodes=..."
        )
    if facts.get("episodes") and episodes_digest(found) != facts["episodes"]:
        raise UserError(
            f"{found['episodes']}: not the episode file that {folder} was evaluated on (another "
            "digest in run.json); name the right one as data.episodes=..."
        )
    return found
