"""The jobs of a sweep (-m): which there are, and the folder of each.

    -m seed=1,2                              <output_dir>/0  <output_dir>/1
    -m evaluation.shard=range(8)             <output_dir>
    -m evaluation.shard=range(8) seed=1,2    <output_dir>/seed=1  <output_dir>/seed=2

Every job has a folder of its own, but the shards of one evaluation share theirs. A command whose
module has `after_sweep(jobs)` is told all of them once they are done, in the process that started
them: jobs of a launcher print into files of their own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

SHARD = "evaluation.shard"  # jobs that differ in it alone are parts of one run
SHARD_FOLDERS = "hydra.sweep.subdir=.shards/${hydra.job.num}"  # for what Hydra itself writes


class SweepJob(NamedTuple):
    """A job: where its results are, and what it has otherwise than the others (`seed=1`)."""

    folder: Path
    values: tuple[str, ...]


def job_folder(hydra: DictConfig, values: Sequence[str], swept: Sequence[str]) -> Path:
    """The folder of the job `hydra.job.num`. values: its overrides; swept: keys that differ."""
    shared = Path(hydra.sweep.dir).absolute()
    if SHARD not in swept:
        return shared / hydra.sweep.subdir
    others = [text for text in values if text.partition("=")[0] in swept]
    name = ",".join(sorted(text for text in others if not text.startswith(f"{SHARD}=")))
    return shared / re.sub(r"[^\w.,=+-]", "_", name) if name else shared


def sweep_jobs(hydra: DictConfig, overrides: Sequence[str], swept: Sequence[str]) -> list[SweepJob]:
    """All jobs, in Hydra's order. hydra: the node of the composed configuration."""
    choices = [
        [f"{override.key_or_group}={value}" for value in override.sweep_string_iterator()]
        for override in map(OverridesParser.create().parse_override, overrides)
        if override.is_sweep_override()
    ]
    jobs = []
    for number, values in enumerate(product(*choices)):
        hydra.job.num = number
        jobs.append(SweepJob(job_folder(hydra, values, swept), values))
    return jobs
