"""The forward kernel's loop over the blocks of a tile, and its mask of partial blocks (`bits.py`).

    tile      128 rows: the tokens of a block times the query heads that share a key head
    blocks    partial ones from the last to the first, then full ones; every tile has a partial one
              (its diagonal), so the first block is always masked

The loads of the package walk through the lists in the same order.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Optional

import cutlass
from cutlass import Int32, Uint32, const_expr, cute
from flash_attn.cute.mask import mask_r2p_lambda
from flash_attn.cute.utils import AuxData
from quack import layout_utils

from vla_nav.attention.hopper.mask import KernelMask


class BitMask(KernelMask):
    """`n_block` is the entry of the block in the lists. aux_data.tensors[0]: words (E, 128, 4)."""

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
        """Scores whose bit is not set become -inf."""
        words = aux_data.tensors[0]
        places = cute.make_identity_tensor((self.tile_m, self.tile_n))
        scores = layout_utils.reshape_acc_to_mn(acc_S)
        own = layout_utils.reshape_acc_to_mn(thr_mma.partition_C(places))
        lane = own[0, 0][1] // 2
        for r in cutlass.range_constexpr(cute.size(scores.shape[0])):
            word = Uint32(words[n_block, own[r, 0][0], lane])
            mask_r2p_lambda(scores[r, None], lambda _, word=word: word, rank1=True)


@cute.jit
def consume(
    blocksparse_tensors,
    batch_idx,
    head_idx,
    m_block,
    seqlen_info,
    kv_consumer_state,
    mma_pv_fn,
    mma_one_n_block,
    process_first_half_block,
    process_last_half_block,
    mask_fn,
    score_mod_fn,
    O_should_accumulate,
    mask_mod,
    fastdiv_mods,
    intra_wg_overlap: cutlass.Constexpr,
    warp_scheduler_barrier_sync,
    warp_scheduler_barrier_arrive,
    qhead_per_kvhead: cutlass.Constexpr[int] = 1,
    q_subtile_factor: cutlass.Constexpr[int] = 1,
):
    """In the place of `consume_block_sparse_loads`: partial blocks are named by their entry."""
    assert const_expr(intra_wg_overlap)
    num_partial = blocksparse_tensors.mask_block_cnt[0, 0, m_block]
    num_full = blocksparse_tensors.full_block_cnt[0, 0, m_block]
    last_entry = blocksparse_tensors.cu_block_idx_offsets[m_block] + num_partial - 1
    kv_consumer_state = process_first_half_block(
        n_block=last_entry,
        seqlen=seqlen_info,
        kv_consumer_state=kv_consumer_state,
        mask_fn=mask_fn,
        is_first_block=True,
    )
    for i in cutlass.range(1, num_partial):
        kv_consumer_state = mma_one_n_block(
            kv_consumer_state,
            n_block=last_entry - i,
            seqlen=seqlen_info,
            mma_pv_fn=partial(mma_pv_fn, zero_init=not O_should_accumulate),
            mask_fn=partial(mask_fn, mask_seqlen=False),
        )
        O_should_accumulate = True
    for _ in cutlass.range(num_full):
        kv_consumer_state = mma_one_n_block(
            kv_consumer_state,
            n_block=Int32(0),
            seqlen=seqlen_info,
            mma_pv_fn=partial(mma_pv_fn, zero_init=not O_should_accumulate),
        )
        O_should_accumulate = True
    kv_consumer_state = process_last_half_block(
        kv_consumer_state=kv_consumer_state, zero_init=not O_should_accumulate
    )
    return kv_consumer_state, True, True


@cute.jit
def list_row(m_block, qhead_per_kvhead, q_subtile_factor):
    """In the place of `sparse_tensor_m_block`: every tile has a row of its own in the lists."""
    return m_block
