"""From an episode's `scene_id` to a file.

scene_id "mp3d/S/S.glb", scenes root R:   R/mp3d/S/S.glb, else R/S/S.glb (R ends in mp3d)
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from vla_nav.errors import UserError


def resolve_scene(scene_id: str, scenes_root: str | Path) -> Path:
    """The existing file of a scene. Raises `UserError` naming what was tried."""
    root = Path(scenes_root)
    relative = PurePosixPath(scene_id)
    if relative.is_absolute() or ".." in relative.parts:
        raise UserError(f"scene_id '{scene_id}': allowed: a path inside the scenes folder {root}")
    candidates = [root / relative]
    if len(relative.parts) > 1:
        candidates.append(root.joinpath(*relative.parts[1:]))
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    if not root.is_dir():
        raise UserError(
            f"{root}: no such scenes folder (wanted for '{scene_id}'); "
            "set data.path to the data set, or make houses with `vla-nav houses`"
        )
    tried = " nor ".join(str(candidate) for candidate in candidates)
    raise UserError(
        f"scene '{scene_id}' is missing: no {tried}; "
        "obtain the scene (data/README.md), or make houses with `vla-nav houses`"
    )
