"""The folder of a run: what it was started with, whether it may be continued, whether it is done.

    <paths.output_dir>/
      run.json             configuration and data fingerprint that the weights come from
      provenance.jsonl     a line per start: overrides, versions, git state, what differed
      checkpoints/         step_<n>/, the newest ones
      policy/              the policy bundle
      policy_best/         the one with the best SR in closed loop; closed_loop/: its episodes
      curve.jsonl, .csv    logged values
      result.json          written at the end: a second start finds the run finished
      .lock                held while a process trains here; a second one is refused

The same command continues a run. A run is never overwritten without being told: a command whose
configuration or data differ is refused and the first difference is named. Rank 0 alone makes,
clears and writes the folder; with overwrite=true the other ranks wait until it is cleared
(`.opened`).
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from vla_nav.errors import UserError
from vla_nav.files import locked, read_json, remove_leftovers, write_json
from vla_nav.training.closed_loop import BEST, FOLDER
from vla_nav.training.provenance import FILE, record_start

# What may differ between the starts of one run: it does not change the weights.
_FREE = (
    "num_workers",
    "paths",
    "logger",
    "overwrite",
    "resume",
    "callbacks.progress",
    "callbacks.checkpoint",
    "callbacks.closed_loop.num_workers",
    "training.dry_run",
    # A step takes the same packs however they are divided; their number is in the checkpoint.
    "training.accumulate",
    "trainer.devices",
    "trainer.num_nodes",
    "trainer.strategy",
    "training.verify_frames",
)
_OWNED = (
    "run.json",
    FILE,
    "result.json",
    "curve.jsonl",
    "curve.csv",
    "checkpoints",
    "policy",
    BEST,
    FOLDER,
)
_OPENED = ".opened"  # which launch cleared the folder
_LAUNCH = (
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_RESTART_COUNT",
)
_WAIT_S = 600  # for rank 0, which may read larger data


class RunPaths:
    """Where things lie in the folder of a run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def checkpoints(self) -> Path:
        """The folder of the training checkpoints."""
        return self.path / "checkpoints"

    @property
    def policy(self) -> Path:
        """The policy bundle."""
        return self.path / "policy"

    @property
    def curve(self) -> Path:
        """The logged values."""
        return self.path / "curve.jsonl"


class RunFolder(RunPaths):
    """Opens the folder of a run, or begins it. Raises `UserError` for another run's folder.

    rank: the process's rank; rank 0 holds the folder for as long as this object lives. overwrite:
    the same on every rank; what is thrown away is told.
    """

    def __init__(
        self,
        path: str | Path,
        config: Mapping[str, Any],
        *,
        data: str,
        overwrite: bool = False,
        rank: int = 0,
    ) -> None:
        super().__init__(path)
        self._lock = ExitStack()
        self._record = {"config": dict(config), "data": data}
        run_json = self.path / "run.json"
        if rank == 0:
            self._lock.enter_context(locked(self.path / ".lock", what="`vla-nav train`"))
            self._clear_leftovers()
            if overwrite:
                self._clear()
        elif overwrite:
            self._await_clearing()
        if run_json.exists():
            self._require_same(read_json(run_json))
        elif rank == 0 and any((self.path / name).exists() for name in _OWNED):
            raise UserError(
                f"{self.path}: holds a run without run.json; choose another paths.output_dir, or "
                "overwrite=true"
            )
        elif rank == 0:
            write_json(run_json, self._record)

    def result(self) -> dict[str, Any] | None:
        """What a finished run reported, or None; also None where its policy is gone and a
        checkpoint can give it again."""
        path = self.path / "result.json"
        is_restorable = not self.policy.exists() and any(self.checkpoints.glob("step_*"))
        return read_json(path) if path.exists() and not is_restorable else None

    def record_start(
        self, *, overrides: Sequence[str], from_step: int, num_ranks: int
    ) -> list[str]:
        """Add this start to the run's provenance; return what is otherwise than at the last one."""
        then = dict(_flat(read_json(self.path / "run.json")["config"]))
        now = dict(_flat(self._record["config"]))
        changed = {k: now.get(k) for k in now.keys() | then.keys() if now.get(k) != then.get(k)}
        return record_start(
            self.path,
            overrides=[text for text in overrides if not text.startswith("paths.")],
            from_step=from_step,
            num_ranks=num_ranks,
            data=self._record["data"],
            changed={k: v for k, v in changed.items() if not k.startswith("paths.")},
        )

    def finish(self, result: Mapping[str, Any]) -> None:
        """Mark the run as finished."""
        write_json(self.path / "result.json", dict(result))

    def _require_same(self, record: Mapping[str, Any]) -> None:
        if record["data"] != self._record["data"]:
            raise UserError(
                f"{self.path / 'run.json'}: this run was started on data {record['data']}, now "
                f"it is {self._record['data']}; choose another paths.output_dir, or overwrite=true"
            )
        before, now = dict(_flat(record["config"])), dict(_flat(self._record["config"]))
        for key in sorted(before.keys() | now.keys()):
            if before.get(key) != now.get(key) and not _is_free(key):
                raise UserError(
                    f"{self.path / 'run.json'}: this run was started with {key}={before.get(key)}, "
                    f"asked for is {now.get(key)}; choose another paths.output_dir, or "
                    "overwrite=true"
                )

    def _clear_leftovers(self) -> None:
        """Half-written files of a start that was killed; what else lies in the folder stays."""
        for name in _OWNED:
            remove_leftovers(self.path, f"{name}.tmp-*")
            if (self.path / name).is_dir():
                remove_leftovers(self.path / name, "**/*.tmp-*")

    def _clear(self) -> None:
        (self.path / _OPENED).unlink(missing_ok=True)
        found = [name for name in _OWNED if (self.path / name).exists()]
        if found:
            print(
                f"{self.path}: overwrite=true throws away the run that was here: "
                f"{', '.join(found)}",
                file=sys.stderr,
            )
        for name in found:
            path = self.path / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        write_json(self.path / _OPENED, _launch())

    def _await_clearing(self) -> None:
        """Wait until rank 0 of the same launch has thrown the old run away."""
        end = time.monotonic() + _WAIT_S
        path = self.path / _OPENED
        while not (path.exists() and read_json(path) == _launch()):
            if time.monotonic() > end:
                raise UserError(
                    f"{self.path}: rank 0 has not cleared it within {_WAIT_S} s; put "
                    "paths.output_dir on a disk that all ranks share"
                )
            time.sleep(0.05)


def _launch() -> dict[str, str]:
    """What the processes of one launch have in common, and no other launch has."""
    return {name: os.environ[name] for name in _LAUNCH if name in os.environ}


def _is_free(key: str) -> bool:
    return any(key == free or key.startswith(f"{free}.") for free in _FREE)


def _flat(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from _flat(value, f"{prefix}{key}.")
    else:
        yield prefix.rstrip("."), list(node) if isinstance(node, tuple) else node


def process_rank() -> int:
    """This process's rank as its launcher says it (torchrun, Lightning, SLURM); 0 without one."""
    names = ("RANK", "LOCAL_RANK", "SLURM_PROCID")
    return next((int(os.environ[name]) for name in names if name in os.environ), 0)


def is_first_of_machine() -> bool:
    """Whether this process is the one of its machine that does what one has to do there."""
    names = ("LOCAL_RANK", "SLURM_LOCALID")
    return next((os.environ[name] for name in names if name in os.environ), "0") == "0"


def describe(result: Mapping[str, Any]) -> str:
    """One line for people about a finished run."""
    rates = ", ".join(
        f"{name.replace('_', ' ')} {'-' if value is None else format(value, '.3f')}"
        for name, value in result["validation"].items()
    )
    best = result.get("closed_loop", {}).get("best")
    simulated = (
        ""
        if best is None
        else f"; best in closed loop: SR {best['sr']:.3f} at step {best['step']}, {best['policy']}"
    )
    return (
        f"{result['policy']}: {result['steps']} steps, {result['episodes_seen']} episodes in "
        f"{result['minutes']:.1f} min{'; validation ' + rates if rates else ''}{simulated}"
    )
