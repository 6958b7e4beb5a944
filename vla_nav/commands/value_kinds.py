"""The kind of an override's value: that of the value which the YAML files give the same key.

    houses.num_train=many    kept: 300     houses.num_train='many': needs a whole number (like 300)
    seed=null                kept: 0       seed=null: needs a whole number (like 0)
    houses=tall              kept: {...}   houses='tall': has keys of its own, set one of them

The files are the schema: text stays text, a whole number whole, a list a list whose items are like
the first one. A key whose file says null takes anything. So do nodes of other packages' classes and
keywords: those packages check them. Null is for keywords whose constructor (of a node with
`_target_`) allows None, and for the few keys whose comment says what null means. A key that the
files leave to the user (`???`) is text.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

from hydra.utils import get_class, get_method
from omegaconf import DictConfig, ListConfig, OmegaConf

from vla_nav.errors import UserError

_OTHERS = {
    *("vision.model_kwargs", "models.backbone.options"),  # keywords of timm and transformers
    "models.backbone.compile",  # false or a name: its constructor knows them
    "models.backbone.gradient_checkpointing",  # true, false or a whole number: likewise
}
_COUNTS = ("num_workers", "seed")
_NULLABLE = {
    "data.ground_truth",
    "evaluation.max_worker_mib",
    "evaluation.num_episodes",
    "evaluation.num_replays",
    "stats.max_episodes",
    "view.max_episodes",
}
_NULLABLE_NODES = ("callbacks.", "logger.")  # null takes a part away


def check_kinds(config: DictConfig, schema: DictConfig) -> None:
    """Raise `UserError` for the first value of `config` of another kind than that of `schema`.

    schema: what the command composes to without any value given by the user.
    """
    _check_node(config, schema, "", is_built=False)
    for name in _COUNTS:
        if config.get(name, 0) < 0:
            raise UserError(f"{name}={config[name]}: allowed: 0 or more")


def _check_node(config: DictConfig, schema: DictConfig, prefix: str, *, is_built: bool) -> None:
    target = str(config.get("_target_", ""))
    if target and not target.startswith("vla_nav."):
        return
    for key in config:
        if key not in schema.keys():  # noqa: SIM118 (a missing value is a key as well)
            continue
        mine, known, name = config._get_node(key), schema._get_node(key), f"{prefix}{key}"
        if name in _OTHERS or _is_open(known):
            continue
        _check_value(mine, known, name, is_built=is_built or bool(target))
        if target and mine._is_none() and not _takes_null(target, str(key)):
            raise UserError(f"{name}=null: {_wanted(known, name)}")


def _check_value(mine: Any, known: Any, name: str, *, is_built: bool) -> None:
    if mine._is_missing() or (mine._is_interpolation() and not _is_text(mine)):
        return
    if known._is_missing():
        known = OmegaConf.create({"example": "demo/data"})._get_node("example")
    if mine._is_none():
        if is_built or name in _NULLABLE or name.startswith(_NULLABLE_NODES):
            return
    elif isinstance(known, DictConfig):
        if isinstance(mine, DictConfig):
            _check_node(mine, known, f"{name}.", is_built=is_built)
            return
    elif isinstance(known, ListConfig):
        if isinstance(mine, ListConfig):
            for place in range(len(mine) if len(known) else 0):
                item, like = mine._get_node(place), known._get_node(0)
                _check_value(item, like, f"{name}.{place}", is_built=is_built)
            return
    elif _is_like(mine._value(), known._value(), takes_infinity=is_built):
        return
    raise UserError(f"{name}={_shown(mine)}: {_wanted(known, name)}")


def _takes_null(target: str, key: str) -> bool:
    """Whether the constructor `target` says that its keyword `key` may be None, or says nothing."""
    try:
        factory = get_class(target)
    except (ImportError, ValueError):
        factory = get_method(target)
    parameters = inspect.signature(factory).parameters
    wanted = parameters[key].annotation if key in parameters else None
    return not isinstance(wanted, str) or "None" in wanted or wanted == "Any"


def _is_like(value: Any, known: Any, *, takes_infinity: bool) -> bool:
    """Whether a plain value has the kind of `known`."""
    if isinstance(known, bool) or isinstance(value, bool):
        return isinstance(known, bool) and isinstance(value, bool)
    if isinstance(known, int):
        return isinstance(value, int)
    if isinstance(known, float):
        is_number = isinstance(value, int | float) and not math.isnan(value)
        return is_number and (takes_infinity or math.isfinite(value))
    return isinstance(value, type(known))


def _is_open(node: Any) -> bool:
    """Whether the files leave the kind of a value open."""
    return node._is_none() or (node._is_interpolation() and not _is_text(node))


def _is_text(node: Any) -> bool:
    """Whether an interpolation has text around it: `${data.path}/scenes`."""
    value = str(node._value())
    is_bare = value.startswith("${") and value.find("}") == len(value) - 1
    return node._is_interpolation() and not is_bare


def _wanted(known: Any, name: str) -> str:
    if isinstance(known, DictConfig):
        keys = [str(key) for key in known if not str(key).startswith("_")]
        return f"has keys of its own, set one of them: {', '.join(keys) or 'none yet'}"
    if isinstance(known, ListConfig):
        return f"needs a list (like {_shown(known)})"
    value = known._value()
    if isinstance(value, str):
        return f"needs text (like {value!r}); quote what looks like a number: '{name}=\"7\"'"
    kinds = {bool: "true or false", int: "a whole number", float: "a finite number"}
    return f"needs {kinds[type(value)]} (like {_shown(known)})"


def _shown(node: Any) -> str:
    if isinstance(node, DictConfig | ListConfig) and not node._is_none():
        return str(OmegaConf.to_container(node, resolve=False))
    value = node._value()
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else repr(value)
