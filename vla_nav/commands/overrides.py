"""Checks of a command's overrides before anything runs: unknown keys, groups and options.

Hydra refuses a key that the composed configuration does not have, but it lets `+key=value` and a
mistyped key inside an experiment file through, and its messages do not name the nearest key. Here:

    vla-nav train trainin.max_steps=3   unknown key 'trainin.max_steps' (did you mean ...)
    vla-nav train attention=flx         unknown option of group 'attention' 'flx' (did you mean ...)
    conf/experiment/mine.yaml           the same for its keys, against the command without it

A node with `_target_` may be given keys that its YAML leaves out: its constructor is the schema
and `instantiate` checks them. A node that is empty in the YAML is free-form.
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.utils import get_class, get_method
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vla_nav.commands.value_kinds import check_kinds
from vla_nav.errors import UserError, unknown_name

_LAUNCHER = "hydra/launcher"
_SUBMITIT = ("submitit_slurm", "submitit_local")
_PLUGIN = ("hydra_plugins", "hydra_plugins.hydra_submitit_launcher")  # asked for in this order
_SIMULATED = "callbacks.closed_loop"
_OVERLAYS = ("experiment", "debug")  # groups that may only set keys that exist without them
_WITHIN = {  # what a node that the files leave null is made of
    "models.lora": "vla_nav.models.lora.LoraConfig",
    "models.prompt.pose": "vla_nav.models.prompt_config.PoseTokens",
    "data.mixture": "vla_nav.training.mixture.Source",
}
_FLAGS_WITH_VALUE = {"--cfg", "-c", "--package", "-p", "--config-path", "-cp"} | {
    *("--config-name", "-cn", "--config-dir", "-cd", "--info", "-i"),
    *("--experimental-rerun", "--hydra-help"),
}


def conf_dir() -> Path:
    """The folder of the configuration files: inside the installed package, or the repository's."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "conf", package.parent / "conf"):
        if folder.is_dir():
            return folder
    raise UserError(f"{package / 'conf'}: the configuration folder is missing; reinstall vla_nav")


def own_experiment(command: str, overrides: Sequence[str]) -> list[str]:
    """The overrides with `experiment=NAME` turned to the command's own part of that experiment.

    One name stands for a whole story, so that every command of it takes the same word:

        conf/experiment/quickstart.yaml           experiment=quickstart of train and stats
        conf/experiment/record/quickstart.yaml    experiment=quickstart of record, and so on
    """
    if not (conf_dir() / "experiment" / command).is_dir():
        return list(overrides)
    start, own = "experiment=", f"experiment={command}/"
    return [
        own + text.removeprefix(start)
        if text.startswith(start) and not text.startswith(own) and text != "experiment=null"
        else text
        for text in overrides
    ]


def compose_config(command: str, overrides: Sequence[str] = (), *, hydra: bool = False) -> Any:
    """Compose `conf/<command>.yaml` as the command would; `hydra` keeps the hydra node."""
    overrides = own_experiment(command, overrides)
    with initialize_config_dir(config_dir=str(conf_dir()), version_base="1.3"):
        return compose(command, overrides=list(overrides), return_hydra_config=hydra)


def split_flags(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate Hydra's flags (with their values) from overrides, both in order."""
    flags: list[str] = []
    overrides: list[str] = []
    takes_value = False
    for word in words:
        is_flag = takes_value or word.startswith("-")
        (flags if is_flag else overrides).append(word)
        takes_value = not takes_value and word in _FLAGS_WITH_VALUE
    return flags, overrides


def swept_keys(overrides: Sequence[str]) -> tuple[str, ...]:
    """The keys that are given several values: `seed=1,2` or `evaluation.shard=range(8)`."""
    parsed = [_parse(text) for text in overrides]
    return tuple(override.key_or_group for override in parsed if override.is_sweep_override())


def check_overrides(command: str, overrides: Sequence[str], *, is_sweep: bool = False) -> None:
    """Raise `UserError` (one line, the nearest known name) for overrides that cannot be meant.

    is_sweep: `key=a,b` is a run per value (the flag -m), otherwise a fault.
    """
    parsed = [_parse(text) for text in own_experiment(command, overrides)]
    for override in parsed:
        if override.is_sweep_override() and not is_sweep:
            raise UserError(
                f"'{override.input_line}' has several values: add -m for one run per value, write "
                "[a,b] for a list, or quote the value"
            )
    for override in parsed:
        _check_option(override, is_sweep=is_sweep)
    texts = [_first_value(override) for override in parsed]
    try:
        composed = compose_config(command, texts, hydra=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise _diagnose(command, parsed, error) from None
    choices = composed.hydra.runtime.choices
    overlays = [name for name in _OVERLAYS if choices.get(name) not in (None, "null")]
    groups = [
        f"{key}={value}"
        for key, value in choices.items()
        if value is not None and not str(key).startswith("hydra/") and key not in _OVERLAYS
    ]
    schema = compose_config(command, groups)
    _drop_hydra(composed)
    for key, target in _unknown_keys(composed, schema):
        source = "".join(f" (experiment={choices[name]})" for name in overlays)
        raise _unknown_key(key, schema, source) if target is None else target
    check_kinds(composed, schema)


def first_line(error: BaseException) -> str:
    """The message of an error as one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def check_signature(target: str, keys: Sequence[str], *, where: str) -> None:
    """Raise `UserError` unless the class or function `target` takes every one of `keys`."""
    try:
        factory = get_class(target)
    except (ImportError, ValueError):
        factory = get_method(target)
    parameters = inspect.signature(factory).parameters
    takes_more = any(item.kind is item.VAR_KEYWORD for item in parameters.values())
    for key in keys:
        is_mistyped = difflib.get_close_matches(key, parameters, n=1, cutoff=0.8)
        if key not in parameters and (is_mistyped or not takes_more):
            raise unknown_name(f"key of '{where}' ({target})", key, parameters)


def _parse(text: str) -> Override:
    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        key, _, value = text.partition("=")
        raise UserError(
            f"cannot read the override '{text}' ({first_line(error)}); write key=value, and quote "
            f"a value with blanks, commas or brackets: '{key}=\"{value or 'a, b'}\"'"
        ) from None


def _first_value(override: Override) -> str:
    """The override's text; of a sweep, its first value."""
    if not override.is_sweep_override():
        return str(override.input_line)
    sign = "+" if override.is_add() else ""
    return f"{sign}{override.get_key_element()}={next(iter(override.sweep_string_iterator()))}"


def _options(group: str) -> list[str] | None:
    """The options of a group of conf/, or None where it is no group."""
    folder = conf_dir() / group
    if not group or not folder.is_dir():
        return None
    return sorted(path.stem for path in folder.glob("*.yaml"))


def _check_option(override: Override, *, is_sweep: bool) -> None:
    group = override.key_or_group.split("@")[0]
    options = _options(group)
    if options is None or override.is_delete():
        return
    values = [override.value()]
    if override.is_sweep_override():
        values = list(override.sweep_string_iterator())
    if group == _LAUNCHER:  # Hydra and its plugins have more of them
        _require_launcher(values, is_sweep=is_sweep)
        return
    for value in values:
        if value is None or str(value) == "null":
            continue
        if isinstance(value, list):
            for name in value:
                _require_option(group, str(name), options)
        elif isinstance(value, str):
            _require_option(group, value, options)


def _require_launcher(values: Sequence[Any], *, is_sweep: bool) -> None:
    """The launchers that start jobs through submitit need its plugin, SLURM's its commands."""
    wanted = [value for value in values if value in (*(_options(_LAUNCHER) or ()), *_SUBMITIT)]
    for name in wanted:
        if any(importlib.util.find_spec(part) is None for part in _PLUGIN):
            raise UserError(
                f"{_LAUNCHER}={name} needs the package hydra-submitit-launcher, which is not "
                "installed; pip install 'vla_nav[slurm]'"
            )
        if is_sweep and name.endswith("slurm") and shutil.which("srun") is None:
            raise UserError(
                f"{_LAUNCHER}={name}: there is no srun on this machine; start the command on a "
                f"login node of the cluster, or take {_LAUNCHER}=processes for this machine alone"
            )


def _require_option(group: str, value: str, options: list[str]) -> None:
    folder, _, name = value.rpartition("/")
    if folder:
        options, value = _options(f"{group}/{folder}") or [], name
    if value not in options:
        raise unknown_name(f"option of group '{group}':", value, options)


def _diagnose(command: str, parsed: list[Override], error: Exception) -> UserError:
    """Name the override that Hydra refused."""
    is_choice = {id(override): _options(override.key_or_group) is not None for override in parsed}
    known: Any = None
    accepted: list[str] = []
    for override in parsed:
        if not is_choice[id(override)]:
            continue
        try:
            compose_config(command, [*accepted, _first_value(override)])
        except (HydraException, OmegaConfBaseException) as refusal:
            groups = compose_config(command, hydra=True).hydra.runtime.choices
            names = [str(key) for key in groups if not str(key).startswith("hydra/")]
            is_own = not override.key_or_group.startswith("hydra/")
            if is_own and override.key_or_group not in names:
                return unknown_name(f"group of '{command}':", override.key_or_group, names)
            return UserError(f"{override.input_line}: {first_line(refusal)}")
        accepted.append(_first_value(override))
    try:
        known = compose_config(command, accepted, hydra=True)
    except (HydraException, OmegaConfBaseException) as refusal:
        return UserError(f"conf/{command}.yaml: {first_line(refusal)}")
    for override in parsed:
        if is_choice[id(override)] or override.is_add():
            continue
        for key in _keys_of(override):
            if not _has_key(known, key):
                if not override.is_hydra_override():
                    _drop_hydra(known)
                return _unknown_key(key, known, "")
    return UserError(f"vla-nav {command}: {first_line(error)}")


def _keys_of(override: Override) -> list[str]:
    """`a.b={c: 1, d: {e: 2}}` gives a.b.c and a.b.d.e; of a plain value its key alone."""
    value = override.value()
    if not isinstance(value, dict) or not value:
        return [override.key_or_group]
    made = OmegaConf.create({str(key): item for key, item in value.items()})
    prefix = f"{override.key_or_group}."
    return [key for key in _dotted(made, prefix) if not key.rpartition(".")[2].startswith("_")]


def _drop_hydra(config: Any) -> None:
    OmegaConf.set_struct(config, False)
    del config["hydra"]


def _has_key(config: Any, key: str) -> bool:
    node = config
    for part in key.split("."):
        if not isinstance(node, DictConfig) or part not in node.keys():  # noqa: SIM118 (MISSING)
            return not isinstance(node, DictConfig)
        node = node._get_node(part)
        if isinstance(node, DictConfig) and (node._is_none() or node._is_missing()):
            return True
    return True


def _dotted(config: Any, prefix: str = "") -> Iterator[str]:
    for key in config:
        yield f"{prefix}{key}"
        child = config._get_node(key)
        if isinstance(child, DictConfig) and not (child._is_none() or child._is_missing()):
            yield from _dotted(child, f"{prefix}{key}.")


def _unknown_key(key: str, config: Any, source: str) -> UserError:
    """The error for a key that is not in `config`, with the nearest one and its siblings."""
    names = list(_dotted(config))
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.6)
    hint = f" (did you mean '{near[0]}'?)" if near else ""
    parent = key
    while parent and parent not in names:
        parent = parent.rpartition(".")[0]
    siblings = OmegaConf.select(config, parent) if parent else config
    keys = sorted(map(str, siblings)) if isinstance(siblings, DictConfig) else []
    listed = ", ".join(key for key in keys if not key.startswith("_"))
    where = f"keys of '{parent}'" if parent else "top-level keys"
    return UserError(f"unknown key '{key}'{source}{hint}; {where}: {listed}")


def _unknown_keys(
    config: Any, schema: Any, prefix: str = ""
) -> Iterator[tuple[str, UserError | None]]:
    """Keys of `config` that `schema` lacks, outside free-form nodes and valid constructor keys."""
    extra = [str(key) for key in config if key not in schema.keys()]  # noqa: SIM118 (MISSING)
    if extra and "_target_" in config:
        try:
            check_signature(config["_target_"], extra, where=prefix.rstrip("."))
        except UserError as error:
            yield f"{prefix}{extra[0]}", error
        extra = []
    for key in extra:
        yield f"{prefix}{key}", None
    for key in config:
        if key in extra or key not in schema.keys():  # noqa: SIM118
            continue
        mine, known = config._get_node(key), schema._get_node(key)
        place = f"{prefix}{key}"
        if place in _WITHIN and mine is not None:
            yield from _unknown_within(mine, place)
        if place == _SIMULATED and isinstance(mine, DictConfig) and known._is_none():
            remedy = f"take callbacks=closed_loop, and {_SIMULATED}.<key>=... for what differs"
            if not mine._is_none():
                yield place, UserError(f"{place}: is not switched on by keys alone; {remedy}")
        if isinstance(mine, ListConfig) and isinstance(known, ListConfig) and len(known):
            yield from _unknown_in_list(mine, known._get_node(0), place)
        if isinstance(mine, DictConfig) and not (mine._is_none() or mine._is_missing()):
            is_free = not isinstance(known, DictConfig) or known._is_none() or len(known) == 0
            if not is_free:
                yield from _unknown_keys(mine, known, f"{prefix}{key}.")


def _unknown_in_list(items: Any, like: Any, place: str) -> Iterator[tuple[str, UserError | None]]:
    """Keys of the nodes in a list that the first one of the files lacks."""
    for number, item in enumerate(items._iter_ex(resolve=False)):
        if isinstance(item, DictConfig) and isinstance(like, DictConfig):
            for key in item:
                if key not in like.keys():  # noqa: SIM118 (MISSING)
                    where = f"key of '{place}.{number}':"
                    yield f"{place}.{number}.{key}", unknown_name(where, str(key), map(str, like))


def _unknown_within(node: Any, place: str) -> Iterator[tuple[str, UserError | None]]:
    """Keys, of a node or of the nodes in a list, that what is made of it does not take."""
    items = node._iter_ex(resolve=False) if isinstance(node, ListConfig) else [node]
    for number, item in enumerate(() if node._is_none() else items):
        if isinstance(item, DictConfig) and not item._is_none():
            where = f"{place}.{number}" if isinstance(node, ListConfig) else place
            try:
                check_signature(_WITHIN[place], sorted(map(str, item)), where=where)
            except UserError as error:
                yield where, error
