"""Packs and partitions filled up to whole blocks, for kernels that work in blocks of 128.

    keys   . . p p p p | r r r r .         the prefix is filled up in front, own tokens behind
    rows               | r r r r .         end = 0 before the prefix: a filling key nobody sees

Axis legend: B batch, Q own tokens, P prefix tokens, K joint keys, D head dim.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import pad

from vla_nav.tree.packing import PackedTree
from vla_nav.tree.types import Int32Array

BLOCK_SIZE = 128


def num_blocks(num_tokens: int) -> int:
    """Blocks that hold `num_tokens`."""
    return -(-num_tokens // BLOCK_SIZE)


def whole_blocks(num_tokens: int) -> int:
    """`padded_length` and `padded_prefix` of kernels that take any number of blocks."""
    return num_blocks(num_tokens) * BLOCK_SIZE


def joint_ends(packed: PackedTree) -> tuple[Int32Array, int]:
    """Subtree ends (K,) of all keys in joint indices, and the joint index of row 0."""
    num_tokens, num_prefix = len(packed.subtree_end), len(packed.prefix_end)
    first_row = whole_blocks(num_prefix)
    size = first_row + whole_blocks(num_tokens)
    end = np.arange(1, size + 1, dtype=np.int32)
    end[: first_row - num_prefix] = 0
    end[first_row - num_prefix : first_row] = packed.prefix_end.numpy() + first_row
    end[first_row : first_row + num_tokens] = packed.subtree_end.numpy() + first_row
    return end, first_row


def filled_up(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, num_prefix: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q (B, Q, ...), k and v (B, P + Q, ...) with zeros up to whole blocks; the same tensors where
    the caller's padding has done it."""
    length = q.shape[1]
    behind, before = whole_blocks(length) - length, whole_blocks(num_prefix) - num_prefix
    if behind:
        q = pad(q, (0, 0, 0, 0, 0, behind))
    if behind or before:
        k, v = (pad(x, (0, 0, 0, 0, before, behind)) for x in (k, v))
    return q, k, v
