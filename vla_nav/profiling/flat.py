"""The flat baseline: every path of the trees as its own sequence, packed to a token budget.

    tree        r - a - b       paths   r x | r a y | r a b z       one pack of three sequences,
                |   |   |                                           cu_lengths 0 2 5 9
                x   y   z

    path-mean loss of a tree = the same number: each path's loss / K of its tree

A strong baseline: the same model, loss and predictors, nothing padded, sequences of a pack kept
apart by variable-length causal attention. Frames are rows of one table shared by all packs, or, for
a vision tower that encodes the frames of every sample again, rows of the pack's own table.

Axis legend: T packed tokens, S sequences, F frames, H query heads, Hkv key/value heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from vla_nav.attention.causal import causal_varlen
from vla_nav.errors import UserError
from vla_nav.tree import PackedTree, PrefixTree, flatten, pack


@dataclass(frozen=True, eq=False)
class FlatPack:
    """Several flat paths in one sequence.

    packed: one chain per path; its frame_index counts rows of the table of all trees' frames.
    cu_lengths (S+1,) int32, max_length: where the paths begin, and the longest one.
    own_frames (F,) int64: rows of that table that this pack's paths show, a frame once per path;
    own_index (T,) int32: frame_index into these.
    """

    packed: PackedTree
    cu_lengths: Tensor
    max_length: int
    own_frames: Tensor
    own_index: Tensor

    @property
    def num_tokens(self) -> int:
        """T; nothing is padded."""
        return self.packed.num_tokens

    def to(self, device: torch.device | str) -> FlatPack:
        """The same pack on `device`."""
        return FlatPack(
            self.packed.to(device),
            self.cu_lengths.to(device),
            self.max_length,
            self.own_frames.to(device),
            self.own_index.to(device),
        )

    def with_own_frames(self) -> PackedTree:
        """The pack for features of `own_frames` alone."""
        return replace(self.packed, frame_index=self.own_index, num_frames=len(self.own_frames))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float) -> Tensor:
        """Causal attention within each path: q (1, T, H, D), k and v (1, T, Hkv, D)."""
        out = causal_varlen(q[0], k[0], v[0], self.cu_lengths, self.max_length, scale)
        return out[None]


def flat_packs(trees: Sequence[PrefixTree], budget: int) -> list[FlatPack]:
    """All paths of the trees in as few packs of at most `budget` tokens as first-fit by falling
    length finds. Raises `UserError` for a path that is longer."""
    tables = np.cumsum([0, *(tree.num_frames for tree in trees)])
    paths = [
        _FlatPath(
            PrefixTree.from_paths([path], num_frames=tree.num_frames),
            tree.num_paths,
            int(first_frame),
        )
        for tree, first_frame in zip(trees, tables, strict=False)
        for path in flatten(tree)
    ]
    paths.sort(key=lambda path: path.chain.num_tokens, reverse=True)
    if paths[0].chain.num_tokens > budget:
        raise UserError(
            f"budget={budget}: the longest path has {paths[0].chain.num_tokens} tokens; give a "
            "budget that holds it"
        )
    return [_flat_pack(part, int(tables[-1])) for part in _first_fit(paths, budget)]


@dataclass(frozen=True, slots=True, eq=False)
class _FlatPath:
    """A path as a tree of one chain, K of the tree it comes from, and that tree's first frame."""

    chain: PrefixTree
    num_paths: int
    first_frame: int


def _first_fit(paths: Sequence[_FlatPath], budget: int) -> list[list[_FlatPath]]:
    bins: list[list[_FlatPath]] = []
    room: list[int] = []
    for path in paths:
        length = path.chain.num_tokens
        fitting = next((i for i, left in enumerate(room) if left >= length), None)
        if fitting is None:
            bins.append([path])
            room.append(budget - length)
        else:
            bins[fitting].append(path)
            room[fitting] -= length
    return bins


def _flat_pack(paths: Sequence[_FlatPath], num_frames: int) -> FlatPack:
    chains = [path.chain for path in paths]
    packed = pack(chains)
    lengths = [chain.num_tokens for chain in chains]
    # Each chain counts its tree's frames, so `pack` gave every path a table of its own.
    shown = packed.frame_index.numpy()
    is_vision = shown >= 0
    offset = packed.frame_offset.numpy()[:-1]
    path_of = np.repeat(np.arange(len(paths)), lengths)
    first = np.array([path.first_frame for path in paths])
    common = np.where(is_vision, shown - offset[path_of] + first[path_of], -1).astype(np.int32)
    own_rows, own_index = np.unique(shown[is_vision], return_inverse=True)
    own = np.full(len(shown), -1, dtype=np.int32)
    own[is_vision] = own_index
    row_path = np.searchsorted(offset, own_rows, side="right") - 1
    return FlatPack(
        packed=replace(
            packed,
            frame_index=torch.from_numpy(common),
            num_frames=num_frames,
            num_paths=torch.tensor([path.num_paths for path in paths]),
        ),
        cu_lengths=torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32),
        max_length=max(lengths),
        own_frames=torch.from_numpy(own_rows - offset[row_path] + first[row_path]),
        own_index=torch.from_numpy(own),
    )
