"""From a scene file to what habitat-sim must be told about it, by the data sets' conventions.

| a file like                                   | told as                          | up |
|-----------------------------------------------|----------------------------------|----|
| S/S.glb beside S.house, or below mp3d/        | itself                           | z  |
| gibson/S.glb, habitat-test-scenes/S.glb       | itself                           | z  |
| 00800-S/S.basis.glb, 00800-S/S.glb (HM3D)     | itself, in the set's config      | z  |
| S.scene_instance.json (HSSD, ReplicaCAD)      | itself, in the set's config      | of the config |
| S.stage_config.json, or S.glb beside one      | the stage config                 | of the config |
| any other S.glb, S.gltf, S.ply, S.obj         | a stage config written for it    | y  |

habitat-sim takes a bare `.glb` for Z-up, silently: a Y-up glTF would lie on its side. The set's
config is the nearest `*.scene_dataset_config.json` in the folders above. Navigation meshes are
looked for where the sets keep them (`S.navmesh` beside the file, `navmeshes/S.navmesh`).
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from vla_nav.errors import UserError, unknown_name
from vla_nav.frozen import frozen
from vla_nav.simulators.habitat_materials import has_bare_surfaces, with_materials
from vla_nav.simulators.habitat_semantics import write_semantics

UP_AXES = ("auto", "y", "z")
STAGE_SUFFIXES = (".glb", ".gltf", ".ply", ".obj")
INSTANCE, STAGE, DATASET = (
    ".scene_instance.json",
    ".stage_config.json",
    ".scene_dataset_config.json",
)
_Z_UP_SETS = ("mp3d", "gibson", "habitat-test-scenes")
_FRAMES = {"y": ([0, 1, 0], [0, 0, -1]), "z": ([0, 0, 1], [0, 1, 0])}  # up, front in the file
_SEARCHED_FOLDERS = 4  # a set's config lies at most this many folders above its scenes


@frozen
class HabitatScene:
    """What habitat-sim is told.

    path: the file that was asked for. scene_id, dataset: of its simulator configuration; dataset
    None means no config. navmesh: an existing file, or None. convention: which of the table above,
    by a word. has_objects: the scene is furnished with objects that a navigation mesh must walk
    around.
    """

    path: str
    scene_id: str
    dataset: str | None
    navmesh: str | None
    convention: str
    has_objects: bool = False


def find_scene(
    path: str | Path,
    *,
    folder: str | Path,
    dataset: str | None = None,
    up_axis: str = "auto",
    semantic: bool = False,
) -> HabitatScene:
    """What to tell habitat-sim about the scene file `path`.

    folder: where a stage config may be written for it. dataset: a config file to use instead of
    the nearest one. up_axis: of a stage file without config; "auto" goes by the table above.
    semantic: give a bare GLB the semantic ids that the mesh simulator gives it.
    Raises `UserError` for a missing, damaged or unknown file.
    """
    path = Path(path).absolute()
    given = str(path)
    if up_axis not in UP_AXES:
        raise unknown_name("simulators.options.up_axis", str(up_axis), UP_AXES)
    if dataset is not None and not Path(dataset).is_file():
        raise UserError(
            f"simulators.options.scene_dataset={dataset}: no such file; give the path of a "
            f"*{DATASET}, or null to look for it above the scene"
        )
    _check_file(path)
    stem = _stem(path)
    if path.name.endswith(INSTANCE):
        config = dataset or _nearest_dataset(path, stem)
        if config is None:
            raise UserError(
                f"{path}: no *{DATASET} in the folders above; set "
                "simulators.options.scene_dataset to the data set's config file"
            )
        return HabitatScene(
            given, given, str(Path(config).absolute()), _navmesh(path, stem), "instance", True
        )
    if path.name.endswith(STAGE):
        return HabitatScene(given, given, _absolute(dataset), _navmesh(path, stem), "stage_config")
    navmesh = _navmesh(path, stem)
    if _is_hm3d(path, stem):
        config = dataset or _nearest_dataset(path, "hm3d")
        scene_id = given
        if config is None and up_axis == "y":
            scene_id = _write_stage(path, "y", Path(folder), semantic=semantic)
        return HabitatScene(given, scene_id, _absolute(config), navmesh, "hm3d")
    if dataset is not None:
        return HabitatScene(given, given, _absolute(dataset), navmesh, "dataset")
    beside = path.with_name(f"{stem}{STAGE}")
    if up_axis == "auto" and beside.is_file():
        return HabitatScene(given, str(beside), None, navmesh, "stage_config")
    convention = _z_up_set(path, stem)
    up = up_axis if up_axis != "auto" else ("z" if convention else "y")
    if up == "z" and path.suffix.lower() == ".glb" and (convention or not has_bare_surfaces(path)):
        return HabitatScene(given, given, None, navmesh, convention or "bare")  # its own reading
    written = _write_stage(path, up, Path(folder), semantic=semantic)
    return HabitatScene(given, written, None, navmesh, convention or "bare")


def _stem(path: Path) -> str:
    """The scene's name: the file's without `.glb`, `.basis.glb`, `.scene_instance.json`, ..."""
    for ending in (INSTANCE, STAGE, ".basis.glb"):
        if path.name.endswith(ending):
            return path.name[: -len(ending)]
    return path.stem


def _check_file(path: Path) -> None:
    known = (*STAGE_SUFFIXES, INSTANCE, STAGE)
    if not path.name.lower().endswith(known):
        raise UserError(f"{path}: not a scene file; habitat-sim takes {', '.join(known)}")
    if not path.is_file():
        raise UserError(
            f"{path}: no such scene file; check the data path and the scene id, "
            "or write houses with `vla-nav houses`"
        )
    size = path.stat().st_size
    if path.suffix.lower() == ".glb":
        with path.open("rb") as file:
            head = file.read(12)
        if len(head) < 12 or head[:4] != b"glTF":
            raise UserError(
                f"{path}: the scene file is damaged (no glTF header in {size} bytes); write or "
                "download it again"
            )
        (stated,) = struct.unpack("<I", head[8:12])
        if stated > size:
            raise UserError(
                f"{path}: the scene file is damaged ({size} bytes, its header states {stated}); "
                "write or download it again"
            )
    elif size == 0:
        raise UserError(f"{path}: the scene file is empty; write or download it again")
    elif path.suffix == ".json":
        try:
            json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(f"{path}: not valid JSON ({error}); download it again") from None


def _nearest_dataset(path: Path, name: str) -> str | None:
    """The config of the nearest folder above that has one.

    Of several the annotated HM3D one, else the one named like its folder, else a `UserError`.
    """
    for folder in list(path.parents)[: _SEARCHED_FOLDERS + 1]:
        found = sorted(folder.glob(f"*{DATASET}"))
        if len(found) == 1:
            return str(found[0])
        if found:
            stems = {one.name[: -len(DATASET)].lower(): str(one) for one in found}
            wanted = (folder.name, *_HM3D_CONFIGS) if name != "hm3d" else _HM3D_CONFIGS
            for stem in wanted:
                if stem.lower() in stems:
                    return stems[stem.lower()]
            raise UserError(
                f"{path}: {folder} has several scene dataset configs "
                f"({', '.join(one.name for one in found)}); name one of them in "
                "simulators.options.scene_dataset"
            )
    return None


_HM3D_CONFIGS = ("hm3d_annotated_basis", "hm3d_basis", "hm3d_annotated", "hm3d")


def _navmesh(path: Path, stem: str) -> str | None:
    """Beside the scene, or in the set's folder of navigation meshes."""
    names = [f"{stem}.navmesh", f"{stem}.basis.navmesh"]
    if path.name.lower().endswith(".basis.glb"):
        names.reverse()
    folders = [path.parent]
    folders += [folder / "navmeshes" for folder in list(path.parents)[:_SEARCHED_FOLDERS]]
    for folder in folders:
        for name in names:
            if (folder / name).is_file():
                return str(folder / name)
    return None


def _is_hm3d(path: Path, stem: str) -> bool:
    number, dash, name = path.parent.name.partition("-")
    return len(number) == 5 and number.isdigit() and bool(dash) and name == stem


def _z_up_set(path: Path, stem: str) -> str | None:
    """The name of the data set whose raw stages are Z-up, or None."""
    has_house = any(
        path.with_name(stem + ending).is_file() for ending in (".house", "_semantic.ply")
    )
    if has_house and path.parent.name == stem:
        return "mp3d"
    return next((part for part in path.parts[:-1] if part in _Z_UP_SETS), None)


def _write_stage(path: Path, up_axis: str, folder: Path, *, semantic: bool) -> str:
    """A stage config for a bare stage file; the folder is the caller's and temporary."""
    up, front = _FRAMES[up_axis]
    count = len(list(folder.iterdir())) if folder.is_dir() else 0
    shown = with_materials(path, folder / f"{count:04d}")
    config: dict[str, Any] = {
        "render_asset": str(shown),
        "collision_asset": str(path),
        "up": up,
        "front": front,
        "origin": [0, 0, 0],
    }
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{count:04d}-{_stem(path)}"
    semantics = folder / f"{name}_semantic.ply"
    is_told = semantic and path.suffix.lower() == ".glb"
    if is_told and write_semantics(path, semantics, up_axis=up_axis):
        config["semantic_asset"] = str(semantics)
    target = folder / f"{name}{STAGE}"
    target.write_text(json.dumps(config), encoding="utf-8")
    return str(target)


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).absolute())
