"""`vla-nav evaluate`: from a checkpoint and a split to results that can be trusted.

    bundle, episodes --refuse what disagrees--> selection --> this shard's (row, episode) units
      --without those already in results-*.jsonl--> played over slots, one line each as they end
      --when every shard is there--> report.json, report.html

The exit code is 0 only when every expected episode of this shard has its line; an episode whose
simulator died twice has none, is listed in crashes-*.jsonl and is played again by the next start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import xxhash

from vla_nav.episodes.types import Episode
from vla_nav.errors import UserError, unknown_name
from vla_nav.evaluation.aggregate import FLAG_POLICIES
from vla_nav.evaluation.approach import EXECUTIONS
from vla_nav.evaluation.conditions import Actor, Condition, Instructions, conditions_named
from vla_nav.evaluation.languages import count_languages
from vla_nav.evaluation.metrics import SuccessRule
from vla_nav.evaluation.play import PlaySettings, Unit
from vla_nav.evaluation.replays import batching, replayed_units
from vla_nav.evaluation.report import write_report
from vla_nav.evaluation.results import (
    REPLAYS,
    RESULTS,
    Key,
    ResultsFile,
    claim_folder,
    locked_run,
    missing,
    read_results,
)
from vla_nav.evaluation.selection import select, shard_of
from vla_nav.evaluation.setup import episodes_digest, read_episodes, scene_files
from vla_nav.evaluation.shard_run import Shard, crashes_file, play_shard
from vla_nav.evaluation.subject import Subject, load_subject, require_execution
from vla_nav.evaluation.tasks import refuse_other_conditions
from vla_nav.evaluation.throughput import read_timings, total
from vla_nav.files import file_digest
from vla_nav.simulators.opening import SimulatorSetup

DONE, INCOMPLETE = 0, 3


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
        seed=options["selection_seed"],
        num_episodes=options["num_episodes"],
        scenes=options["scenes"],
        episode_ids=[str(name) for name in options["episode_ids"]],
        languages=[str(name) for name in options["languages"]],
    )
    part = shard_of(selection, shard=options["shard"], num_shards=options["num_shards"])
    scenes = scene_files(list(part), data["scenes"])
    subject = load_subject(config, rows)
    rule = SuccessRule(options["success_m"], tuple(options["further_m"]), options["is_strict"])
    differences = refuse_other_conditions(config, selection, subject.embodiment, rule)
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
    own = tuple(Unit(row, episode) for episode in part for row in rows)
    own_keys = {unit.key for unit in own}
    twice = (
        () if options["deterministic"] else replayed_units(rows, selection, options["num_replays"])
    )
    shard = Shard(
        folder,
        options["shard"],
        options["num_shards"],
        own,
        tuple(unit for unit in twice if unit.key in own_keys),
        scenes,
    )
    _play_what_is_missing(shard, config, subject, settings, everything, plan=_plan(expected))
    return _conclude(shard, config, rows, selection, identity, num_replays=len(twice))


def _check(options: Mapping[str, Any]) -> None:
    """Refuse before hours of work what would only be met during or after it."""
    if options["flag_policy"] not in FLAG_POLICIES:
        raise unknown_name("evaluation.flag_policy", options["flag_policy"], FLAG_POLICIES)
    if options["execution"] not in EXECUTIONS:
        raise unknown_name("evaluation.execution", options["execution"], EXECUTIONS)
    lowest = {"num_slots": 1, "max_primitives": 1, "num_videos": 0, "num_maps": 0}
    lowest |= {"num_replays": 0, "max_worker_mib": 1, "temperature": 0, "selection_seed": 0}
    for key, least in lowest.items():
        if options[key] is not None and options[key] < least:
            raise UserError(f"evaluation.{key}={options[key]}: allowed: {least} and more")


def _play_what_is_missing(
    shard: Shard,
    config: Mapping[str, Any],
    subject: Subject,
    settings: PlaySettings,
    everything: Sequence[Episode],
    *,
    plan: str,
) -> None:
    """Play what no file of the folder holds yet; while it is held, nobody else can begin it."""
    folder = shard.folder

    def opened(kind: str) -> ResultsFile:
        return ResultsFile(folder, shard=shard.number, num_shards=shard.count, plan=plan, kind=kind)

    def without_record(units: Sequence[Unit], kind: str) -> list[Unit]:
        records = read_results(folder, kind)
        return [unit for unit in units if unit.key not in records]

    replayed = opened(REPLAYS) if shard.replays else nullcontext()
    with opened(RESULTS) as results, replayed as replays:
        units = without_record(shard.units, RESULTS)
        again = without_record(shard.replays, REPLAYS)
        if len(units) < len(shard.units):
            done = len(shard.units) - len(units)
            print(f"{folder}: {done} of {len(shard.units)} episodes are there already")
        if units or again:
            play_shard(
                shard,
                config,
                subject,
                settings,
                Instructions(everything, seed=config["seed"]),
                to_play=(units, results),
                to_replay=(again, replays),
            )


def _plan(expected: Sequence[Key]) -> str:
    """A digest of all that the shards play together: who writes at a time must agree on it."""
    return xxhash.xxh3_64(json.dumps(expected).encode()).hexdigest()


def _conclude(
    shard: Shard,
    config: Mapping[str, Any],
    rows: Sequence[Condition],
    selection: Sequence[Episode],
    identity: Mapping[str, Any],
    *,
    num_replays: int,
) -> int:
    """Count, report and decide on the exit code."""
    folder, own = shard.folder, [unit.key for unit in shard.units]
    expected = [Unit(row, episode).key for row in rows for episode in selection]
    records = read_results(folder)
    own_missing = missing(own, records)
    all_missing = missing(expected, records)
    if own_missing:
        crashes = crashes_file(folder, shard=shard.number, num_shards=shard.count)
        print(
            f"{folder}: INCOMPLETE: {len(own) - len(own_missing)} of {len(own)} episodes have a "
            f"result, e.g. {'/'.join(own_missing[0])} has none (see {crashes.name}); the same "
            "command plays the missing ones"
        )
        if crashes.is_file():  # why, once: most often it is the same for all
            *_, last = crashes.read_text(encoding="utf-8").splitlines()
            print(f"  the last one: {json.loads(last)['reason']}")
    elif all_missing:
        print(
            f"{folder}: this shard is complete; {len(all_missing)} of {len(expected)} episodes of "
            "the other shards are still to come, the last shard writes the report"
        )
        return DONE
    wanted = set(expected)
    with locked_run(folder):  # the last two shards may end at once
        write_report(
            folder,
            [record for key, record in records.items() if key in wanted],
            rows=[row.name for row in rows],
            num_expected=len(selection),
            flag_policy=config["evaluation"]["flag_policy"],
            seed=config["seed"],
            facts=identity,
            timing=total(read_timings(folder)),
            batching=_batching(folder, config, rows, records, num_replays),
            languages=count_languages(selection),
        )
    return INCOMPLETE if own_missing else DONE


def _batching(
    folder: Path,
    config: Mapping[str, Any],
    rows: Sequence[Condition],
    records: Mapping[Key, Mapping[str, Any]],
    num_replays: int,
) -> dict[str, Any] | None:
    """What can be said of batches; None where no row has a network."""
    if not any(row.actor is Actor.NETWORK for row in rows):
        return None
    return batching(
        records,
        read_results(folder, REPLAYS),
        is_deterministic=config["evaluation"]["deterministic"],
        num_expected=num_replays,
    )


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
        "simulator_version": SimulatorSetup.of(config["simulators"]).version(settings.embodiment),
        "dataset": data["dataset"],
        "split": data["split"],
        "role": data["role"],
        "episodes": episodes_digest(data),
        "ground_truth": file_digest(data["ground_truth"]) if data["ground_truth"] else None,
        "checkpoint": subject.checkpoint,
        "embodiment": asdict(settings.embodiment),
        "decision": str(settings.decision),
        "differs_from_training": list(subject.differences),
        "task": None if config.get("task") is None else config["task"]["name"],
        "differs_from_task_or_data": list(differences),
        "success": asdict(settings.success),
        "seed": settings.seed,
        "temperature": options["temperature"],
        "max_primitives": settings.max_primitives,
        "expert_stop_radius_m": settings.expert_stop_radius_m,
        "chance_stop_probability": settings.chance_stop_probability,
        "execution": settings.execution,
        "deterministic": options["deterministic"],
    }
    return json.loads(json.dumps(identity))
