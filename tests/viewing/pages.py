"""Data sets and pages for the tests of this folder."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from vla_nav.commands.compose import compose_config, plain
from vla_nav.episodes.types import Episode, Goal, Pose
from vla_nav.episodes.vlnce import write_vlnce

HOSTILE = (
    '<script>alert(1)</script><img src=x onerror="document.title=\'owned\'"> & "quoted" \u2028 '
    "</script><svg onload=alert(2)> `${alert(3)}` 左 🚪"
)
SCENE = "mp3d/</script><b>/x.glb"


def view_config(output: Path, *overrides: str) -> dict[str, Any]:
    """The composed configuration of `vla-nav view`, as plain values."""
    config = OmegaConf.merge(_composed(), OmegaConf.from_dotlist(list(overrides)))
    values = {key: plain(config[key]) for key in ("view", "data", "simulators")}
    return {**values, "paths": {"output_dir": str(output)}}


@cache
def _composed() -> DictConfig:
    return compose_config("view", ["view.num_trees=0"])


def two_floor_episode(number: int = 1, instruction: str = HOSTILE) -> Episode:
    """Up some stairs: the start at 0 m, the goal at 2.8 m, 4 m ahead along -z."""
    return Episode(
        dataset="r2r_ce",
        split="val",
        role="",
        episode_id=str(number),
        scene_id=SCENE,
        instruction=instruction,
        start_pose=Pose.from_yaw((0.0, 0.0, 0.0), 0.0),
        goals=(Goal((0.0, 2.8, -4.0), 3.0),),
        reference_path=np.array([[0.0, 0.0, 0.0], [0.0, 1.4, -2.0], [0.0, 2.8, -4.0]]),
        embodiment=None,
    )


def write_r2r(root: Path, num_episodes: int = 3) -> Path:
    """An R2R-CE data set of hostile texts with ground truth; `data.path`.

    Episode 1 reaches its goal, 2 stops at once, 3 has no STOP.
    """
    texts = [HOSTILE, "Wait at the door.", "Walk to the <b>kitchen</b>."]
    episodes = [
        two_floor_episode(number, texts[(number - 1) % 3]) for number in range(1, num_episodes + 1)
    ]
    write_vlnce(root / "val" / "val.json.gz", episodes)
    truths = {}
    for number in range(1, num_episodes + 1):
        kind = (number - 1) % 3
        actions = [[*[1] * 16, 0], [0], [2, 2, 3, *[1] * 3]][kind]
        num_forward = actions.count(1)
        places = [[0.0, 2.8 * at / 16, -0.25 * at] for at in range(num_forward + 1)]
        truths[str(number)] = {
            "actions": actions,
            "locations": places,
            "forward_steps": num_forward,
        }
    file = root / "val" / "val_gt.json.gz"
    file.write_bytes(gzip.compress(json.dumps(truths).encode()))
    return root


def content_of(page: Path, number: int) -> dict[str, Any]:
    """The content of an episode file, read without a browser."""
    file = page.parent / f"data/episodes/{number:06d}.js"
    return json.loads(file.read_text().split("\n")[3].removesuffix(");"))


def index_of(page: Path) -> dict[str, Any]:
    """The index of a page."""
    text = (page.parent / "data/index.js").read_text()
    return json.loads(text.removeprefix("vlaNav.index(").removesuffix(");\n"))
