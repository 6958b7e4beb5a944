"""What habitat-sim is told about scene files, by the layouts of the public data sets."""

from __future__ import annotations

import ast
import json
import struct
import sys
from pathlib import Path

import pytest

from tests.simulators.mesh_scenes import SceneBuilder
from vla_nav.episodes.scenes import resolve_scene
from vla_nav.errors import UserError
from vla_nav.simulators.habitat_scene import find_scene

ROOT = Path(__file__).parents[2]
GLB = b"glTF" + struct.pack("<III", 2, 24, 4) + b"JSON{}  "  # an empty one


def touch(path: Path, content: bytes = GLB) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def config(path: Path) -> Path:
    return touch(path, b"{}")


def test_a_bare_glb_gets_a_y_up_stage_config(tmp_path):
    glb = SceneBuilder().room(0, 0, 2, 2).write(tmp_path / "a room.glb")
    found = find_scene(glb, folder=tmp_path / "made")
    assert found.convention == "bare"
    assert (found.dataset, found.navmesh, found.has_objects) == (None, None, False)
    stage = json.loads(Path(found.scene_id).read_text())
    assert (stage["up"], stage["front"]) == ([0, 1, 0], [0, 0, -1])
    assert stage["render_asset"] == stage["collision_asset"] == str(glb)
    assert Path(found.scene_id).parent == tmp_path / "made"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a room.glb", "made"]


def test_the_up_axis_can_be_stated(tmp_path):
    glb = touch(tmp_path / "x.glb")
    assert find_scene(glb, folder=tmp_path / "m", up_axis="z").scene_id == str(glb)
    ply = touch(tmp_path / "x.ply", b"ply")
    stage = json.loads(
        Path(find_scene(ply, folder=tmp_path / "m", up_axis="z").scene_id).read_text()
    )
    assert (stage["up"], stage["front"]) == ([0, 0, 1], [0, 1, 0])
    with pytest.raises(UserError, match=r"up_axis 'x'.*allowed: auto, y, z"):
        find_scene(glb, folder=tmp_path / "m", up_axis="x")


def test_two_scenes_of_one_name_keep_their_own_configs(tmp_path):
    names = [touch(tmp_path / sub / "s.glb") for sub in ("a", "b")]
    ids = [find_scene(name, folder=tmp_path / "m").scene_id for name in names]
    told = [json.loads(Path(scene_id).read_text())["render_asset"] for scene_id in ids]
    assert told == list(map(str, names))


def test_mp3d_is_z_up_with_its_own_navmesh(tmp_path):
    for root, extra in (("mp3d", "S.navmesh"), ("v1", "S.house")):
        glb = touch(tmp_path / root / "S" / "S.glb")
        beside = touch(glb.with_name(extra), b"")
        found = find_scene(glb, folder=tmp_path / "m")
        assert (found.scene_id, found.convention, found.dataset) == (str(glb), "mp3d", None)
        assert found.navmesh == (str(beside) if extra.endswith("navmesh") else None)
    gibson = touch(tmp_path / "gibson" / "Adrian.glb")
    assert find_scene(gibson, folder=tmp_path / "m").convention == "gibson"
    assert not (tmp_path / "m").exists()


def test_hm3d_takes_the_annotated_config(tmp_path):
    hm3d = tmp_path / "hm3d"
    glb = touch(hm3d / "val" / "00800-TEEs" / "TEEs.basis.glb")
    navmesh = touch(glb.with_name("TEEs.basis.navmesh"), b"n")
    wanted = config(hm3d / "hm3d_annotated_basis.scene_dataset_config.json")
    config(hm3d / "hm3d_basis.scene_dataset_config.json")
    found = find_scene(glb, folder=tmp_path / "m")
    assert (found.scene_id, found.dataset) == (str(glb), str(wanted))
    assert (found.navmesh, found.convention) == (str(navmesh), "hm3d")
    other = config(tmp_path / "other.scene_dataset_config.json")
    assert find_scene(glb, folder=tmp_path / "m", dataset=str(other)).dataset == str(other)
    with pytest.raises(UserError, match=r"scene_dataset=.*no such file"):
        find_scene(glb, folder=tmp_path / "m", dataset=str(tmp_path / "lost.json"))


def test_furnished_scenes_are_told_with_their_sets_config(tmp_path):
    hssd = tmp_path / "hssd-hab"
    scene = config(hssd / "scenes" / "102343992.scene_instance.json")
    with pytest.raises(UserError, match=r"no .*scene_dataset_config\.json in the folders above"):
        find_scene(scene, folder=tmp_path / "m")
    wanted = config(hssd / "hssd-hab.scene_dataset_config.json")
    config(hssd / "hssd-hab-uncluttered.scene_dataset_config.json")
    navmesh = touch(hssd / "navmeshes" / "102343992.navmesh", b"n")
    found = find_scene(scene, folder=tmp_path / "m")
    assert (found.scene_id, found.dataset) == (str(scene), str(wanted))
    assert (found.navmesh, found.has_objects) == (str(navmesh), True)

    replica = tmp_path / "replica"
    apartment = config(replica / "configs" / "scenes" / "apt_0.scene_instance.json")
    for name in ("one", "two"):
        config(replica / f"{name}.scene_dataset_config.json")
    with pytest.raises(UserError, match=r"several scene dataset configs \(one.*two.*scene_dataset"):
        find_scene(apartment, folder=tmp_path / "m")


def test_a_stage_config_beside_the_file_is_believed(tmp_path):
    glb = touch(tmp_path / "castle.glb")
    beside = config(tmp_path / "castle.stage_config.json")
    assert find_scene(glb, folder=tmp_path / "m").scene_id == str(beside)
    assert find_scene(beside, folder=tmp_path / "m").scene_id == str(beside)
    assert find_scene(glb, folder=tmp_path / "m", up_axis="y").scene_id != str(beside)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.glb", None, "no such scene file"),
        ("x.glb", b"", r"damaged \(no glTF header in 0 bytes\)"),
        ("x.glb", b"glTF" + struct.pack("<II", 2, 99), r"damaged \(12 bytes.* states 99\)"),
        ("x.glb", b"<html>not found</html>", "damaged .no glTF header"),
        ("x.ply", b"", "is empty"),
        ("x.stage_config.json", b"{", "not valid JSON"),
        ("x.txt", b"hello", r"not a scene file; habitat-sim takes \.glb"),
    ],
)
def test_files_that_would_fail_inside_the_library_are_named_before(
    tmp_path, name, content, message
):
    if content is not None:
        touch(tmp_path / name, content)
    with pytest.raises(UserError, match=message):
        find_scene(tmp_path / name, folder=tmp_path / "m")


def test_scene_ids_of_habitats_own_data_sets_are_found(tmp_path):
    mp3d = touch(tmp_path / "mp3d" / "S" / "S.glb")
    for scene_id in ("mp3d/S/S.glb", "data/scene_datasets/mp3d/S/S.glb"):
        assert resolve_scene(scene_id, tmp_path) == mp3d
        assert resolve_scene(scene_id, tmp_path / "mp3d") == mp3d
    hssd = config(tmp_path / "hssd-hab" / "scenes" / "102343992.scene_instance.json")
    replica = config(tmp_path / "replica" / "configs" / "scenes" / "apt_0.scene_instance.json")
    assert resolve_scene("102343992", tmp_path) == hssd
    assert resolve_scene("apt_0", tmp_path) == replica
    assert resolve_scene("apt_0", tmp_path / "replica") == replica
    with pytest.raises(UserError, match=r"'apt_1' is missing: .*scenes/apt_1\.scene_instance"):
        resolve_scene("apt_1", tmp_path)


def imported(path: Path) -> set[str]:
    """Modules that a file imports when it is read; not those for type checkers only."""
    names: set[str] = set()

    def visit(nodes):
        for node in nodes:
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                visit(node.orelse)
            elif isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                names.add(node.module)
            elif not isinstance(node, ast.FunctionDef | ast.ClassDef):
                for _, value in ast.iter_fields(node):
                    if isinstance(value, list):
                        visit([one for one in value if isinstance(one, ast.AST)])

    visit(ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9)).body)
    return names


def test_the_habitat_worker_needs_numpy_msgpack_and_habitat_sim_alone():
    """Everything it imports, through this package's own files."""
    todo, seen = {"vla_nav.simulators.habitat", "vla_nav.simulators.host"}, set()
    foreign = {name.split(".")[0] for name in imported(ROOT / "vla_nav/simulators/worker.py")}
    while todo:
        name = todo.pop()
        seen.add(name)
        path = ROOT / (name.replace(".", "/") + ".py")
        path = path if path.is_file() else path.with_suffix("") / "__init__.py"
        for module in imported(path):
            if module.startswith("vla_nav"):
                todo |= {module} - seen
            else:
                foreign.add(module.split(".")[0])
    assert len(seen) > 8
    outside = {name for name in foreign if name not in sys.stdlib_module_names}
    assert outside == {"numpy", "msgpack", "habitat_sim", "magnum"}
