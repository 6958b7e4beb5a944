"""Which recorded episodes become one tree.

    group episode      one tree each
    group trajectory   those of one scene and trajectory_id (R2R-CE: three instructions each)
    group rollouts     all walks of one episode (DAgger: 12, 12@1, 12@2): they share everything up
                       to where they part

Episodes of one trajectory that saw the same frames share them where the layout puts them before the
instruction (`tree=instruction_last`); with the instruction first they share the root alone.
"""

from __future__ import annotations

from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.episodes.rollouts import ROLLOUT_OF
from vla_nav.errors import UserError, unknown_name

GROUPS = ("episode", "trajectory", "rollouts")
_KEY = "trajectory_id"


def grouped(episodes: LeRobotDataset, group: str) -> list[tuple[int, ...]]:
    """Episode numbers of every tree, in order of its first one.

    Raises `UserError` for an unknown `group` and for an episode without a trajectory_id.
    """
    if group not in GROUPS:
        raise unknown_name("tree.group", group, GROUPS)
    if group == "episode":
        return [(index,) for index in range(len(episodes))]
    members: dict[tuple[str, ...], list[int]] = {}
    if group == "rollouts":
        originals = zip(episodes.keys(), episodes.metadata(ROLLOUT_OF), strict=True)
        for index, (key, original) in enumerate(originals):
            place = (*key[:3], key[3] if original is None else str(original))
            members.setdefault(place, []).append(index)
        return [tuple(numbers) for numbers in members.values()]
    rows = zip(episodes.keys(), episodes.scene_ids(), episodes.metadata(_KEY), strict=True)
    for index, (key, scene, trajectory) in enumerate(rows):
        if trajectory is None:
            raise UserError(
                f"{episodes.root}: tree.group=trajectory needs metadata '{_KEY}' and episode "
                f"{'/'.join(key)} has none; set tree.group=episode"
            )
        dataset, split, role, _ = key
        place = (dataset, split, role, scene, repr(trajectory))
        members.setdefault(place, []).append(index)
    return [tuple(numbers) for numbers in members.values()]
