"""Data checks of a folder: the source, the splits it is compared with, its scenes, reachability."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vla_nav.episodes.checks import DataReport, check_source
from vla_nav.episodes.formats import detect, open_source
from vla_nav.errors import UserError
from vla_nav.verification.reachability import Reachability, ReachabilityCheck

_TRAIN = "train"


def examine(
    data: Mapping[str, Any],
    *,
    compare: Sequence[str] | None = None,
    scenes: str | Path | None = None,
    reachability: Reachability | None = None,
) -> DataReport:
    """Check `data.split` in `data.path`.

    data: path, split, format (None: detected), role. compare: other splits to look for leaks into;
    None: train, where the folder has it. scenes: folder that scene ids are relative to; None:
    `<path>/scenes` if it exists. reachability: which episodes to try in their scene, if any.
    """
    path, split, role = Path(data["path"]), data["split"], data.get("role") or ""
    format = data.get("format")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what readers warn of is a finding here
        source = open_source(path, split=split, format=format, role=role)
        if compare is None:
            has_train = path.is_dir() and split != _TRAIN and _has(path, _TRAIN, format)
            compare = [_TRAIN] if has_train else []
        others = [open_source(path, split=name, format=format, role=role) for name in compare]
    folder = path / "scenes" if scenes is None else Path(scenes)
    if scenes is None and not folder.is_dir():
        folder = None
    watch = (
        None if folder is None or reachability is None else ReachabilityCheck(folder, reachability)
    )
    return check_source(source, compare=others, scenes=folder, watch=watch)


def _has(path: Path, split: str, format: str | None) -> bool:
    """Whether the folder holds another split in the same format, or any where none is named."""
    try:
        return format in (None, detect(path, split))
    except UserError:
        return False
