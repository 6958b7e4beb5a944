"""Who sees whom: the one place to change the mask.

    pack         r  a  b  x  y          r - a - b - x      a query sees its ancestors and itself,
    index        0  1  2  3  4          |                  nobody else
    subtree_end  5  4  4  4  5          y

    visible(q, k)  <=>  k <= q < end[k]          end = subtree_end

         k: r a b x y
    q = r   #
        a   # #
        b   # # #
        x   # # # #
        y   #       #

One integer per key says everything; several trees in a pack are isolated for free, and padding
(subtree_end = own index + 1) sees itself only.

**Gateway keys.** A partition of a tree holds Q own tokens, and the keys of P ancestors that were
computed before: one chain, root first. Prefix token p is seen by the own rows 0 .. prefix_end[p]-1.
Prefix and own tokens in a row have one *joint index*, with which the rule stays what it is:

    the tree above, own tokens x, y; keys of r, a, b before them        prefix_end  2 1 1
    joint index  0  1  2 | 3  4                                         subtree_end 1 2
    end          5  4  4 | 4  5          = P + prefix_end | P + subtree_end

         k: r a b | x y
    q = x   # # # | #                    the queries are the joint rows P .. P+Q-1
        y   #     |   #

A padding key has prefix_end 0: nobody sees it. P = 0 is a whole pack.

Every backend evaluates `is_visible`; block lists (`blocks.py`) and the row plan of `row_jobs.py`
only decide where it has to be evaluated.

Axis legend: Q own tokens, P prefix tokens.
"""

from __future__ import annotations

from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch

from vla_nav.tree.types import BoolArray


@overload
def is_visible(q_idx: torch.Tensor, kv_idx: torch.Tensor, kv_end: torch.Tensor) -> torch.Tensor: ...
@overload
def is_visible(
    q_idx: npt.NDArray[np.integer],
    kv_idx: npt.NDArray[np.integer],
    kv_end: npt.NDArray[np.integer],
) -> BoolArray: ...
def is_visible(q_idx: Any, kv_idx: Any, kv_end: Any) -> Any:
    """Whether query `q_idx` sees key `kv_idx`; integer arrays or tensors that broadcast -> bool.

    Both are joint indices; kv_end: end[kv_idx].
    """
    return (kv_idx <= q_idx) & (q_idx < kv_end)


def joint_end(prefix_end: torch.Tensor, subtree_end: torch.Tensor) -> torch.Tensor:
    """`end` of prefix and own tokens: (P,), (Q,) -> (P+Q,), P larger than in own coordinates.

    >>> joint_end(torch.tensor([2, 1, 1]), torch.tensor([1, 2])).tolist()
    [5, 4, 4, 4, 5]
    """
    if len(prefix_end) == 0:
        return subtree_end
    return torch.cat([prefix_end, subtree_end]) + len(prefix_end)


def dense_mask(subtree_end: torch.Tensor, prefix_end: torch.Tensor | None = None) -> torch.Tensor:
    """(Q,), (P,) -> (Q, P+Q) bool, rows are queries. For the reference and for tests only."""
    end = subtree_end if prefix_end is None else joint_end(prefix_end, subtree_end)
    index = torch.arange(len(end), device=end.device)
    rows = index[len(end) - len(subtree_end) :]
    return is_visible(rows[:, None], index[None, :], end[None, :])
