"""The tree mask inside FlashAttention 4's backward kernel: one comparison per score.

With q and k in joint indices (`mask.py`), and span[k] = subtree_end[k] - k:

    visible(q, k)  <=>  k <= q < subtree_end[k]  <=>  0 <= q - k < span[k]
                   <=>  unsigned(q - k) < span[k]          a negative q - k is a huge number

    k        0  1  2  3  4          span 5 2 1 2 1: 1, 2 and 3, 4 are two branches of 0
    q - k    3  2  1  0 -1          of query q = 3
    visible  x  .  .  x  .

The kernel language compares signed numbers, so both sides have their sign bit flipped, which gives
the order of unsigned ones; the table of spans holds them flipped. (Subtracting 2**31 would not do:
the compiler takes additions not to overflow.)

A thread of a tile holds a few rows times a few columns of the scores; span is read once per key
that it holds, and q - k of all its scores is one difference plus constants. Full blocks run no code
at all: block lists never name one that is not seen as a whole, and lengths are whole blocks.

Source: the places of a thread's scores are those of the package's own `AttentionMask`, whose place
this class takes (`kernels.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional

import cutlass
from cutlass import Float32, Int32, const_expr, cute
from flash_attn.cute.utils import AuxData
from quack import layout_utils

from vla_nav.attention.hopper.tables import SIGN


@dataclass(frozen=True)
class KernelMask:
    """What a kernel builds in the place of the package's mask, by these names.

    tile_m, tile_n: rows and keys of a tile; swap_AB: its scores are transposed.
    """

    tile_m: cutlass.Constexpr[int]
    tile_n: cutlass.Constexpr[int]
    seqlen_info: Any
    window_size_left: Optional[Int32] = None  # noqa: UP045 - read by the compiler
    window_size_right: Optional[Int32] = None  # noqa: UP045
    qhead_per_kvhead_packgqa: cutlass.Constexpr[int] = 1
    swap_AB: cutlass.Constexpr[bool] = False


class TreeMask(KernelMask):
    """aux_data.tensors[0]: spans, int32, one per joint key."""

    @cute.jit
    def apply_mask(
        self,
        acc_S: cute.Tensor,
        batch_idx: Int32,
        head_idx: Int32,
        m_block: Int32,
        n_block: Int32,
        thr_mma: cute.TiledMma,
        mask_seqlen: cutlass.Constexpr[bool],
        mask_causal: cutlass.Constexpr[bool],
        mask_local: cutlass.Constexpr[bool] = False,
        mask_mod: cutlass.Constexpr[Optional[Callable]] = None,  # noqa: UP045
        aux_data: AuxData = AuxData(),  # noqa: B008 - a tuple
        fastdiv_mods: Any = (None, None),
    ) -> None:
        """Scores of a partial block (mask_mod is given) that are not visible become -inf."""
        if const_expr(mask_mod is not None):
            span = aux_data.tensors[0]
            tile = (self.tile_m, self.tile_n)
            places = cute.make_identity_tensor(tile[::-1] if self.swap_AB else tile)
            scores = layout_utils.reshape_acc_to_mn(acc_S, transpose=self.swap_AB)
            own, first = (
                layout_utils.reshape_acc_to_mn(some.partition_C(places), transpose=self.swap_AB)
                for some in (thr_mma, thr_mma.get_slice(0))
            )
            row, column = (1, 0) if const_expr(self.swap_AB) else (0, 1)
            # A thread's places are those of thread 0, which the compiler knows, and an offset.
            first_row = self.seqlen_info.seqlen_k - self.seqlen_info.seqlen_q
            q0 = first_row + m_block * self.tile_m + own[0][row]
            k0 = n_block * self.tile_n + own[0][column]
            distance = q0 - k0
            for c in cutlass.range_constexpr(cute.size(scores.shape[1])):
                k = const_expr(first[0, c][column] - first[0, 0][column])
                seen = Int32(span[k0 + k])
                for r in cutlass.range_constexpr(cute.size(scores.shape[0])):
                    q = const_expr(first[r, 0][row] - first[0, 0][row])
                    is_visible = ((distance + (q - k)) ^ SIGN) < seen
                    scores[r, c] = scores[r, c] if is_visible else -Float32.inf
