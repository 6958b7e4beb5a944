"""The state of every random generator of a run, rank by rank, as plain values in a checkpoint.

    {"torch": uint8 (5056,), "numpy": [...], "python": [...], "device": uint8 (16,) or None}

Data and packs draw from generators named by the run's seed and need none of this; it is for what
draws from the process's generators in a step. A continuation on more ranks than before has new
ranks, which begin with the state of their start.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import distributed


def random_state(device: torch.device) -> dict[str, Any]:
    """The generators of this process: torch's on the CPU and on `device`, numpy's, Python's."""
    name, keys, position, has_gauss, gauss = np.random.get_state()
    version, words, pending = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "device": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "numpy": [str(name), keys.tolist(), int(position), int(has_gauss), float(gauss)],
        "python": [version, list(words), pending],
    }


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Continue from what `random_state` returned."""
    torch.set_rng_state(state["torch"].cpu())
    if device.type == "cuda" and state["device"] is not None:
        torch.cuda.set_rng_state(state["device"].cpu(), device)
    name, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((name, np.array(keys, np.uint32), position, has_gauss, gauss))
    version, words, pending = state["python"]
    random.setstate((version, tuple(words), pending))


def over_ranks(state: dict[str, Any]) -> list[dict[str, Any]]:
    """The state of every rank; a collective call where there are several."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return [state]
    states: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(states, state)
    return states
