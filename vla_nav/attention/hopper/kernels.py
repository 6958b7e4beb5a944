"""FlashAttention 4's Hopper kernels over a block-sparse tree: compiled once per head shape.

    forward    q, k, v                  -> out, lse
    backward   q, k, v, out, lse, dout  -> dq, dk, dv
               rows of out * dout; dq in float32 by atomic adds, dk and dv likewise with grouped
               heads; then one cast each

The package's classes are built here and not through its `flash_attn_func`, because some of their
parts are ours: the masks (`mask.py`, `bits.py`), the order of tiles (`scheduler.py`) and the loops
over blocks (`forward.py`, `backward.py`). They are put in by name while a kernel is compiled; the
package is pinned, and `parity.py` holds every head shape to the reference before a run.

Axis legend: B batch (1), Q own tokens, K joint keys, H query heads, Hkv key heads, D head dim;
Jq blocks of queries, Jk of keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from cutlass import BFloat16, Float16, cute
from flash_attn.cute import block_sparse_utils, flash_bwd_sm90, flash_fwd_sm90, interface
from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch, to_cute_block_sparse_tensors
from flash_attn.cute.cute_dsl_utils import to_cute_aux_tensor, to_cute_tensor
from flash_attn.cute.utils import AuxData

from vla_nav.attention.hopper.backward import TreeBackward
from vla_nav.attention.hopper.backward import consume as backward_loop
from vla_nav.attention.hopper.forward import BitMask, list_row
from vla_nav.attention.hopper.forward import consume as forward_loop
from vla_nav.attention.hopper.mask import TreeMask
from vla_nav.attention.hopper.scheduler import OrderedScheduler
from vla_nav.attention.hopper.tables import packed_rows

_DTYPES = {torch.bfloat16: BFloat16, torch.float16: Float16}
_ARCH = 90


class Lists(NamedTuple):
    """Partial and full blocks of every row, and the order of tiles: counts (1, H, J) and indices
    (1, H, J, width) int32; items int32 (`tables.py`). slots (J,) int32: of the backward pass'
    accumulators, or the first entry of a forward tile's partial blocks (`bits.py`)."""

    partial_counts: torch.Tensor
    partial: torch.Tensor
    full_counts: torch.Tensor
    full: torch.Tensor
    items: torch.Tensor
    slots: torch.Tensor

    @property
    def sparse(self) -> BlockSparseTensorsTorch:
        """As the package takes them while compiling."""
        return BlockSparseTensorsTorch(*self[:4], cu_block_idx_offsets=self.slots)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """As a compiled kernel takes them."""
        return (*self[:4], None, self.slots, None, None)


class Tiles(NamedTuple):
    """Rows and keys of a tile, forward and backward; the lists' block sizes."""

    forward: tuple[int, int]
    backward: tuple[int, int]


def tiles(head_dim: int) -> Tiles:
    """What fits into shared memory and registers."""
    return Tiles((128, 128), (64, 128)) if head_dim <= 128 else Tiles((128, 64), (64, 64))


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bits: torch.Tensor,
    lists: Lists,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, Q, H, D), k and v (B, K, Hkv, D), bfloat16 or float16 -> out (B, Q, H, D) and the
    softmax's lse (B, H, Q) float32. Q and K are whole blocks; bits (E, 128, 4) int32."""
    batch, length, heads, _ = q.shape
    out = torch.empty_like(q)
    lse = torch.empty(batch, heads, length, dtype=torch.float32, device=q.device)
    kernel = _forward_kernel(*_key(q, k), lambda: (q, k, v, out, lse, bits, lists))
    if not interface.is_fake_mode():
        kernel(
            q, k, v, out, lse, scale, *(None,) * 8, lists.arguments, AuxData((bits,), None),
            lists.items, None,
        )  # fmt: skip
    return out, lse


def backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    dout: torch.Tensor,
    span: torch.Tensor,
    lists: Lists,
    split: torch.Tensor | int,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of q, k and v, each laid out like it. lists: rows are blocks of keys. split: the
    tiles that have a slot, (S,) int64, or their number where they are the first ones."""
    config = _backward_config(q.shape[-1])
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    num_slots = split if isinstance(split, int) else len(split)
    wide = _Accumulators.of(q, k, num_slots, config)
    dtype, head_dim = _DTYPES[q.dtype], q.shape[-1]
    interface._bwd_preprocess(
        out, dout, wide.row_sum, lse, wide.lse_log2, wide.dq, None, None, None,
        dtype, head_dim, head_dim, config.m_block_size, fake_mode=interface.is_fake_mode(),
    )  # fmt: skip
    kernel = _backward_kernel(*_key(q, k), lambda: (q, k, v, dout, wide, dk, dv, span, lists))
    is_grouped = wide.dk is not None
    sums = (wide.dk, wide.dv) if is_grouped else (dk, dv)
    if not interface.is_fake_mode():
        kernel(
            q, k, v, dout, wide.lse_log2, wide.row_sum, wide.dq, *sums, scale, *(None,) * 9,
            AuxData((span, dk, dv) if is_grouped else (span,), None), lists.arguments, lists.items,
        )  # fmt: skip
    threads = config.num_wg * 128
    _cast(wide.dq, dq, scale, config.m_block_size, 128 if config.dQ_single_wg else threads,
          config.AtomLayoutMdQ, config.dQ_swapAB)  # fmt: skip
    if is_grouped and num_slots:
        layout = (config.n_block_size, threads, config.AtomLayoutNdKV, config.dKV_swapAB)
        for accumulator, output, factor in ((wide.dk, dk, scale), (wide.dv, dv, 1.0)):
            assert accumulator is not None
            slots = output[:, : num_slots * config.n_block_size]
            if isinstance(split, int):
                _cast(accumulator, slots, factor, *layout)
            else:
                slots = torch.empty_like(slots)
                _cast(accumulator, slots, factor, *layout)
                by_tile, found = (  # four values at a time: the copy's kernel goes by elements
                    x.view(torch.int64).unflatten(1, (-1, config.n_block_size))
                    for x in (output, slots)
                )
                by_tile.index_copy_(1, split, found)
    return dq, dk, dv


class _Accumulators(NamedTuple):
    """float32: sums of the gradients in the kernels' own layout, and two numbers of every row.
    dk and dv: of the tiles that have a slot; None where every key head has one query head."""

    dq: torch.Tensor
    row_sum: torch.Tensor
    lse_log2: torch.Tensor
    dk: torch.Tensor | None
    dv: torch.Tensor | None

    @staticmethod
    def of(
        q: torch.Tensor, k: torch.Tensor, num_slots: int, config: interface.BwdConfig
    ) -> _Accumulators:
        (batch, num_rows, heads, dim), kv_heads = q.shape, k.shape[2]
        multiple = 64 if config.dKV_swapAB else 32
        width = -(-dim // multiple) * multiple
        rows = (batch, heads, num_rows)
        dk = dv = None
        if heads != kv_heads:
            # One at least: a kernel's arguments are never empty.
            size = max(num_slots, 1) * config.n_block_size * width
            dk, dv = q.new_zeros(2, batch, kv_heads, size, dtype=torch.float32).unbind()
        return _Accumulators(
            q.new_empty(batch, heads, num_rows * width, dtype=torch.float32),
            q.new_empty(rows, dtype=torch.float32),
            q.new_empty(rows, dtype=torch.float32),
            dk,
            dv,
        )


def _cast(
    wide: torch.Tensor, output: torch.Tensor, scale: float, block: int, threads: int, *layout: Any
) -> None:
    """scale * wide, in the kernel's layout, as `output`."""
    interface._bwd_postprocess_convert(
        wide, output, scale, None, None, _ARCH, _DTYPES[output.dtype], output.shape[-1], block,
        threads, *layout, fake_mode=interface.is_fake_mode(),
    )  # fmt: skip


def _key(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.dtype, int, int, bool, bool]:
    """dtype, head dim, query heads of a key head, and whether there is one block of rows or keys
    (a stride of a size-1 axis would be compiled in)."""
    tile = tiles(q.shape[-1])
    return (
        q.dtype,
        q.shape[-1],
        q.shape[2] // k.shape[2],
        q.shape[1] <= tile.forward[0],
        k.shape[1] <= tile.forward[1],
    )


_compiled: dict[tuple[Any, ...], Any] = {}


def _forward_kernel(
    dtype: torch.dtype,
    dim: int,
    group: int,
    one_row: bool,
    one_key: bool,
    examples: Callable[[], Any],
) -> Any:
    key = ("forward", dtype, dim, group, one_row, one_key)
    if key not in _compiled:
        q, k, v, out, lse, bits, lists = examples()
        rows, keys = tiles(dim).forward
        kernel = flash_fwd_sm90.FlashAttentionForwardSm90(
            _DTYPES[dtype], dim, dim, group,
            tile_m=rows, tile_n=keys, num_stages=2, num_threads=384,
            pack_gqa=packed_rows(group) < rows, intra_wg_overlap=True, mma_pv_is_rs=True,
            mask_mod=is_partial, has_aux_tensors=True,
        )  # fmt: skip
        parts = {"AttentionMask": BitMask, "consume_block_sparse_loads": forward_loop}
        with (
            _our_parts(flash_fwd_sm90, **parts),
            _replaced(block_sparse_utils, sparse_tensor_m_block=list_row),
        ):
            _compiled[key] = cute.compile(
                kernel, *map(to_cute_tensor, (q, k, v, out)), to_cute_tensor(lse, assumed_align=4),
                1.0, *(None,) * 8, to_cute_block_sparse_tensors(lists.sparse),
                AuxData([to_cute_tensor(bits)], None),
                to_cute_tensor(lists.items, assumed_align=4), None, _stream(),
                options="--enable-tvm-ffi",
            )  # fmt: skip
    return _compiled[key]


def _backward_kernel(
    dtype: torch.dtype,
    dim: int,
    group: int,
    one_row: bool,
    one_key: bool,
    examples: Callable[[], Any],
) -> Any:
    key = ("backward", dtype, dim, group, one_row, one_key)
    if key not in _compiled:
        q, k, v, dout, wide, dk, dv, span, lists = examples()
        config = _backward_config(dim)
        kernel = (TreeBackward if group > 1 else flash_bwd_sm90.FlashAttentionBackwardSm90)(
            _DTYPES[dtype], dim, dim, group,
            tile_m=config.m_block_size, tile_n=config.n_block_size,
            Q_stage=config.num_stages_Q, dO_stage=config.num_stages_dO,
            PdS_stage=config.num_stages_PdS, SdP_swapAB=config.SdP_swapAB,
            dKV_swapAB=config.dKV_swapAB, dQ_swapAB=config.dQ_swapAB,
            AtomLayoutMSdP=config.AtomLayoutMSdP, AtomLayoutNdKV=config.AtomLayoutNdKV,
            AtomLayoutMdQ=config.AtomLayoutMdQ, num_threads=(config.num_wg + 1) * 128,
            mask_mod=is_partial, has_aux_tensors=True, dQ_single_wg=config.dQ_single_wg,
        )  # fmt: skip
        sums, aux = (dk, dv), [to_cute_aux_tensor(span)]
        parts: dict[str, Any] = {"AttentionMask": TreeMask}
        if group > 1:
            sums, aux = (wide.dk, wide.dv), [*aux, to_cute_tensor(dk), to_cute_tensor(dv)]
            parts["consume_block_sparse_mma_bwd_sm90"] = partial(backward_loop, group=group)
        with _our_parts(flash_bwd_sm90, **parts):
            _compiled[key] = cute.compile(
                kernel, *map(to_cute_tensor, (q, k, v, dout, wide.lse_log2, wide.row_sum, wide.dq)),
                *map(to_cute_tensor, sums), 1.0, *(None,) * 9,
                AuxData(aux, None),
                to_cute_block_sparse_tensors(lists.sparse),
                to_cute_tensor(lists.items, assumed_align=4), _stream(),
                options="--enable-tvm-ffi",
            )  # fmt: skip
    return _compiled[key]


def is_partial(*_: Any) -> Any:
    """Stands for the mask in the package's `mask_mod`: where it is given, a block is partial and
    our mask evaluates it. Never called."""
    raise AssertionError("the package's own mask is in place")


@cache
def _backward_config(dim: int) -> interface.BwdConfig:
    rows, keys = tiles(dim).backward
    known = max(dim, 128) if dim <= 64 else dim  # its own choice for 64 takes 128 rows
    config = interface._tile_size_bwd_sm90(known, known, False, False, sparse_block_size_q=rows)
    assert (config.m_block_size, config.n_block_size) == (rows, keys)
    return config


def _our_parts(module: Any, **parts: Any) -> AbstractContextManager[None]:
    """The order of tiles, and `parts`."""
    return _replaced(module, SingleTileScheduler=OrderedScheduler, **parts)


@contextmanager
def _replaced(module: Any, **parts: Any) -> Iterator[None]:
    """`parts` under the names by which `module` finds its own."""
    theirs = {name: getattr(module, name) for name in parts}
    try:
        for name, part in parts.items():
            setattr(module, name, part)
        yield
    finally:
        for name, part in theirs.items():
            setattr(module, name, part)


def _stream() -> Any:
    return cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
