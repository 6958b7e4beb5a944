"""The README's picture: one recorded episode, its map, and the mask of its packed tree.

    python scripts/draw_overview.py demo/data train 0 docs/images/overview.png

Above: what the agent sees at six of its decisions, rendered again at 256 pixels. Below: the map
with the expert's way, and the one packed sequence of the episode (rows look at columns).
"""

from __future__ import annotations

import dataclasses
import sys
import textwrap
from pathlib import Path

import matplotlib
import numpy as np

from vla_nav.actions.waypoint import WaypointSpace
from vla_nav.attention.mask import dense_mask
from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.episodes.scenes import resolve_scene
from vla_nav.models.prompt import Layout, PromptBuilder, PromptConfig
from vla_nav.models.tokenizer import load_tokenizer
from vla_nav.simulators.mesh import MeshSimulator
from vla_nav.simulators.topdown import floor_maps
from vla_nav.tree.packing import pack
from vla_nav.tree.prefix_tree import PrefixTree

matplotlib.use("agg")
from matplotlib import pyplot as plt


def main(path: str, split: str, index: int, target: str) -> None:
    """Draw episode `index` of a recorded split into the PNG `target`."""
    episode = LeRobotDataset(Path(path) / "recorded" / split)[index]
    assert episode.embodiment is not None
    camera = dataclasses.replace(episode.embodiment.cameras[0], width_px=256, height_px=256)
    simulator = MeshSimulator(dataclasses.replace(episode.embodiment, cameras=(camera,)))
    simulator.load_scene(str(resolve_scene(episode.scene_id, Path(path) / "scenes")))
    space = WaypointSpace(turn_deg=episode.embodiment.turn_deg, step_m=episode.embodiment.step_m)
    prompt = PromptBuilder(
        load_tokenizer("mistral_v3", None), space, episode.embodiment, PromptConfig(), Layout(),
        num_full=3, num_pooled=1,
    )  # fmt: skip
    paths, keys = prompt.paths(episode)
    packed = pack([PrefixTree.from_paths(paths, num_frames=len(keys))])

    figure = plt.figure(figsize=(12, 7.2), dpi=100)
    grid = figure.add_gridspec(2, 6, height_ratios=(1, 2.1), hspace=0.12, wspace=0.06)
    for column, step in enumerate(np.linspace(0, len(episode.steps) - 1, 6).astype(int)):
        simulator.place(episode.steps[step].pose)
        axis = figure.add_subplot(grid[0, column])
        axis.imshow(simulator.observe().rgb[camera.name])
        axis.set_title(f"decision {step + 1}", fontsize=9)
        axis.axis("off")
    axis = figure.add_subplot(grid[1, :3])
    floor = floor_maps(simulator.walkable)[0]
    axis.imshow(floor.is_walkable, cmap="Greys_r", vmin=-1.5, vmax=1)
    way = np.array([step.pose.position for step in episode.steps])
    axis.plot(*floor.pixel(way[:, 0], way[:, 2]), "o-", color="tab:orange", markersize=4)
    goal = np.array([episode.goals[0].position])
    axis.plot(*floor.pixel(goal[:, 0], goal[:, 2]), "x", color="tab:red", markersize=11, mew=3)
    axis.set_title("\n".join(textwrap.wrap(episode.instruction, 78)), fontsize=9)
    axis.axis("off")
    axis = figure.add_subplot(grid[1, 3:])
    mask = dense_mask(packed.subtree_end).numpy().astype(float)
    mask[:, packed.target_index.numpy()] *= 0.55  # action tokens: leaves that nobody else sees
    axis.imshow(mask, cmap="Blues", interpolation="nearest")
    num_flat = sum(len(path.tokens().token_ids) for path in paths)
    axis.set_title(
        f"{len(paths)} training samples, {num_flat:,} tokens -> one of {packed.num_tokens}",
        fontsize=9,
    )
    figure.savefig(target, bbox_inches="tight")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
