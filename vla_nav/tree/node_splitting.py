"""Cutting long nodes into unary chains, so that a partition can end inside them.

    nodes   [r a b c d] - [x]          split_long_nodes(tree, max_tokens=2)
                  |                    [r a] - [b c] - [d] - [x]
                 [y]                                    |
                                                       [y]

Only the list of nodes changes: tokens, positions, `subtree_end`, targets, predictors, weights and
paths are those of the tree given, since all of them speak of tokens. A node is cut into the fewest
pieces possible, and these differ by at most one token.

Axis legend: N nodes before, P pieces after.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vla_nav.tree.prefix_tree import PrefixTree


def split_long_nodes(tree: PrefixTree, max_tokens: int) -> PrefixTree:
    """`tree` with nodes of at most `max_tokens` tokens; the tree itself where none is longer.

    Raises `ValueError` for `max_tokens` below 1.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
    lengths = np.diff(tree.node_start)
    if int(lengths.max()) <= max_tokens:
        return tree
    num_pieces = -(-lengths // max_tokens)  # (N,)
    last = np.cumsum(num_pieces) - 1  # (N,) the last piece of each node
    first = last - num_pieces + 1
    node = np.repeat(np.arange(tree.num_nodes), num_pieces)  # (P,)
    within = np.arange(len(node)) - first[node]
    starts = tree.node_start[node] + lengths[node] * within // num_pieces[node]
    above = tree.node_parent[node]
    parent = np.where(above >= 0, last[above], -1)
    opens = within == 0
    return replace(
        tree,
        node_start=np.append(starts, tree.num_tokens),
        node_parent=np.where(opens, parent, np.arange(len(node)) - 1),
        path_node=last[tree.path_node],
    )
