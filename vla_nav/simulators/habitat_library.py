"""Making habitat-sim's simulator: what it would do to the process or silently is kept away here.

- without a GPU it ends the process: the device is looked for first;
- a fresh simulator spends seconds on an environment map: image-based lighting is off;
- a scene instance whose stage is missing crashes the process: its set is asked first;
- what failed half made still holds an OpenGL context: it is gone before the next one is made.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("HABITAT_SIM_LOG", "quiet")
os.environ.setdefault("MAGNUM_LOG", "quiet")

import habitat_sim

from vla_nav.episodes.types import Embodiment
from vla_nav.errors import UserError
from vla_nav.simulators.habitat_scene import INSTANCE, HabitatScene

_NO_IBL = {"enable_ibl": False, "ibl_blut_filename": "none", "ibl_envmap_filename": "none"}


def library_version() -> str:
    """habitat-sim's version."""
    return str(habitat_sim.__version__)


def gpu_device() -> int:
    """The first NVIDIA device, or -1 (Mesa's software renderer) where the machine has none."""
    has_gpu = any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()
    return 0 if has_gpu else -1


def make_simulator(
    scene: HabitatScene,
    body: Embodiment,
    *,
    sensors: list[Any],
    gpu_device_id: int,
    semantic: bool,
    quiet_folder: Path | None,
) -> Any:
    """habitat-sim's simulator of a scene, with one agent.

    sensors: specifications. quiet_folder: an existing folder of ours, from where image-based
    lighting is turned off; None leaves it on. Raises `UserError` for a scene that cannot be loaded.
    """
    agent = habitat_sim.AgentConfiguration()
    agent.radius, agent.height = body.radius_m, body.height_m
    agent.sensor_specifications = sensors
    settings = habitat_sim.SimulatorConfiguration()
    settings.scene_id = scene.scene_id
    if scene.dataset is not None:
        settings.scene_dataset_config_file = scene.dataset
    settings.gpu_device_id = gpu_device_id
    settings.allow_sliding = body.is_sliding
    settings.enable_physics = False
    settings.load_semantic_mesh = semantic
    settings.random_seed = 0
    with _working_folder(quiet_folder):
        mediator = habitat_sim.metadata.MetadataMediator(settings)
        _require_stage(scene, mediator)
        made, reason = _made(habitat_sim.Configuration(settings, [agent], mediator))
    if made is None:
        gc.collect()
        raise UserError(
            f"{scene.path}: habitat-sim {library_version()} cannot load the scene ({reason}); "
            "write or download it again, and check its data set's config"
        )
    return made


def _made(configuration: Any) -> tuple[Any, str]:
    """The simulator, or None and why; no exception leaves, since it would keep it alive."""
    try:
        return habitat_sim.Simulator(configuration), ""
    except (AssertionError, RuntimeError, ValueError) as error:
        return None, " ".join(str(error).split())[:200] or type(error).__name__


def _require_stage(scene: HabitatScene, mediator: Any) -> None:
    """Raise `UserError` for a scene instance whose stage its set does not have."""
    if not scene.scene_id.endswith(INSTANCE):
        return
    instance = json.loads(Path(scene.scene_id).read_text(encoding="utf-8"))
    stage = instance.get("stage_instance") if isinstance(instance, dict) else None
    name = str((stage or {}).get("template_name", ""))
    if not name or not mediator.stage_template_manager.get_template_handles(name):
        raise UserError(
            f"{scene.path}: habitat-sim cannot load the scene (its stage '{name}' is not in "
            f"{scene.dataset}); download the data set again, or name its config in "
            "simulators.options.scene_dataset"
        )


@contextmanager
def _working_folder(folder: Path | None) -> Iterator[None]:
    """Work in a folder whose `data/` turns image-based lighting off."""
    if folder is None:
        yield
        return
    before = os.getcwd()
    data = folder / "data"
    data.mkdir(exist_ok=True)
    (data / "default.pbr_config.json").write_text(json.dumps(_NO_IBL), encoding="utf-8")
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
