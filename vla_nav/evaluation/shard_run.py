"""One shard of an evaluation is played: workers, slots, lines as episodes end, replays, times.

units --Table(batched)--> results-<shard>-of-<n>.jsonl   what the report is made of
units --Table(one slot per forward)--> replays-...        how many of them batching changed
                                   --> crashes-...        whose simulator died over them twice
                                   --> timing-...         one line of this start
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vla_nav.evaluation.conditions import Instructions
from vla_nav.evaluation.pictures import Pictures
from vla_nav.evaluation.play import PlaySettings, Unit
from vla_nav.evaluation.results import ResultsFile
from vla_nav.evaluation.slots import Crashed, Table
from vla_nav.evaluation.subject import Subject
from vla_nav.evaluation.throughput import note_timing
from vla_nav.simulators.opening import SimulatorSetup
from vla_nav.simulators.pool import SimulatorPool


@dataclass(frozen=True)
class Shard:
    """What a shard consists of, whoever has played how much of it. replays: units to play again."""

    folder: Path
    number: int
    count: int
    units: tuple[Unit, ...]
    replays: tuple[Unit, ...]
    scenes: Mapping[str, str]


def play_shard(
    shard: Shard,
    config: Mapping[str, Any],
    subject: Subject,
    settings: PlaySettings,
    instructions: Instructions,
    *,
    to_play: tuple[Sequence[Unit], ResultsFile],
    to_replay: tuple[Sequence[Unit], ResultsFile | None],
) -> None:
    """Play the units that are given with the file that takes their records, and note the time."""
    options, simulators = config["evaluation"], config["simulators"]
    pictures = Pictures(
        shard.folder,
        simulator=SimulatorSetup.of(simulators),
        embodiment=subject.embodiment,
        scenes=shard.scenes,
        filmed=_first_of_each_row(shard.units, options["num_videos"]),
        mapped=_first_of_each_row(shard.units, options["num_maps"]),
    )
    pool = SimulatorPool(
        simulators["backend"],
        subject.embodiment,
        simulators["options"],
        num_workers=config["num_workers"],
        python=simulators["python"],
        timeout_s=simulators["timeout_s"],
        max_resident_mib=options["max_worker_mib"],
    )

    def table(*, is_one_by_one: bool, is_filmed: Callable[[Unit], bool]) -> Table:
        return Table(
            pool,
            settings,
            instructions,
            scene_path=lambda episode: shard.scenes[episode.scene_id],
            network=subject.network,
            num_slots=options["num_slots"],
            is_one_by_one=is_one_by_one,
            is_filmed=is_filmed,
        )

    with contextlib.closing(pool), contextlib.closing(pictures), _progress() as progress:
        first = table(
            is_one_by_one=options["deterministic"],
            is_filmed=lambda unit: unit.key in pictures.filmed,
        )
        try:
            _play(shard, first, *to_play, progress, "evaluate", pictures)
        finally:
            note_timing(shard.folder, first.timing, shard=shard.number, num_shards=shard.count)
        again = table(is_one_by_one=True, is_filmed=lambda unit: False)
        _play(shard, again, *to_replay, progress, "replay", None)


def _play(
    shard: Shard,
    table: Table,
    units: Sequence[Unit],
    file: ResultsFile | None,
    progress: Progress,
    what: str,
    pictures: Pictures | None,
) -> None:
    """Play units, draw what is filmed, write a line each."""
    if not units:
        return
    assert file is not None, "units without a file for their records"
    bar = progress.add_task(what, total=len(units))
    for ended in table.play(units):
        if isinstance(ended, Crashed):
            _note_crash(shard, ended)
        else:
            if pictures is not None:
                pictures.draw(ended)
            file.append(ended.record)
        progress.advance(bar)


def crashes_file(folder: Path, *, shard: int, num_shards: int) -> Path:
    """Where a shard lists the episodes whose simulator died over them twice."""
    return folder / f"crashes-{shard:03d}-of-{num_shards:03d}.jsonl"


def _note_crash(shard: Shard, crashed: Crashed) -> None:
    line = json.dumps({"key": list(crashed.unit.key), "reason": crashed.reason})
    path = crashes_file(shard.folder, shard=shard.number, num_shards=shard.count)
    with open(path, "a", encoding="utf-8") as handle:
        handle.write(line + "\n")


def _first_of_each_row(units: Sequence[Unit], count: int) -> frozenset[tuple[str, ...]]:
    """Keys of the first `count` units of each row, in the order of the run's own list."""
    taken: dict[str, list[tuple[str, ...]]] = {}
    for unit in units:
        keys = taken.setdefault(unit.condition.name, [])
        if len(keys) < count:
            keys.append(unit.key)
    return frozenset(key for keys in taken.values() for key in keys)


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
