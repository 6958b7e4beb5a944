"""Random paths of sampled actions: advantages of both signs, and behaviour log-probabilities that
split equal tokens now and then. Definitions are set-based, as in `random_paths`.
"""

from __future__ import annotations

import random

import numpy as np

from tests.tree.random_paths import Token, random_paths
from vla_nav.tree import Path, Segment, Trunk

ADVANTAGES = (-1.5, -0.5, 0.0, 0.5, 2.0)  # sums of products with coefficients are exact
LOG_PROBS = (-0.0, -0.25, -0.5, -1.75)


def sampled_paths(seed: int, *, vocabulary: int = 4) -> list[Path]:
    """`random_paths` whose supervised tokens are all text and sampled; some context is, too."""
    rng = random.Random(seed + 1)
    paths = []
    for path in random_paths(seed, vocabulary=vocabulary):
        segments = [_sampled(rng, segment) for segment in path.all_segments]
        num_in_trunk = rng.randint(0, len(segments))
        trunk = None
        for segment in segments[:num_in_trunk]:
            trunk = Trunk(trunk, segment)
        tail = tuple(segments[num_in_trunk:])
        paths.append(Path(tail, path.coefficient, trunk, rng.choice(ADVANTAGES)))
    return paths


def sampled_tokens(path: Path) -> list[Token]:
    """The path's tokens as comparable values: ("t", id, log-probability or None) or vision."""
    ids, frame, patch, _, log_probs = path.tokens()
    found: list[Token] = []
    for i in range(len(ids)):
        if frame[i] >= 0:
            found.append(("v", int(frame[i]), int(patch[i])))
        else:
            is_absent = log_probs is None or np.isnan(log_probs[i])
            found.append(("t", int(ids[i]), None if is_absent else float(log_probs[i])))
    return found


def expected_sums(paths: list[Path]) -> dict[tuple[Token, ...], tuple[float, float, float]]:
    """Prefix -> sums of c, c max(A, 0) and c min(A, 0) over the paths that supervise its end."""
    sums: dict[tuple[Token, ...], tuple[float, float, float]] = {}
    for path in paths:
        tokens, flags = sampled_tokens(path), path.tokens().is_supervised
        c, a = path.coefficient, path.advantage
        for i in np.flatnonzero(flags):
            prefix = tuple(tokens[: i + 1])
            plain, positive, negative = sums.get(prefix, (0.0, 0.0, 0.0))
            sums[prefix] = (plain + c, positive + c * max(a, 0.0), negative + c * min(a, 0.0))
    return sums


def _sampled(rng: random.Random, segment: Segment) -> Segment:
    if len(segment) and segment.frame_index[0] >= 0:
        return Segment(segment.token_ids, segment.frame_index, segment.patch_index)
    if not segment.is_supervised and rng.random() < 0.8:
        return segment
    # Mostly the same for the same id, so that sampled tokens still merge.
    log_probs = [
        LOG_PROBS[token % len(LOG_PROBS)] if rng.random() < 0.8 else rng.choice(LOG_PROBS)
        for token in segment.token_ids.tolist()
    ]
    return Segment(
        segment.token_ids,
        segment.frame_index,
        segment.patch_index,
        segment.is_supervised,
        np.array(log_probs, dtype=np.float32),
    )
