"""Random sets of paths: trees of depth 0-6, 1-token nodes, unary chains, K = 1, forests, equal
paths, paths that end at inner nodes, text and vision tokens; segments shared or copied.

The definitions here are set-based and share nothing with the packer: a tree token *is* a distinct
prefix of the paths, an ancestor is a prefix of a prefix.
"""

from __future__ import annotations

import random

from hypothesis import strategies as st

from vla_nav.tree import Path, Segment, Trunk
from vla_nav.tree.types import text_segment

Token = tuple  # ("t", id) or ("v", frame, patch)


def random_paths(seed: int, *, first_supervised: int = 1, vocabulary: int = 3) -> list[Path]:
    """Paths along a random tree; few token ids, so that branches also merge by chance."""
    rng = random.Random(seed)
    depth = rng.randint(0, 6)
    roots = [_node(rng, depth, vocabulary) for _ in range(rng.choice([1, 1, 1, 2]))]
    chains = [chain for root in roots for chain in _chains(root, ())]
    ends = [chain for chain in chains if len(chain) and rng.random() < 0.6] or [chains[0]]
    ends += [rng.choice(ends) for _ in range(rng.choice([0, 0, 1]))]  # equal paths count twice
    paths = []
    for number, chain in enumerate(ends):
        coefficient = rng.choice([1.0, 1.0, 0.5, -2.0])
        paths.append(_path(rng, chain, number, coefficient, first_supervised))
    rng.shuffle(paths)
    return paths


def seeds() -> st.SearchStrategy[int]:
    """Seeds for `random_paths`."""
    return st.integers(0, 2**32 - 1)


def token_list(path: Path) -> list[Token]:
    """The path's tokens as comparable values."""
    tokens = path.tokens()
    return [
        ("t", int(i)) if f < 0 else ("v", int(f), int(p))
        for i, f, p in zip(tokens.token_ids, tokens.frame_index, tokens.patch_index, strict=True)
    ]


def expected_weights(paths: list[Path]) -> dict[tuple[Token, ...], float]:
    """Prefix -> sum of the coefficients of the paths that supervise its last token."""
    weights: dict[tuple[Token, ...], float] = {}
    for path in paths:
        tokens, flags = token_list(path), path.tokens().is_supervised
        for i, flag in enumerate(flags):
            if flag:
                prefix = tuple(tokens[: i + 1])
                weights[prefix] = weights.get(prefix, 0.0) + path.coefficient
    return weights


def _node(rng: random.Random, depth: int, vocabulary: int) -> tuple[Segment, list]:
    length = rng.choice([1, 1, 2, 3, 5])
    if rng.random() < 0.3:
        frame, first = rng.randint(0, 2), rng.randint(0, 2)
        ids = [0] * length
        segment = Segment(
            *(
                text_segment(ids).token_ids,
                text_segment([frame] * length).token_ids.astype("int32"),
                text_segment(range(first, first + length)).token_ids.astype("int32"),
            )
        )
    else:
        segment = text_segment([rng.randrange(vocabulary) for _ in range(length)])
    if depth == 0:
        return segment, []
    return segment, [_node(rng, depth - 1, vocabulary) for _ in range(rng.choice([1, 1, 2, 3]))]


def _chains(node: tuple[Segment, list], before: tuple[Segment, ...]) -> list[tuple[Segment, ...]]:
    chain = (*before, node[0])
    found = [chain]
    for child in node[1]:
        found += _chains(child, chain)
    return found


def _path(
    rng: random.Random, chain: tuple[Segment, ...], number: int, coefficient: float, first: int
) -> Path:
    """The chain as a path: pieces shared, copied or cut anew, some of them supervised."""
    segments: list[Segment] = []
    position = 0
    for segment in chain:
        if rng.random() < 0.5:
            pieces = [segment]
        else:
            cut = rng.randint(0, len(segment))
            pieces = [_part(segment, 0, cut), _part(segment, cut, len(segment))]
        for piece in pieces:
            if position >= first and rng.random() < 0.5:
                piece = Segment(piece.token_ids, piece.frame_index, piece.patch_index, True)
            segments.append(piece)
            position += len(piece)
    num_in_trunk = rng.randint(0, len(segments))
    trunk = None
    for segment in segments[:num_in_trunk]:
        trunk = Trunk(trunk, segment)
    return Path(tuple(segments[num_in_trunk:]), coefficient, trunk)


def _part(segment: Segment, start: int, stop: int) -> Segment:
    return Segment(
        segment.token_ids[start:stop],
        segment.frame_index[start:stop],
        segment.patch_index[start:stop],
    )
