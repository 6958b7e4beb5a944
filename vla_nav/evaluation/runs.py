"""`vla-nav evaluate`: from a checkpoint and a split to results that can be trusted.

    bundle, episodes --refuse what disagrees--> selection --> this shard's (row, episode) units
      --without those already in results-*.jsonl--> played over slots, one line each as they end
      --when every shard is there--> report.json, report.html

The exit code is 0 only when every expected episode of this shard has its line; an episode whose
simulator died twice has none, is listed in crashes.jsonl and is played again by the next start.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vla_nav.errors import UserError, unknown_name
from vla_nav.evaluation.aggregate import FLAG_POLICIES
from vla_nav.evaluation.approach import EXECUTIONS
from vla_nav.evaluation.conditions import Condition, Instructions, conditions_named
from vla_nav.evaluation.metrics import SuccessRule
from vla_nav.evaluation.pictures import Pictures
from vla_nav.evaluation.play import Played, PlaySettings, Unit
from vla_nav.evaluation.report import write_report
from vla_nav.evaluation.results import ResultsFile, claim_folder, missing, read_results
from vla_nav.evaluation.selection import select, shard_of
from vla_nav.evaluation.setup import read_episodes, scene_files
from vla_nav.evaluation.slots import Crashed, Table, Timing
from vla_nav.evaluation.subject import Subject, load_subject, require_execution
from vla_nav.evaluation.tasks import refuse_other_conditions
from vla_nav.files import file_digest
from vla_nav.simulators.pool import SimulatorPool

DONE, INCOMPLETE = 0, 3
_CRASHES = "crashes.jsonl"


def evaluate_from(config: Mapping[str, Any]) -> int:
    """Evaluate as the composed configuration `conf/evaluate.yaml` says; the exit code."""
    options, data = config["evaluation"], config["data"]
    folder = Path(config["paths"]["output_dir"])
    rows = conditions_named(options["rows"])
    _check(options)
    everything = read_episodes(data)
    selection = select(
        everything,
        source=data["episodes"],
        seed=config["seed"],
        num_episodes=options["num_episodes"],
        scenes=options["scenes"],
        episode_ids=[str(name) for name in options["episode_ids"]],
    )
    shard = shard_of(selection, shard=options["shard"], num_shards=options["num_shards"])
    scenes = scene_files(list(shard), data["scenes"])
    subject = load_subject(config, rows)
    rule = SuccessRule(options["success_m"], tuple(options["further_m"]), options["is_strict"])
    differences = refuse_other_conditions(config, subject.embodiment, rule)
    settings = PlaySettings(
        embodiment=subject.embodiment,
        decision=subject.decision,
        success=rule,
        seed=config["seed"],
        max_primitives=options["max_primitives"],
        expert_stop_radius_m=options["expert_stop_radius_m"],
        chance_stop_probability=options["chance_stop_probability"],
        execution=require_execution(options["execution"], subject.network),
    )
    identity = _identity(config, settings, subject, differences)
    claim_folder(folder, identity)
    expected = [Unit(row, episode).key for row in rows for episode in selection]
    own = [Unit(row, episode) for episode in shard for row in rows]
    with ResultsFile(folder, shard=options["shard"], num_shards=options["num_shards"]) as results:
        before = read_results(folder)
        units = [unit for unit in own if unit.key not in before]
        if len(units) < len(own):
            print(f"{folder}: {len(own) - len(units)} of {len(own)} episodes are there already")
        timing = Timing()
        if units:
            instructions = Instructions(everything, seed=config["seed"])
            timing = _play(config, own, units, results, subject, settings, instructions, scenes)
    return _conclude(folder, config, rows, expected, own, identity, timing)


def _check(options: Mapping[str, Any]) -> None:
    """Refuse before hours of work what would only be met during or after it."""
    if options["flag_policy"] not in FLAG_POLICIES:
        raise unknown_name("evaluation.flag_policy", options["flag_policy"], FLAG_POLICIES)
    if options["execution"] not in EXECUTIONS:
        raise unknown_name("evaluation.execution", options["execution"], EXECUTIONS)
    for key, least in (("num_slots", 1), ("max_primitives", 1), ("num_videos", 0), ("num_maps", 0)):
        if options[key] < least:
            raise UserError(f"evaluation.{key}={options[key]}: allowed: {least} and more")


def _play(
    config: Mapping[str, Any],
    own: Sequence[Unit],
    units: Sequence[Unit],
    results: ResultsFile,
    subject: Subject,
    settings: PlaySettings,
    instructions: Instructions,
    scenes: Mapping[str, str],
) -> Timing:
    """Play the units and write their lines; what crashed goes to crashes.jsonl."""
    options, simulators = config["evaluation"], config["simulators"]
    folder = Path(config["paths"]["output_dir"])
    pictures = Pictures(
        folder,
        backend=simulators["backend"],
        embodiment=subject.embodiment,
        options=simulators["options"],
        scenes=scenes,
        filmed=_first_of_each_row(own, options["num_videos"]),
        mapped=_first_of_each_row(own, options["num_maps"]),
    )
    pool = SimulatorPool(
        simulators["backend"],
        subject.embodiment,
        simulators["options"],
        num_workers=config["num_workers"],
        python=simulators["python"],
        timeout_s=simulators["timeout_s"],
    )
    with contextlib.closing(pool), contextlib.closing(pictures), _progress() as progress:
        table = Table(
            pool,
            settings,
            instructions,
            scene_path=lambda episode: scenes[episode.scene_id],
            network=subject.network,
            num_slots=options["num_slots"],
            is_one_by_one=options["deterministic"],
            is_filmed=lambda unit: unit.key in pictures.filmed,
        )
        bar = progress.add_task("evaluate", total=len(units))
        for ended in table.play(units):
            if isinstance(ended, Played):
                pictures.draw(ended)
                results.append(ended.record)
            else:
                _note_crash(folder, ended)
            progress.advance(bar)
        table.timing.num_restarts = pool.num_restarts
    return table.timing


def _conclude(
    folder: Path,
    config: Mapping[str, Any],
    rows: Sequence[Condition],
    expected: Sequence[tuple[str, str, str, str, str]],
    own: Sequence[Unit],
    identity: Mapping[str, Any],
    timing: Timing,
) -> int:
    """Count, report and decide on the exit code."""
    records = read_results(folder)
    own_missing = missing([unit.key for unit in own], records)
    all_missing = missing(expected, records)
    if own_missing:
        print(
            f"{folder}: INCOMPLETE: {len(own) - len(own_missing)} of {len(own)} episodes have a "
            f"result, e.g. {'/'.join(own_missing[0])} has none (see {_CRASHES}); the same command "
            "plays the missing ones"
        )
    elif all_missing:
        print(
            f"{folder}: this shard is complete; {len(all_missing)} of {len(expected)} episodes of "
            "the other shards are still to come, the last shard writes the report"
        )
        return DONE
    wanted = set(expected)
    write_report(
        folder,
        [record for key, record in records.items() if key in wanted],
        rows=[row.name for row in rows],
        num_expected=len(expected) // len(rows),
        flag_policy=config["evaluation"]["flag_policy"],
        seed=config["seed"],
        facts=identity,
        timing=timing,
    )
    return INCOMPLETE if own_missing else DONE


def _identity(
    config: Mapping[str, Any],
    settings: PlaySettings,
    subject: Subject,
    differences: Sequence[str],
) -> dict[str, Any]:
    """What all results of one folder have in common, as plain JSON."""
    options, data = config["evaluation"], config["data"]
    identity = {
        "backend": config["simulators"]["backend"],
        "simulator": config["simulators"]["options"],
        "dataset": data["dataset"],
        "split": data["split"],
        "role": data["role"],
        "episodes": file_digest(data["episodes"]),
        "ground_truth": file_digest(data["ground_truth"]) if data["ground_truth"] else None,
        "checkpoint": subject.checkpoint,
        "embodiment": asdict(settings.embodiment),
        "decision": str(settings.decision),
        "differs_from_training": list(subject.differences),
        "task": None if config.get("task") is None else config["task"]["name"],
        "differs_from_task_or_data": list(differences),
        "success": asdict(settings.success),
        "seed": settings.seed,
        "max_primitives": settings.max_primitives,
        "expert_stop_radius_m": settings.expert_stop_radius_m,
        "chance_stop_probability": settings.chance_stop_probability,
        "execution": settings.execution,
        "deterministic": options["deterministic"],
    }
    return json.loads(json.dumps(identity))


def _first_of_each_row(units: Sequence[Unit], count: int) -> frozenset[tuple[str, ...]]:
    """Keys of the first `count` units of each row, in the order of the run's own list."""
    taken: dict[str, list[tuple[str, ...]]] = {}
    for unit in units:
        keys = taken.setdefault(unit.condition.name, [])
        if len(keys) < count:
            keys.append(unit.key)
    return frozenset(key for keys in taken.values() for key in keys)


def _note_crash(folder: Path, crashed: Crashed) -> None:
    line = json.dumps({"key": list(crashed.unit.key), "reason": crashed.reason})
    with open(folder / _CRASHES, "a", encoding="utf-8") as handle:
        handle.write(line + "\n")


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
