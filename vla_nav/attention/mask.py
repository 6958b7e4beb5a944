"""Who sees whom: the one place to change the mask.

    pack         r  a  b  x  y          r - a - b - x      a query sees its ancestors and itself,
    index        0  1  2  3  4          |                  nobody else
    subtree_end  5  4  4  4  5          y

    visible(q, k)  <=>  k <= q < subtree_end[k]

         k: r a b x y
    q = r   #
        a   # #
        b   # # #
        x   # # # #
        y   #       #

One integer per key says everything; several trees in a pack are isolated for free, and padding
(subtree_end = own index + 1) sees itself only. Every backend evaluates `is_visible`; block lists
(`blocks.py`) and the row plan of `sdpa.py` only decide where it has to be evaluated.
"""

from __future__ import annotations

from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch

from vla_nav.tree.types import BoolArray


@overload
def is_visible(
    q_idx: torch.Tensor, kv_idx: torch.Tensor, kv_subtree_end: torch.Tensor
) -> torch.Tensor: ...
@overload
def is_visible(
    q_idx: npt.NDArray[np.integer],
    kv_idx: npt.NDArray[np.integer],
    kv_subtree_end: npt.NDArray[np.integer],
) -> BoolArray: ...
def is_visible(q_idx: Any, kv_idx: Any, kv_subtree_end: Any) -> Any:
    """Whether query `q_idx` sees key `kv_idx`; integer arrays or tensors that broadcast -> bool.

    kv_subtree_end: subtree_end[kv_idx].
    """
    return (kv_idx <= q_idx) & (q_idx < kv_subtree_end)


def dense_mask(subtree_end: torch.Tensor) -> torch.Tensor:
    """(T,) -> (T, T) bool, rows are queries. For the reference and for tests only."""
    index = torch.arange(len(subtree_end), device=subtree_end.device)
    return is_visible(index[:, None], index[None, :], subtree_end[None, :])
