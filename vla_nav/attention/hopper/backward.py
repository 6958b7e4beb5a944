"""The backward kernel with tiles of keys that are split over query heads, or merged (`tables.py`).

    program of a split tile     one query head; dK and dV are added to the accumulators' slot
    program of a merged tile    every query head of the key head, one after another: all partial
                                blocks, then all full ones; dK and dV are written as they are

Loads, products and stores of dQ walk through the same blocks in the same order, each in its own
warps: the three loops below belong together. Everything else is the package's own kernel.

Axis legend: B batch (1), Q own tokens, K joint keys, H query heads, Hkv key heads, D head dim.
"""

import inspect
from functools import partial
from typing import Any

import cutlass
from cutlass import Float32, Int32, const_expr, cute
from cutlass.pipeline import PipelineUserType, make_pipeline_state
from flash_attn.cute.block_sparse_utils import _load_q_do_block_sm90, _store_one_dQaccum_sm90
from flash_attn.cute.flash_bwd_sm90 import FlashAttentionBackwardSm90
from quack import copy_utils

_NUM_THREADS = 128  # of a warp group


class TreeBackward(FlashAttentionBackwardSm90):
    """For grouped heads (G > 1). aux_data.tensors: spans (K,), dK and dV (B, K, Hkv, D);
    blocksparse_tensors.cu_block_idx_offsets: slots (J,)."""

    def mma(self, *arguments: Any, **keywords: Any) -> None:
        """The package's, whose epilogue then finds what it is not handed."""
        bound = inspect.signature(FlashAttentionBackwardSm90.mma).bind(self, *arguments, **keywords)
        self._given = bound.arguments
        FlashAttentionBackwardSm90.mma(self, *arguments, **keywords)

    @cute.jit
    def load(
        self,
        mQ,
        mK,
        mV,
        mdO,
        mLSE,
        mdPsum,
        sQ,
        sK,
        sV,
        sdO,
        sLSE,
        sdPsum,
        tma_atom_Q,
        tma_atom_K,
        tma_atom_V,
        tma_atom_dO,
        pipeline_Q,
        pipeline_dO,
        block_info,
        SeqlenInfoCls,
        TileSchedulerCls,
        blocksparse_tensors=None,
        qhead_per_kvhead_divmod=None,
    ):
        """Keys and values once, then queries and output gradients of every head and block."""
        n_block, head, _, _ = TileSchedulerCls().initial_work_tile_info().tile_idx
        row = _Row(blocksparse_tensors, n_block)
        key_head = head // self.qhead_per_kvhead
        single = cute.make_layout(1)
        copies = []
        for atom, tensor, stage, width in (
            (tma_atom_K, mK, sK, self.tile_hdim),
            (tma_atom_V, mV, sV, self.tile_hdimv),
        ):
            tile = cute.local_tile(
                tensor[None, None, key_head, 0], (self.tile_n, width), (n_block, 0)
            )
            copies.append(
                copy_utils.tma_get_copy_fn(atom, 0, single, tile, stage, single_stage=True)[0]
            )
        for atom, tensor, stage, width, pipeline in (
            (tma_atom_Q, mQ, sQ, self.tile_hdim, pipeline_Q),
            (tma_atom_dO, mdO, sdO, self.tile_hdimv, pipeline_dO),
        ):
            tile = cute.local_tile(
                tensor[None, None, None, 0], (self.tile_m, width), (None, 0, None)
            )
            tile = cute.group_modes(tile, 2, 4)  # rows, width, (block, head)
            copy = copy_utils.tma_get_copy_fn(atom, 0, single, tile, stage)[0]
            copies.append(copy_utils.tma_producer_copy_fn(copy, pipeline))
        for tensor, stage, pipeline in ((mLSE, sLSE, pipeline_Q), (mdPsum, sdPsum, pipeline_dO)):
            tile = cute.local_tile(tensor[None, None, 0], (self.tile_m,), (None, None))
            tile = cute.group_modes(tile, 1, 3)  # rows, (block, head)
            copy = copy_utils.cpasync_bulk_get_copy_fn(tile, stage)
            copies.append(copy_utils.tma_producer_copy_fn(copy, pipeline))
        load_K, load_V, load_Q, load_dO, load_LSE, load_dPsum = copies
        state_Q = make_pipeline_state(PipelineUserType.Producer, self.Q_stage)
        state_dO = make_pipeline_state(PipelineUserType.Producer, self.dO_stage)
        is_first = True
        for is_full in cutlass.range_constexpr(2):
            blocks, count = row.blocks(is_full)
            for offset in cutlass.range(row.num_heads(self.qhead_per_kvhead), unroll=1):
                for i in cutlass.range(count, unroll=1):
                    state_Q, state_dO = _load_q_do_block_sm90(
                        (blocks[i], head + offset),
                        state_Q,
                        state_dO,
                        pipeline_Q,
                        pipeline_dO,
                        load_K,
                        load_V,
                        load_Q,
                        load_dO,
                        load_LSE,
                        load_dPsum,
                        self.tma_copy_bytes["K"],
                        self.tma_copy_bytes["V"],
                        Q_stage_eq_dO_stage=(self.Q_stage == self.dO_stage),
                        load_kv=is_first,
                    )
                    is_first = False

    @cute.jit
    def dQaccum_store(
        self,
        mdQaccum,
        sdQaccum,
        block_info,
        TileSchedulerCls,
        SeqlenInfoCls,
        blocksparse_tensors=None,
        mdQ_semaphore=None,
    ):
        """dQ of every head and block, added up in float32."""
        n_block, head, _, _ = TileSchedulerCls().initial_work_tile_info().tile_idx
        row = _Row(blocksparse_tensors, n_block)
        size = self.tile_m * self.tile_hdim // self.num_wg_dQ
        for is_full in cutlass.range_constexpr(2):
            blocks, count = row.blocks(is_full)
            for offset in cutlass.range(row.num_heads(self.qhead_per_kvhead), unroll=1):
                sums = cute.local_tile(
                    mdQaccum[None, head + offset, 0],
                    (cute.make_layout((size, self.num_wg_dQ)),),
                    (None,),
                )
                for i in cutlass.range(count, unroll=1):
                    _store_one_dQaccum_sm90(
                        blocks[i],
                        sdQaccum,
                        sums,
                        self.num_wg_dQ,
                        _NUM_THREADS,
                        self.tma_copy_bytes["dQ"],
                    )
        cute.arch.cp_async_bulk_wait_group(0, read=True)

    @cute.jit
    def epilogue_dKV(
        self,
        acc_dV,
        mdV,
        sV,
        acc_dK,
        mdK,
        sK,
        seqlen,
        tma_atom_dK,
        tma_atom_dV,
        tiled_mma_dK,
        tiled_mma_dV,
        tidx,
        n_block,
        head_idx,
        batch_idx,
        qhead_per_kvhead_divmod=None,
        mdK_semaphore=None,
        mdV_semaphore=None,
    ):
        """A split tile's sums to its slot; a merged tile's to dK and dV."""
        slot = self._given["blocksparse_tensors"].cu_block_idx_offsets[n_block]
        if slot >= 0:
            FlashAttentionBackwardSm90.epilogue_dKV(
                self,
                acc_dV,
                mdV,
                sV,
                acc_dK,
                mdK,
                sK,
                seqlen,
                tma_atom_dK,
                tma_atom_dV,
                tiled_mma_dK,
                tiled_mma_dV,
                tidx,
                slot,
                head_idx,
                batch_idx,
                qhead_per_kvhead_divmod,
                mdK_semaphore,
                mdV_semaphore,
            )
        else:
            _, dK, dV = self._given["aux_data"].tensors
            key_head = head_idx // self.qhead_per_kvhead
            for sums, output, product, width, scale in (
                (acc_dK, dK, tiled_mma_dK, self.tile_hdim, self._given["softmax_scale"]),
                (acc_dV, dV, tiled_mma_dV, self.tile_hdimv, Float32(1.0)),
            ):
                tile = cute.local_tile(
                    output[0, None, key_head, None], (self.tile_n, width), (n_block, 0)
                )
                place = product.get_slice(tidx).partition_C(tile)
                rounded = cute.make_rmem_tensor_like(sums, self.dtype)
                rounded.store((sums.load() * scale).to(self.dtype))
                cute.autovec_copy(rounded, place)


@cute.jit
def consume(
    blocksparse_tensors,
    batch_idx,
    head_idx,
    n_block,
    consumer_state_Q,
    consumer_state_dO,
    mma_one_m_block_fn,
    mask,
    mask_mod,
    is_causal,
    is_local,
    thr_mma_SdP,
    score_mod_fn=None,
    score_mod_bwd_fn=None,
    q_subtile_factor=1,
    m_block_max=0,
    aux_data=None,
    fastdiv_mods=None,
    *,
    group: cutlass.Constexpr[int],
):
    """The products of every head and block; in the place of `consume_block_sparse_mma_bwd_sm90`."""
    row = _Row(blocksparse_tensors, n_block)
    masked = partial(
        mask.apply_mask,
        batch_idx=batch_idx,
        head_idx=head_idx,
        n_block=n_block,
        thr_mma=thr_mma_SdP,
        mask_seqlen=False,
        mask_causal=False,
        mask_mod=mask_mod,
        aux_data=aux_data,
    )
    is_added = False
    for is_full in cutlass.range_constexpr(2):
        blocks, count = row.blocks(is_full)
        for _ in cutlass.range(row.num_heads(group), unroll=1):
            for i in cutlass.range(count, unroll=1):
                # Nothing but the mask asks which block it is.
                block = Int32(0) if const_expr(is_full) else blocks[i]
                consumer_state_Q, consumer_state_dO = mma_one_m_block_fn(
                    block,
                    consumer_state_Q,
                    consumer_state_dO,
                    mask_fn=None if const_expr(is_full) else masked,
                    dKV_accumulate=is_added,
                )
                is_added = True
    return consumer_state_Q, consumer_state_dO


class _Row:
    """The lists of one tile of keys; they are the same for every head."""

    def __init__(self, lists: Any, n_block: Int32) -> None:
        self._lists, self._n_block = lists, n_block

    def blocks(self, is_full: int) -> tuple[Any, Int32]:
        """Indices of its partial or full blocks of queries, and how many there are."""
        counts, indices = self._lists[2:4] if is_full else self._lists[:2]
        return indices[0, 0, self._n_block, None], counts[0, 0, self._n_block]

    def num_heads(self, group: int) -> Int32:
        """Query heads that its program goes through."""
        slot = self._lists.cu_block_idx_offsets[self._n_block]
        return cutlass.max(Int32(1), Int32(group) * Int32(slot < 0))
