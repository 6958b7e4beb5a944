"""Packs of odd sizes for the attention tests."""

from __future__ import annotations

from functools import cache

import torch

from tests.tree.episodes import token_episode
from tests.tree.random_paths import random_paths
from vla_nav.tree import Layout, PackedTree, Path, PrefixTree, pack, paths_of, text_segment

SIZES = (1, 63, 97, 130)
LAYOUTS = [(h, a) for h in ("full", "pooled") for a in ("hidden", "visible")]


def chain(length: int) -> PrefixTree:
    """One path of `length` tokens."""
    return PrefixTree.from_paths([Path((text_segment(range(length)),))])


def caterpillar(num_steps: int, history: str, actions: str, *, seed: int = 0) -> PrefixTree:
    """The tree of a token episode."""
    episode = token_episode(num_steps, seed=seed, full=9, pooled=3)
    return PrefixTree.from_paths(paths_of(episode, Layout(history, actions)))


def random_pack(seed: int, num_trees: int, padding: int = 0) -> PackedTree:
    """A forest of random trees with padding behind it."""
    trees = [PrefixTree.from_paths(random_paths(seed + i), num_frames=3) for i in range(num_trees)]
    return pack(trees, pad_to=sum(tree.num_tokens for tree in trees) + padding)


def random_trees(size: int, seed: int) -> list[PrefixTree]:
    """Random trees, as many of 50 as fit into `size` tokens."""
    trees: list[PrefixTree] = []
    for i in range(50):
        if size < 5:
            break
        tree = PrefixTree.from_paths(random_paths(seed + i), num_frames=3)
        if tree.num_tokens <= size:
            trees.append(tree)
            size -= tree.num_tokens
    return trees


@cache
def padded_to(size: int, seed: int) -> PackedTree:
    """Random trees, as many as fit, padded to exactly `size` tokens."""
    return pack(random_trees(size, seed) or [chain(1)], pad_to=size)


def random_qkv(
    packed: PackedTree, *, heads: int = 4, kv_heads: int = 2, dim: int = 8, batch: int = 1
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v with gradients and an output gradient, float64; keys of the prefix first."""
    generator = torch.Generator().manual_seed(len(packed.token_ids))
    num_tokens, num_prefix = len(packed.subtree_end), len(packed.prefix_end)
    q, k, v, grad = (
        torch.randn(batch, length, h, dim, dtype=torch.float64, generator=generator)
        for length, h in (
            (num_tokens, heads),
            (num_prefix + num_tokens, kv_heads),
            (num_prefix + num_tokens, kv_heads),
            (num_tokens, heads),
        )
    )
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), grad


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    """||a - b|| / ||b||; absolute below 1e-2 (dq of a query with one key is zero)."""
    return float((a - b).detach().norm() / b.detach().norm().clamp_min(1e-2))
