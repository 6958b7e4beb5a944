"""From a command's name and overrides to a run: check, compose with Hydra, call, report.

    run("train", ["experiment=quickstart"])
      1. `check_overrides`: one clear line for a key, group or option that does not exist
      2. Hydra: run folder, multirun (-m), --cfg, --help; the composed config goes to
         <paths.output_dir>/.hydra/<command>/config.yaml
      3. `vla_nav.commands.<command>.main(cfg) -> exit code`

Exit codes: 0 done, 2 a fault of the input (one line on stderr), 130 interrupted, 128 + its number
ended by a signal after a checkpoint, 1 a process that is gone (one line) or a defect of the program
(its traceback is kept). A sweep runs all its jobs and ends with the code of the first that failed
(`vla_nav/commands/sweep.py`).
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, InstantiationException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from vla_nav.commands.overrides import (
    check_overrides,
    check_signature,
    compose_config,
    conf_dir,
    first_line,
    own_experiment,
    split_flags,
    swept_keys,
)
from vla_nav.commands.sweep import SHARD, SHARD_FOLDERS, job_folder, sweep_jobs
from vla_nav.errors import StoppedError, UserError

if TYPE_CHECKING:
    from vla_nav.tree.layout import Layout

__all__ = [
    "command_overrides",
    "compose_config",
    "conf_dir",
    "encoder_keywords",
    "instantiate",
    "plain",
    "run",
    "same_command",
    "tree_layout",
]

ENCODER = "vla_nav.vision.encoder.TimmEncoder"
_NO_CHECK = {"--help", "-h", "--hydra-help", "--shell-completion", "-sc", "--version", "--info"}
_OUTPUT_BYTES = 2**18  # what Hydra writes at most before a command begins
_SWEEP = {"-m", "--multirun"}
_INTERRUPTED = 130
_BEGINS_ANEW = {
    "compare",
    "doctor",
    "draw",
    "export",
    "profile",
    "stats",
    "verify",
}  # the others continue
_FULL_ERRORS = "HYDRA_FULL_ERROR"
_ANOTHER_KIND = "a folder is wanted where a file is, or a file where a folder is; name another path"
_REMEDIES = {  # of faults of the file system, beside a full disk
    errno.EACCES: "give yourself access to it, or name another path",
    errno.EPERM: "give yourself access to it, or name another path",
    errno.EROFS: "name a path on a disk that can be written",
    errno.ENOENT: "restore it, or name another path",
    errno.ENOTDIR: _ANOTHER_KIND,
    errno.EISDIR: _ANOTHER_KIND,
    errno.EEXIST: _ANOTHER_KIND,
    errno.ENAMETOOLONG: "name a shorter path",
    errno.ELOOP: "mend the links, or name another path",
    errno.EFBIG: "allow larger files (ulimit -f), or name a path on another disk",
    errno.EIO: "the disk is failing: copy the data to another one",
    errno.ESTALE: "mount the network disk again",
    errno.EMFILE: "allow more open files (ulimit -n), or take fewer num_workers",
}


def run(command: str, overrides: Sequence[str]) -> int:
    """Run `vla_nav.commands.<command>.main` on the composed configuration; return the exit code.

    overrides: what stands behind the command on the command line, Hydra's flags included.
    """
    flags, values = split_flags(overrides)
    values = own_experiment(command, values)

    def checked() -> int:
        if not _NO_CHECK.intersection(flags):
            check_overrides(command, values, is_sweep=bool(_SWEEP.intersection(flags)))
        if not flags:
            if any(text.startswith("hydra/launcher=") for text in values):
                raise UserError("hydra/launcher starts the jobs of a sweep: add -m")
            _make_output_folder(compose_config(command, values))
        return 0

    code = _guarded(command, checked)
    if code:
        return code
    swept = swept_keys(values) if _SWEEP.intersection(flags) else ()
    if SHARD in swept:
        values = [SHARD_FOLDERS, *values]
    code = _run_hydra(command, [*flags, *values], swept)
    if swept and code != _INTERRUPTED and _SWEEP.issuperset(flags):
        told = _guarded(command, lambda: _after_sweep(command, values, swept))
        return code or told
    return code


def plain(node: Any) -> Any:
    """A configuration node as plain, fully resolved dicts, lists and values."""
    return OmegaConf.to_container(node, resolve=True, throw_on_missing=True)


def instantiate(node: DictConfig, **extra: Any) -> Any:
    """Build the object of a `_target_` node; keys its constructor lacks are a `UserError`.

    extra: further keywords, handed to the constructor as they are.
    """
    given = {key for key in node if not str(key).startswith("_")} | extra.keys()
    check_signature(str(node["_target_"]), sorted(map(str, given)), where=_place(node))
    try:
        return hydra.utils.instantiate(node, _partial_=True)(**extra)
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, UserError):
            raise cause from None
        raise
    except Exception as error:
        if isinstance(error, UserError) or str(node["_target_"]).startswith("vla_nav."):
            raise
        place = _place(node)
        raise UserError(
            f"{place}: {node['_target_']} refuses its values ({first_line(error)}); change a key "
            f"of '{place}'"
        ) from error


def command_overrides() -> list[str]:
    """The overrides that this command, or this job of a sweep, was started with."""
    return list(HydraConfig.get().overrides.task)


def same_command(command: str, config: DictConfig) -> list[str]:
    """What Python runs for this command again, in a process of its own: the words behind `python`.

    A job of a sweep is a plain run in its folder.
    """
    words = [text for text in command_overrides() if not text.startswith("paths.")]
    paths = [f"paths.{key}={_quoted(value)}" for key, value in plain(config.paths).items()]
    return ["-m", "vla_nav.commands.cli", command, *words, *paths]


def encoder_keywords(node: DictConfig) -> dict[str, Any]:
    """The keywords of the encoder that a `vision` node describes; `UserError` for pixels alone."""
    if str(node["_target_"]) != ENCODER:
        raise UserError(
            f"vision: {node['_target_']} only prepares pixels for `vla-nav encode`; choose an "
            "encoder here (vision=vit_48), which finds the cached pixels by itself"
        )
    return {key: value for key, value in plain(node).items() if key[0] != "_"}


def tree_layout(node: DictConfig) -> Layout:
    """The layout that a `tree` node describes; its other keys say how trees are made of it."""
    from vla_nav.tree.layout import LAYOUT_KEYS, Layout

    return Layout(**{key: value for key, value in plain(node).items() if key in LAYOUT_KEYS})


def _quoted(value: Any) -> str:
    """A value as Hydra's grammar reads it back."""
    if value is None:
        return "null"
    return "'{}'".format(str(value).replace("'", "\\'"))


def _make_output_folder(config: DictConfig) -> None:
    """Make the folder in which Hydra is about to write, or raise an error that can be reported."""
    folder = Path(config.paths.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(_OUTPUT_BYTES))
    except OSError as error:
        error.filename = str(folder)
        raise


def _place(node: DictConfig) -> str:
    return str(node._get_full_key(None))


class _JobFailedError(Exception):
    """A job of a sweep ended with this exit code; `line` is what it said of a user's fault."""

    def __init__(self, code: int, line: str) -> None:
        super().__init__(code, line)
        self.code, self.line = code, line


def _run_hydra(command: str, overrides: Sequence[str], swept: Sequence[str]) -> int:
    def task(config: DictConfig) -> None:
        told: list[str] = []
        code = _guarded(command, lambda: _call(command, config, swept), told)
        if code not in (0, _INTERRUPTED) and HydraConfig.get().mode == RunMode.MULTIRUN:
            # Hydra goes on with the others and raises it at the end.
            raise _JobFailedError(code, "".join(told))
        if code:
            raise SystemExit(code)

    entry = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=command)(task)
    arguments, full_errors = sys.argv, os.environ.get(_FULL_ERRORS)
    sys.argv = [f"vla-nav {command}", *overrides, f"hydra.job.name={command}"]
    try:
        if swept:  # Hydra hands the error on instead of making its own exit code of it
            os.environ[_FULL_ERRORS] = "1"
        entry()
    except _JobFailedError as failed:
        why = "it says why in its own output (above, or in the folder .submitit of "
        why = failed.line or f"{why}paths.output_dir)"
        print(
            f"vla-nav {command}: a job of the sweep ended with code {failed.code}: {why}",
            file=sys.stderr,
        )
        return failed.code
    except Exception as error:
        if not type(error).__module__.startswith("submitit."):
            raise
        print(
            f"vla-nav {command}: a job of the sweep was lost ({first_line(error)}); the same "
            "command continues",
            file=sys.stderr,
        )
        return 1
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt:
        return _interrupted(command)
    finally:
        sys.argv = arguments
        os.environ.pop(_FULL_ERRORS, None)
        if full_errors is not None:
            os.environ[_FULL_ERRORS] = full_errors
    return 0


def _call(command: str, config: DictConfig, swept: Sequence[str]) -> int:
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        own = HydraConfig.get()
        config.paths.output_dir = str(job_folder(own, own.overrides.task, swept))
    main: Callable[[DictConfig], int | None] = importlib.import_module(
        f"vla_nav.commands.{command}"
    ).main
    return main(config) or 0


def _after_sweep(command: str, values: Sequence[str], swept: Sequence[str]) -> int:
    """Tell the command's `after_sweep`, where it has one, of the jobs that have ended."""
    after = getattr(importlib.import_module(f"vla_nav.commands.{command}"), "after_sweep", None)
    if after is not None:
        fixed = [text for text in values if text.partition("=")[0] not in swept]
        hydra_node = compose_config(command, fixed, hydra=True).hydra
        OmegaConf.set_readonly(hydra_node, False)
        after(sweep_jobs(hydra_node, values, swept))
    return 0


def _guarded(command: str, body: Callable[[], int], told: list[str] | None = None) -> int:
    """Call `body`; report what it raises and return the exit code. told: takes a user's line."""
    try:
        return body()
    except KeyboardInterrupt:
        return _interrupted(command)
    except StoppedError as stopped:
        from vla_nav.training.run_folder import process_rank

        if not stopped.is_shared or process_rank() == 0:
            print(f"vla-nav {command}: {stopped}", file=sys.stderr)
        return stopped.code
    except Exception as error:  # noqa: BLE001 (reported in full below)
        line = _user_line(error)
        if line is None:
            traceback.print_exc()
            return 1
        print(f"vla-nav {command}: {line}", file=sys.stderr)
        if told is not None:
            told.append(line)
        return 2


def _disk_line(error: OSError) -> str | None:
    """The line for a file or folder that cannot be read or written; None for other faults."""
    place = f"{error.filename}: " if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{place}no space left on the disk; free some space and start the same command again"
    remedy = _REMEDIES.get(error.errno or 0)
    if not place or remedy is None:
        return None
    return f"{place}{(error.strerror or 'unusable').lower()}; {remedy}"


def _interrupted(command: str) -> int:
    then = "begins anew" if command in _BEGINS_ANEW else "continues"
    print(f"vla-nav {command}: interrupted; the same command {then}", file=sys.stderr)
    return _INTERRUPTED


def _user_line(error: BaseException) -> str | None:
    """The one line for a fault that the user can mend, or None for a defect of the program."""
    if isinstance(error, UserError):
        return first_line(error)
    if isinstance(error, MissingMandatoryValue):
        key = getattr(error, "full_key", None) or first_line(error)
        return f"'{key}' has no value; give it on the command line: {key}=..."
    if isinstance(error, OSError):
        return _disk_line(error)
    if "No space left on device" in str(error):  # raised as other kinds by native writers
        return f"{first_line(error)}; free some space and start the same command again"
    if isinstance(error, InstantiationException):
        if str(error).startswith("Error locating target"):
            return f"{first_line(error).partition(', set env')[0]}; give the path of a class"
        return None if error.__cause__ is None else _user_line(error.__cause__)
    if isinstance(error, OmegaConfBaseException | HydraException):
        return first_line(error)
    return None
