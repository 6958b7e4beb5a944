"""Several trees in one packed sequence, isolated by `subtree_end` alone.

    tree 0      tree 1    padding
    r a b x y | r c d   | . . .            subtree_end of padding = own index + 1: it sees itself
    5 4 4 4 5 | 8 8 8   | 9 10 11          only, and nobody sees it

The packer only concatenates and shifts what each tree already holds: O(T) copies, no N x N.

Axis legend: T packed tokens (with padding), M targets, G trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from vla_nav.tree.heavy_paths import HeavyPaths, find_runs, heavy_paths
from vla_nav.tree.prefix_tree import PrefixTree


class PackedPolicy(NamedTuple):
    """Policy-gradient terms of the M targets, float32: sums of coefficient * advantage over the
    paths of positive and of negative advantage; log_probs of the sampling policy (NaN = absent)."""

    positive: torch.Tensor
    negative: torch.Tensor
    log_probs: torch.Tensor


@dataclass(frozen=True, eq=False)
class PackedTree:
    """What a model, an attention backend and a loss need of a pack; all tensors on one device.

    token_ids (T,) int64; position_ids (T,) int64, depth on the path; subtree_end (T,) int32,
    exclusive; frame_index (T,) int32, -1 = text, else a row of the pack's frame table (tree i's
    frames are rows frame_offset[i] .. frame_offset[i+1]-1); patch_index (T,) int32; vision_index
    (S,) int64, the tokens that show a frame, so that no device has to be asked where they are.
    target_index, predictor_index, target_ids, target_tree (M,) int64: target m is token
    target_index[m] with id target_ids[m] of tree target_tree[m], and hidden[predictor_index[m]]
    predicts it. loss_weights (M,) float32, without 1/K. num_paths (G,) int64.
    tree_start, frame_offset (G+1,) int64; num_tokens: tokens before padding; num_frames.
    policy: where every tree has advantages, else None. prefix_end (P,) int32: the gateway keys of a
    partition, key p is seen by own rows 0 .. prefix_end[p]-1; empty for a pack that is whole.
    heavy_paths: the order of recurrent layers.
    """

    token_ids: torch.Tensor
    position_ids: torch.Tensor
    subtree_end: torch.Tensor
    frame_index: torch.Tensor
    patch_index: torch.Tensor
    vision_index: torch.Tensor
    target_index: torch.Tensor
    predictor_index: torch.Tensor
    target_ids: torch.Tensor
    loss_weights: torch.Tensor
    target_tree: torch.Tensor
    num_paths: torch.Tensor
    tree_start: torch.Tensor
    frame_offset: torch.Tensor
    num_tokens: int
    num_frames: int
    heavy_paths: HeavyPaths
    policy: PackedPolicy | None = None
    prefix_end: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int32))

    @property
    def num_trees(self) -> int:
        """G."""
        return len(self.num_paths)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> PackedTree:
        """The same pack on `device`."""
        return self._map(lambda item: item.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> PackedTree:
        """The same pack in page-locked memory (called by the data loader)."""
        return self._map(lambda item: item.pin_memory())

    def _map(self, function: Any) -> PackedTree:
        tensors = {
            item.name: function(value)
            for item in fields(self)
            if isinstance(value := getattr(self, item.name), torch.Tensor)
        }
        policy = None if self.policy is None else PackedPolicy(*map(function, self.policy))
        return replace(self, **tensors, policy=policy, heavy_paths=function(self.heavy_paths))


def pack(trees: Sequence[PrefixTree], *, pad_to: int | None = None) -> PackedTree:
    """Concatenate `trees` in the given order; pad to `pad_to` tokens where it is given.

    Raises `ValueError` for no tree, a `pad_to` that the trees do not fit in, or trees of which only
    some have advantages.
    """
    if not trees:
        raise ValueError("a pack needs at least one tree")
    lengths = [tree.num_tokens for tree in trees]
    starts = np.cumsum([0, *lengths], dtype=np.int64)
    frames = np.cumsum([0, *(tree.num_frames for tree in trees)], dtype=np.int64)
    num_tokens = int(starts[-1])
    if pad_to is not None and pad_to < num_tokens:
        raise ValueError(f"pad_to is {pad_to}, but the trees have {num_tokens} tokens")
    if num_tokens >= 2**31 - 2**16:
        raise ValueError(f"a pack holds less than 2^31 tokens, got {num_tokens}")
    size = num_tokens if pad_to is None else pad_to

    # The first token of a tree is text or vision alike, so frames shift only where they are >= 0.
    frame_index = _fill([tree.frame_index for tree in trees], size, -1)
    frame_shift = np.repeat(frames[:-1].astype(np.int32), lengths)
    real = frame_index[:num_tokens]
    np.add(real, frame_shift, out=real, where=real >= 0)
    subtree_end = _fill([tree.subtree_end for tree in trees], size, 0)
    subtree_end[:num_tokens] += np.repeat(starts[:-1].astype(np.int32), lengths)
    subtree_end[num_tokens:] = np.arange(num_tokens + 1, size + 1, dtype=np.int32)

    token_ids = _fill([tree.token_ids for tree in trees], size, 0)
    num_targets = [len(tree.target_index) for tree in trees]
    target_shift = np.repeat(starts[:-1], num_targets)
    target_index = np.concatenate([tree.target_index for tree in trees]) + target_shift
    predictor_index = np.concatenate([tree.predictor_index for tree in trees]) + target_shift
    weights = np.concatenate([tree.loss_weights for tree in trees]).astype(np.float32)
    arrays: dict[str, npt.NDArray[Any]] = {
        "token_ids": token_ids,
        "position_ids": _fill([tree.position_ids for tree in trees], size, 0),
        "subtree_end": subtree_end,
        "frame_index": frame_index,
        "patch_index": _fill([tree.patch_index for tree in trees], size, -1),
        "vision_index": np.flatnonzero(real >= 0),
        "target_index": target_index,
        "predictor_index": predictor_index,
        "target_ids": token_ids[target_index],
        "loss_weights": weights,
        "target_tree": np.repeat(np.arange(len(trees), dtype=np.int64), num_targets),
        "num_paths": np.array([tree.num_paths for tree in trees], dtype=np.int64),
        "tree_start": starts,
        "frame_offset": frames,
    }
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return PackedTree(
        **tensors,
        num_tokens=num_tokens,
        num_frames=int(frames[-1]),
        heavy_paths=heavy_paths(
            find_runs(subtree_end[:num_tokens], arrays["position_ids"][:num_tokens])
        ),
        policy=_packed_policy(trees),
    )


def _packed_policy(trees: Sequence[PrefixTree]) -> PackedPolicy | None:
    parts = [tree.policy for tree in trees if tree.policy is not None]
    if parts and len(parts) < len(trees):
        raise ValueError(
            f"all trees of a pack have advantages or none has: {len(parts)} of {len(trees)} have"
        )
    if not parts:
        return None
    columns = [np.concatenate(column).astype(np.float32) for column in zip(*parts, strict=True)]
    if not all(np.isfinite(column).all() for column in columns[:2]):
        raise ValueError("coefficients times advantages must be finite in float32")
    return PackedPolicy(*map(torch.from_numpy, columns))


def _fill(parts: list[Any], size: int, padding: int) -> npt.NDArray[Any]:
    """The parts one behind the other in a fresh array (size,), the rest `padding`."""
    out = np.full(size, padding, dtype=parts[0].dtype)
    position = 0
    for part in parts:
        out[position : position + len(part)] = part
        position += len(part)
    return out
