"""From an episode's `scene_id` to a file.

scene_id "mp3d/S/S.glb", scenes root R:   R/mp3d/S/S.glb, else R/S/S.glb (R ends in mp3d)
"data/scene_datasets/mp3d/S/S.glb":       the same, habitat's own folder left away
"102343992", "apt_0" (HSSD, ReplicaCAD):  S.scene_instance.json in R/scenes, R/configs/scenes,
                                          R/<set>/scenes or R/<set>/configs/scenes
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from vla_nav.errors import UserError

HABITAT_PREFIX = ("data", "scene_datasets")
_INSTANCE = ".scene_instance.json"
_INSTANCE_FOLDERS = ("scenes", "configs/scenes", "*/scenes", "*/configs/scenes")


def resolve_scene(scene_id: str, scenes_root: str | Path) -> Path:
    """The existing file of a scene. Raises `UserError` naming what was tried."""
    root = Path(scenes_root)
    relative = PurePosixPath(scene_id)
    if relative.is_absolute() or ".." in relative.parts or not relative.parts:
        raise UserError(f"scene_id '{scene_id}': allowed: a path inside the scenes folder {root}")
    candidates = [root / relative]
    if relative.parts[:2] == HABITAT_PREFIX and len(relative.parts) > 2:
        relative = PurePosixPath(*relative.parts[2:])
        candidates.append(root / relative)
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
    if len(relative.parts) == 1 and not relative.suffix:  # the name of a scene instance
        for folder in _INSTANCE_FOLDERS:
            found = [
                place / f"{relative}{_INSTANCE}"
                for place in sorted(root.glob(folder))
                if (place / f"{relative}{_INSTANCE}").is_file()
            ]
            if found:
                return found[0]
        candidates = [root / folder / f"{relative}{_INSTANCE}" for folder in _INSTANCE_FOLDERS]
    tried = " nor ".join(str(candidate) for candidate in candidates)
    raise UserError(
        f"scene '{scene_id}' is missing: no {tried}; "
        "obtain the scene (data/README.md), or make houses with `vla-nav houses`"
    )
