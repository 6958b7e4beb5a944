"""Random numbers that depend on names, never on the order of work or the number of workers.

seed(run_seed, "record", episode_id) -> 64-bit integer, the same on every machine
"""

from __future__ import annotations

import hashlib

import numpy as np


def stable_seed(run_seed: int, *names: str | int) -> int:
    """A 64-bit seed from the run's seed and any names (BLAKE2b of their text; no `hash()`)."""
    text = "\x1f".join([str(run_seed), *map(str, names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def generator(run_seed: int, *names: str | int) -> np.random.Generator:
    """A numpy generator seeded by `stable_seed`."""
    return np.random.default_rng(stable_seed(run_seed, *names))
