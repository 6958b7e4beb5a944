"""The formats of episode data by name, and which of them a folder holds.

    open_source("data/r2r_ce", split="val_unseen")                          # detected
    open_source("data/r2r_ce", split="val_unseen", format="r2r_ce")         # named

A format is a module, imported when it is first asked for, with

    detect(path, split) -> bool                          cheap: names, and the first bytes of a file
    open_source(path, *, split, role="") -> EpisodeSource
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType

from vla_nav.episodes.source import EpisodeSource
from vla_nav.errors import UserError, unknown_name
from vla_nav.files import require_regular

FORMATS: Mapping[str, str] = MappingProxyType(
    {
        "recorded": "vla_nav.episodes.recorded",
        "r2r_ce": "vla_nav.episodes.r2r_ce",
        "rxr_ce": "vla_nav.episodes.rxr_ce",
        "pointnav": "vla_nav.episodes.pointnav",
        "objectnav": "vla_nav.episodes.objectnav",
        "streamvln": "vla_nav.episodes.streamvln",
        "janusvln": "vla_nav.episodes.janusvln",
        "navila": "vla_nav.episodes.navila",
        "interndata_n1": "vla_nav.episodes.interndata_n1",
        "lerobot_v2": "vla_nav.episodes.lerobot_v2",
        "lerobot_v3": "vla_nav.episodes.lerobot_v3_foreign",
    }
)

LAYOUTS: Mapping[str, str] = MappingProxyType(
    {
        "recorded": "recorded/<split>/meta/info.json",
        "r2r_ce": "<split>/<split>.json.gz with instructions",
        "rxr_ce": "<split>/<split>_guide.json.gz",
        "pointnav": "<split>/<split>.json.gz with goals, <split>/content/*.json.gz",
        "objectnav": "<split>/<split>.json.gz with goals_by_category, <split>/content/*.json.gz",
        "streamvln": "annotations.json, images/<video>/rgb/001.jpg",
        "janusvln": "<episode>/step_0000_TURN_RIGHT.png",
        "navila": "annotations.json, <video>/frame_0.jpg",
        "interndata_n1": "meta/info.json (v2.1) with pose.* columns",
        "lerobot_v2": "meta/info.json (v2.0, v2.1), meta/episodes.jsonl",
        "lerobot_v3": "meta/info.json (v3.0), meta/episodes/*.parquet",
    }
)

_BESIDE_JANUSVLN = ("r2r_ce", "rxr_ce")  # episode files that its reader takes instructions from


def detect(path: str | Path, split: str) -> str:
    """The name of the format of `split` in `path`; our own recording goes before what it was
    made from, and JanusVLN's pictures before the episode file beside them.

    Raises `UserError` saying what was looked for, or which formats all fit.
    """
    path = _existing(path)
    found = []
    for name in FORMATS:
        module = _module(name)
        if module is not None and module.detect(path, split):
            if name == "recorded" or path.is_file():  # one file is of one format
                return name
            found.append(name)
    if "janusvln" in found:
        found = [name for name in found if name not in _BESIDE_JANUSVLN]
    if len(found) > 1:
        raise UserError(
            f"{path}: split '{split}' may be {' or '.join(found)}; name one of them as data.format"
        )
    if not found:
        looked = "; ".join(f"{layout} ({name})" for name, layout in LAYOUTS.items())
        raise UserError(
            f"{path}: found no episode data of split '{split}'; looked for {looked}; "
            "correct data.path or data.split, or name the format as data.format"
        )
    return found[0]


def open_source(
    path: str | Path, *, split: str, format: str | None = None, role: str = ""
) -> EpisodeSource:
    """The episodes of `split` in `path`, in the named format or in the one that is detected.

    role: "guide" or "follower" where a split has both. Raises `UserError` for an unknown format,
    and where there is none.
    """
    path = _existing(path)
    if format is None:
        format = detect(path, split)
    elif format not in FORMATS:
        raise unknown_name("data.format", format, FORMATS)
    module = _module(format)
    if module is None:
        raise UserError(
            f"data.format={format}: its reader {FORMATS[format]} is not installed; "
            f"installed: {', '.join(name for name in FORMATS if _module(name) is not None)}"
        )
    return module.open_source(path, split=split, role=role)


def _module(name: str) -> ModuleType | None:
    """The module of a format, or None where this installation lacks it."""
    try:
        return importlib.import_module(FORMATS[name])
    except ModuleNotFoundError as error:
        if error.name != FORMATS[name]:
            raise
        return None


def _existing(path: str | Path) -> Path:
    path = Path(path)
    if not path.exists():
        raise UserError(f"{path}: no such file or folder; correct data.path")
    if not path.is_dir():
        require_regular(path)
    return path
