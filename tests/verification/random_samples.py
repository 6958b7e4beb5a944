"""Random trees of a named kind: what the proofs are run on.

    bushy          1-3 children, nodes of 1-4 tokens
    unary          one child each: a chain on which several paths end
    single tokens  every node is one token
    one path       K = 1
    no history     nothing is shared: every path is its own frame and its own label
    merging        few token ids and pieces cut anew, so that branches merge by chance

depth 0-6 counts the nodes above the deepest one. A sample is one tree; two samples are a forest.
"""

from __future__ import annotations

import random

import torch
from hypothesis import strategies as st

from tests.tree.random_paths import random_paths
from tests.verification.tiny_models import FEATURES, features
from vla_nav.tree import Path, Segment, frame_segment, text_segment
from vla_nav.verification import Sample

KINDS = ("bushy", "unary", "single tokens", "one path", "no history", "merging")
NUM_FRAMES = 3
NUM_PATHS = 6  # the flat side runs every path by itself
_TEXT_IDS = range(30)
_PLACEHOLDER = 39


def samples(*, max_trees: int = 2, is_signed: bool = False) -> st.SearchStrategy[list[Sample]]:
    """One to `max_trees` samples of any kinds. is_signed: some coefficients are negative."""
    one = st.builds(
        sample,
        st.sampled_from(KINDS),
        st.integers(0, 6),
        st.integers(0, 2**16),
        is_signed=st.just(is_signed),
    )
    return st.lists(one, min_size=1, max_size=max_trees)


class Named(Sample):
    """A sample that prints as the call that makes it."""

    call: str

    def __repr__(self) -> str:
        return self.call


def sample(kind: str, depth: int, seed: int, *, is_signed: bool = False) -> Named:
    """The tree of a kind, depth and seed, with random features."""
    rng = random.Random(f"{kind} {depth} {seed}")
    if kind == "merging":
        paths = [_with_a_target(path) for path in random_paths(seed, vocabulary=5)[:NUM_PATHS]]
    elif kind == "no history":
        chains = [(_node(rng, 4, vision=0.5),) for _ in range(rng.randint(1, NUM_PATHS))]
        paths = [_path(rng, chain, 1.0) for chain in chains]
    else:
        longest = 1 if kind == "single tokens" else 4
        children = {"unary": (1,), "one path": (1,)}.get(kind, (1, 1, 2, 3))
        chains = _chains(rng, depth, longest, children)
        num = 1 if kind == "one path" else min(NUM_PATHS, len(chains))
        kept = [chains[-1], *rng.sample(chains[:-1], num - 1)]
        paths = [_path(rng, chain, rng.choice((1.0, 1.0, 0.5))) for chain in kept]
        if num > 1 and rng.random() < 0.3:
            paths[-1] = paths[0]  # equal paths count twice
    signs = (1.0, -1.5) if is_signed else (1.0,)
    paths = [
        Path(path.segments, abs(path.coefficient) * rng.choice(signs), path.trunk) for path in paths
    ]
    made = Named(tuple(paths), features(NUM_FRAMES, seed))
    assert made.frames.shape[-1] == FEATURES
    sign = ", is_signed=True" if is_signed else ""
    object.__setattr__(made, "call", f"sample({kind!r}, {depth}, {seed}{sign})")
    return made


def in_dtype(made: list[Sample], dtype: torch.dtype) -> list[Sample]:
    """The same paths with features in `dtype`."""
    return [Sample(one.paths, one.frames.to(dtype)) for one in made]


def _chains(
    rng: random.Random, depth: int, longest: int, children: tuple[int, ...]
) -> list[tuple[Segment, ...]]:
    """Every root-to-node chain of a random tree whose last chain is a deepest one."""
    chains: list[tuple[Segment, ...]] = []
    level = [(_node(rng, longest, vision=0.0),)]
    for _ in range(depth):
        chains += level
        level = [
            (*chain, _node(rng, longest, vision=0.3))
            for chain in rng.sample(level, min(len(level), 3))
            for _ in range(rng.choice(children))
        ]
    return chains + level


def _node(rng: random.Random, longest: int, *, vision: float) -> Segment:
    length = rng.randint(1, longest)
    if rng.random() < vision:
        return frame_segment(
            _PLACEHOLDER, rng.randrange(NUM_FRAMES), length, first=rng.randint(0, 2)
        )
    return text_segment([rng.choice(_TEXT_IDS) for _ in range(length)])


def _path(rng: random.Random, chain: tuple[Segment, ...], coefficient: float) -> Path:
    """The chain with some text behind its first node supervised, and a label behind it or not."""
    segments = [chain[0]]
    for segment in chain[1:]:
        is_text = bool((segment.frame_index < 0).all())
        segments.append(_supervised(segment) if is_text and rng.random() < 0.4 else segment)
    if rng.random() < 0.7 or not any(segment.is_supervised for segment in segments):
        ids = [rng.choice(_TEXT_IDS) for _ in range(rng.randint(1, 3))]
        segments.append(text_segment(ids, is_supervised=True))
    return Path(tuple(segments), coefficient)


def _with_a_target(path: Path) -> Path:
    if path.tokens().is_supervised.any():
        return path
    label = text_segment([7], is_supervised=True)
    return Path((*path.segments, label), path.coefficient, path.trunk)


def _supervised(segment: Segment) -> Segment:
    return text_segment(segment.token_ids, is_supervised=True)
