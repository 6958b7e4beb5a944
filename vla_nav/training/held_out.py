"""Scenes of a training split that no step takes, for validation where there is no other split.

Whole scenes: an episode beside others of its house would be no test of new houses.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vla_nav.errors import UserError
from vla_nav.seeding import generator


def held_out(scenes: Sequence[str], share: float, seed: int) -> np.ndarray:
    """(E,) bool: episodes of the scenes that are held out. At least one scene where share > 0."""
    if share == 0:
        return np.zeros(len(scenes), dtype=bool)
    names = sorted(set(scenes))
    num = max(1, round(share * len(names)))
    if num >= len(names):
        raise UserError(
            f"training.validation.holdout_share={share}: {num} of {len(names)} scenes would be "
            "held out and none is left to train on; give validation.split or a smaller share"
        )
    chosen = {names[k] for k in generator(seed, "held out").permutation(len(names))[:num].tolist()}
    return np.array([scene in chosen for scene in scenes])
