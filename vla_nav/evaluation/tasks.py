"""The public tasks: which body, cameras, success distance and limit their published numbers mean.

    task            turn  step  radius height sliding  camera               success  steps
    r2r_ce           15   0.25   0.10   1.50   on      224x224, 90 at 1.25    3.0     500
    rxr_ce           30   0.25   0.18   0.88   off     640x480, 79 at 0.88    3.0     500
    objectnav_hm3d   30   0.25   0.18   0.88   off     640x480, 79 at 0.88    0.1     500
    pointnav         10   0.25   0.10   1.50   on      256x256, 90 at 1.25    0.2     500
                     deg   m      m      m             pixels, degrees, m     m

`task=r2r_ce` (conf/task/) sets these values. Any of them that is changed afterwards, by an
override or by a checkpoint's own body, is refused unless `evaluation.allow_mismatch=true`, and
then written into the results. Data that state a body of their own are held to it as well, cameras
aside: episode files have no pictures.

Sources: VLN-CE habitat_extensions/config/vlnce_task.yaml and rxr_vlnce_english_task.yaml,
habitat-lab config/benchmark/nav/{objectnav/objectnav_hm3d,pointnav/pointnav_gibson}.yaml and, for
what those leave out, config/default_structured_configs.py. Success is strict there (NE < distance).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from vla_nav.episodes import objectnav, pointnav, r2r_ce, rxr_ce
from vla_nav.episodes.bodies import camera_differences, motion_differences
from vla_nav.episodes.episode_files import kind_of
from vla_nav.episodes.types import Camera, Embodiment, Episode
from vla_nav.episodes.vlnce import release_of_file
from vla_nav.errors import UserError, unknown_name
from vla_nav.evaluation.metrics import SuccessRule

MAX_PRIMITIVES = 500  # of all four


@dataclass(frozen=True, slots=True)
class Task:
    """A public task. body: its motion and its RGB camera. depth: its depth sensor."""

    name: str
    body: Embodiment
    depth: Camera
    success_m: float
    max_primitives: int = MAX_PRIMITIVES


def _depth(width_px: int, height_px: int, hfov_deg: float, height_m: float) -> Camera:
    return Camera("depth", width_px, height_px, hfov_deg, height_m, has_depth=True)


TASKS: Mapping[str, Task] = MappingProxyType(
    {
        task.name: task
        for task in (
            Task("r2r_ce", r2r_ce.BODY, _depth(256, 256, 90.0, 1.25), r2r_ce.RADIUS_M),
            Task("rxr_ce", rxr_ce.BODY, _depth(640, 480, 79.0, 0.88), rxr_ce.RADIUS_M),
            Task(
                "objectnav_hm3d", objectnav.BODY, _depth(640, 480, 79.0, 0.88), objectnav.RADIUS_M
            ),
            Task("pointnav", pointnav.BODY, _depth(256, 256, 90.0, 1.25), pointnav.RADIUS_M),
        )
    }
)


def task_of(config: Mapping[str, Any]) -> Task | None:
    """The task that a configuration names, or None. Raises `UserError` for an unknown one."""
    node = config.get("task")
    if node is None:
        return None
    if node["name"] not in TASKS:
        raise unknown_name("task.name", node["name"], TASKS)
    return TASKS[node["name"]]


def body_differences(task: Task, body: Embodiment) -> list[str]:
    """What a body has otherwise than the task's, cameras included: `turn_deg 15.0 != 30.0`."""
    found = motion_differences(task.body, body)
    for camera in body.cameras:
        like = task.depth if camera.has_depth else task.body.cameras[0]
        found += [f"camera '{camera.name}' {text}" for text in camera_differences(like, camera)]
    return found


def refuse_other_body(config: Mapping[str, Any], body: Embodiment) -> None:
    """Refuse to record, in the name of a task, with another body than the task's."""
    task = task_of(config)
    found = [] if task is None else body_differences(task, body)
    if task is not None and found:
        raise UserError(
            f"task={task.name}: its body is another (the task's != now): {'; '.join(found)}; leave "
            "these values out, or leave task out to record with a body of your own"
        )


def task_differences(
    task: Task, body: Embodiment, rule: SuccessRule, max_primitives: int
) -> list[str]:
    """What an evaluation has otherwise than the task: `turn_deg 15.0 != 30.0`, the task's first."""
    found = body_differences(task, body)
    for key, wanted, got in (
        ("success_m", task.success_m, rule.success_m),
        ("is_strict", True, rule.is_strict),
        ("max_primitives", task.max_primitives, max_primitives),
    ):
        if wanted != got:
            found.append(f"{key} {wanted} != {got}")
    return found


def stated_body(episodes: str, split: str) -> tuple[str, Embodiment] | None:
    """The format of an episode file and the body that it was made for, where that is known."""
    kind = kind_of(Path(episodes), split)
    if kind == "instruction":
        is_r2r = release_of_file(episodes).name != "other"
        return ("r2r_ce", r2r_ce.BODY) if is_r2r else None
    known = {
        "language": ("rxr_ce", rxr_ce.BODY),
        "object": ("objectnav", objectnav.BODY),
        "point": ("pointnav", pointnav.BODY),
    }
    return known.get(kind)


def refuse_other_conditions(
    config: Mapping[str, Any], episodes: Iterable[Episode], body: Embodiment, rule: SuccessRule
) -> list[str]:
    """Refuse what disagrees with the task or with the data; the differences where it is allowed.

    body: that of the evaluation, be it configured or the checkpoint's.
    """
    options, data = config["evaluation"], config["data"]
    found = []
    task = task_of(config)
    if task is not None:
        limit = options["max_primitives"]
        found += _labelled(f"task {task.name}", task_differences(task, body, rule, limit))
        radii = sorted({goal.radius_m for episode in episodes for goal in episode.goals})
        if radii not in ([], [task.success_m]):
            shown = ", ".join(f"{radius:g}" for radius in radii[:4])
            found.append(f"goals of the data: radius {shown} != success_m {rule.success_m:g}")
    stated = stated_body(data["episodes"], data["split"])
    if stated is not None:
        name, own = stated
        found += _labelled(f"data {name}", motion_differences(own, body))
    if found and not options["allow_mismatch"]:
        raise UserError(
            f"{data['episodes']}: to be evaluated under other conditions than its own (its own != "
            f"now): {'; '.join(found)}; take task={_nearest(task, stated)} and a checkpoint "
            "trained for it, or set evaluation.allow_mismatch=true"
        )
    return found


def _labelled(label: str, texts: Sequence[str]) -> list[str]:
    return [f"{label}: {text}" for text in texts]


def _nearest(task: Task | None, stated: tuple[str, Embodiment] | None) -> str:
    """The preset to recommend: that of the data, else the one asked for."""
    if stated is not None:
        return "objectnav_hm3d" if stated[0] == "objectnav" else stated[0]
    assert task is not None, "differences from nothing"
    return task.name
