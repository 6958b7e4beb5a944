"""Small sets in the layouts of MP3D, HM3D and of furnished scenes, loaded by habitat-sim itself.

Every layout holds the same room, so that the same depths and distances must come out:

      z=0 +----------------+      the room of 6 x 4 m; in furnished scenes a block stands in it
          |     [block]    |      that is an object of the set, not a part of the stage
      z=4 +----------------+
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import trimesh
from mesh_scenes import SceneBuilder, embodiment

from vla_nav.episodes.types import Camera, Pose
from vla_nav.errors import UserError
from vla_nav.simulators.opening import SimulatorSetup

pytestmark = pytest.mark.habitat

BODY = embodiment(cameras=(Camera("front", 16, 16, 90.0, 1.25, has_depth=True),))
Z_UP = trimesh.transformations.rotation_matrix(math.pi / 2, (1, 0, 0))
FRAME = {"up": [0, 1, 0], "front": [0, 0, -1], "origin": [0, 0, 0]}


@pytest.fixture(scope="module")
def worker():
    started = {}

    def opened(path: Path, **options):
        key = json.dumps(options)
        if key not in started:
            python = os.environ["VLA_NAV_HABITAT_PYTHON"]
            started[key] = SimulatorSetup("habitat", options, python, 120.0).opened(BODY)
        started[key].load_scene(str(path))
        return started[key]

    yield opened
    for simulator in started.values():
        simulator.close()


def write(path: Path, scene: trimesh.Scene, *, is_z_up: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    scene = scene.copy()
    if is_z_up:
        scene.apply_transform(Z_UP)
    path.write_bytes(scene.export(file_type="glb"))
    return path


def write_json(path: Path, value: dict) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def room() -> trimesh.Scene:
    return SceneBuilder().room(0, 0, 6, 4).scene


def depth_ahead(simulator, x: float = 3.0, z: float = 3.0, yaw: float = 0.0) -> float:
    simulator.reset(Pose.from_yaw((x, 0.0, z), yaw))
    return float(simulator.observe().depth["front"][8, 8])


def test_mp3d_is_z_up_and_its_own_navmesh_is_taken(worker, tmp_path):
    glb = write(tmp_path / "mp3d" / "S" / "S.glb", room(), is_z_up=True)
    computed = worker(glb)
    assert depth_ahead(computed) == pytest.approx(3.0, abs=0.02)
    nearest = computed.snap((0.05, 0.0, 2.0))[0]
    assert 0.17 < nearest < 0.3  # eroded by the body's radius

    wide = SimulatorSetup(
        "habitat", {"navmesh": "recompute"}, os.environ["VLA_NAV_HABITAT_PYTHON"], 120.0
    ).opened(embodiment(radius_m=0.8))
    try:
        wide.load_scene(str(glb))
        assert 0.79 < wide.snap((0.05, 0.0, 2.0))[0] < 0.95
    finally:
        wide.close()


def test_a_shipped_navmesh_is_kept_replaced_or_compared(worker, tmp_path):
    """The mesh beside the scene was computed for another body, of radius 0.6 m."""
    glb = write(tmp_path / "gibson" / "Small.glb", room(), is_z_up=True)
    python = os.environ["VLA_NAV_HABITAT_PYTHON"]
    program = f"""
import habitat_sim
settings = habitat_sim.SimulatorConfiguration()
settings.scene_id, settings.gpu_device_id = {str(glb)!r}, -1
agent = habitat_sim.AgentConfiguration()
simulator = habitat_sim.Simulator(habitat_sim.Configuration(settings, [agent]))
wanted = habitat_sim.NavMeshSettings()
wanted.set_defaults()
wanted.agent_radius, wanted.agent_height = 0.6, 1.5
assert simulator.recompute_navmesh(simulator.pathfinder, wanted)
assert simulator.pathfinder.save_nav_mesh({str(glb.with_suffix(".navmesh"))!r})
"""
    import subprocess

    subprocess.run([python, "-c", program], check=True, cwd=tmp_path, capture_output=True)
    edge = (0.05, 0.0, 2.0)
    for choice, expected in (("auto", 0.6), ("file", 0.6), ("recompute", 0.2), ("matching", 0.2)):
        simulator = worker(glb, navmesh=choice)
        assert simulator.snap(edge)[0] == pytest.approx(expected, abs=0.11), choice


def test_hm3d_is_read_with_its_config(worker, tmp_path):
    hm3d = tmp_path / "hm3d"
    glb = write(hm3d / "val" / "00800-TEEs" / "TEEs.basis.glb", room(), is_z_up=True)
    write_json(
        hm3d / "hm3d_annotated_basis.scene_dataset_config.json",
        {
            "stages": {
                "default_attributes": {"up": [0, 0, 1], "front": [0, 1, 0], "origin": [0, 0, 0]},
                "paths": {".glb": ["val/*/*.basis.glb"]},
            }
        },
    )
    assert depth_ahead(worker(glb)) == pytest.approx(3.0, abs=0.02)


@pytest.fixture(scope="module")
def furnished(tmp_path_factory) -> Path:
    """A scene instance: the room, and a block of 2 x 1 x 0.6 m that stands at (3, 0.5, 1.5)."""
    root = tmp_path_factory.mktemp("sets") / "mini"
    write(root / "stages" / "room.glb", room())
    write_json(root / "stages" / "room.stage_config.json", {"render_asset": "room.glb", **FRAME})
    block = trimesh.Scene(trimesh.creation.box((2.0, 2.0, 0.6)))
    write(root / "objects" / "block.glb", block)
    write_json(root / "objects" / "block.object_config.json", {"render_asset": "block.glb"})
    write_json(
        root / "scenes" / "flat.scene_instance.json",
        {
            "stage_instance": {"template_name": "stages/room"},
            "object_instances": [
                {
                    "template_name": "objects/block",
                    "translation": [3.0, 1.0, 1.5],
                    "motion_type": "STATIC",
                    "translation_origin": "COM",
                }
            ],
        },
    )
    write_json(
        root / "mini.scene_dataset_config.json",
        {
            "stages": {"paths": {".json": ["stages"]}},
            "objects": {"paths": {".json": ["objects"]}},
            "scene_instances": {"paths": {".json": ["scenes"]}},
        },
    )
    return root / "scenes" / "flat.scene_instance.json"


def test_furnished_scenes_show_their_objects_and_one_walks_around_them(worker, furnished):
    simulator = worker(furnished)
    assert depth_ahead(simulator) == pytest.approx(1.2, abs=0.02)  # the block's face at z = 1.8
    assert depth_ahead(simulator, x=5.0) == pytest.approx(3.0, abs=0.02)
    straight = (3.0, 0.0, 2.4), (3.0, 0.0, 0.5)
    path = simulator.shortest_path(*straight)
    around = 2 * math.hypot(1.3, 0.3) + 0.9  # past a corner of the block, at the body's radius
    assert 1.9 + 0.5 < path.distance_m < around + 1.6
    assert np.abs(path.points[:, 0] - 3.0).max() > 1.1
    assert (
        worker(furnished, scene_dataset=str(next(furnished.parents[1].glob("*.json")))) is not None
    )


def test_a_set_without_that_scene_is_refused_and_the_worker_lives_on(worker, furnished, tmp_path):
    lost = write_json(
        furnished.with_name("lost.scene_instance.json"),
        {"stage_instance": {"template_name": "stages/gone"}},
    )
    with pytest.raises(UserError, match=r"its stage 'stages/gone' is not in .*mini\.scene_dataset"):
        worker(lost)
    assert depth_ahead(worker(furnished)) == pytest.approx(1.2, abs=0.02)
