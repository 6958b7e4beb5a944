"""The training tree of an episode as data for the page, which draws it to scale.

    lanes    root--frame 0--frame 1--[label]      as in `verification/drawing_tree.py`: depth to the
                      `--[label]                  right, the heaviest branch straight on

Made by the same steps as `vla-nav draw`: prompt, paths under the layout, prefix tree. No model is
made and no frame is read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from vla_nav.actions.decisions import DecisionRule, cut
from vla_nav.episodes.types import Camera, Embodiment, Episode, ExpertLabel, Pose, Step
from vla_nav.errors import UserError
from vla_nav.verification.drawing_subject import DrawRecipe, drawing_of_group
from vla_nav.verification.drawing_tokens import COLOURS, FRAME, POOLED, WORDS, run_colour
from vla_nav.verification.drawing_tree import tree_shape
from vla_nav.viewing.content import RECORDED, Track

_MAX_RUNS = 20_000  # boxes; more than a browser draws at once
_LEGIBLE = 0.004  # of the depth: the least width of a box and of the gap between two


def tree_json(
    recipe: DrawRecipe, episode: Episode, walk: Track | None, *, turn_deg: float | None
) -> dict[str, Any]:
    """The tree, or `{"reason": ...}` where the episode makes none under this recipe.

    walk: an expert's, one primitive per step, for an episode without steps of its own.
    """
    try:
        walked = with_steps(episode, recipe, walk, turn_deg=turn_deg)
        drawing = drawing_of_group(recipe, [walked], title=episode.episode_id)
    except UserError as error:
        return {"reason": str(error)}
    tree, runs = drawing.tree, drawing.runs
    if len(runs) > _MAX_RUNS:
        return {"reason": f"{len(runs):,} boxes are more than a page can draw; use vla-nav draw"}
    depth = int(tree.position_ids.max()) + 1
    shape = tree_shape(tree, min_width=depth * _LEGIBLE, gap=depth * _LEGIBLE)
    names = recipe_streams(recipe, walked)
    keys = dict.fromkeys(step.frames[name] for step in walked.steps for name in names)
    starts = range(len(walked.steps))  # where a step begins, in steps of the page
    if not episode.steps:  # the walk has a step for every primitive
        starts = np.cumsum([0, *(len(step.executed) for step in walked.steps)])[:-1].tolist()
    first_step = {
        step.frames[name]: start
        for start, step in reversed(list(zip(starts, walked.steps, strict=True)))
        for name in names
    }
    return {
        "headline": drawing.headline,
        "walk": walk.name if walk is not None and not episode.steps else RECORDED,
        "depth": depth,
        "num_lanes": shape.num_lanes,
        "parent": tree.node_parent.tolist(),
        "left": shape.left.tolist(),
        "lane": shape.lane.tolist(),
        "runs": [
            [run.node, int(tree.position_ids[run.start]), run.stop - run.start, run.kind, run.frame]
            for run in runs
        ],
        "texts": [drawing.texts[run.start] for run in runs],
        "colours": [run_colour(run) for run in runs],
        "steps": [first_step[key] for key in keys],
        "legend": [[COLOURS[kind], WORDS[kind]] for kind in sorted({run.kind for run in runs})],
        "images": [FRAME, POOLED],
    }


def recipe_streams(recipe: DrawRecipe, episode: Episode) -> tuple[str, ...]:
    """The image streams of a prompt, in the order of its frame table."""
    from vla_nav.models.prompt_config import streams_of

    assert episode.embodiment is not None
    return tuple(streams_of(episode.embodiment, recipe.model.prompt))


def with_steps(
    episode: Episode, recipe: DrawRecipe, walk: Track | None, *, turn_deg: float | None
) -> Episode:
    """The episode with steps: its own, or one per decision of an expert's walk, labelled with what
    was done. Raises `UserError` where there is neither."""
    if episode.steps:
        if episode.embodiment is None:
            raise UserError(
                f"episode {episode.episode_id}: the data state no embodiment, so no prompt can be "
                "made of it; convert the data set with vla-nav convert"
            )
        return episode
    if walk is None or not walk.actions or not turn_deg:
        raise UserError(
            f"episode {episode.episode_id}: no steps and no expert's actions, so there is "
            "nothing to train on; record it (vla-nav record)"
        )
    poses = [Pose.from_yaw((x, y, z), yaw) for x, y, z, yaw in walk.spots]
    primitives = tuple(primitive for step in walk.actions for primitive in step)
    poses += poses[-1:] * (len(primitives) + 1 - len(poses))  # STOP stays where it is
    space = recipe.action_space
    cameras = recipe.model.prompt.cameras or tuple(getattr(space, "cameras", ())) or ("front",)
    has_depth = recipe.model.prompt.depth
    body = Embodiment(
        tuple(Camera(name, 224, 224, 90.0, 1.25, 0.0, has_depth) for name in cameras),
        radius_m=0.1,
        height_m=1.5,
        turn_deg=turn_deg,
        step_m=0.25,
        is_sliding=True,
    )
    streams = [name for camera in cameras for name in (camera, *[f"{camera}.depth"] * has_depth)]
    rule = DecisionRule.parse(space.decision)
    left, place, steps = primitives, 0, []
    while left:
        decision = cut(left, rule)
        label = ExpertLabel(decision, tuple(poses[place + 1 : place + 1 + len(decision)]))
        frames = {stream: f"{place}/{stream}" for stream in streams}
        steps.append(Step(poses[place], frames, decision, (label,)))
        place, left = place + len(decision), left[len(decision) :]
    return replace(episode, embodiment=body, steps=tuple(steps))
