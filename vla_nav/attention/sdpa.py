"""Attention over a pack through scaled_dot_product_attention: the CPU training path.

    loader worker   plan(packed)            dense jobs (`row_jobs.py`), batched into calls
    every layer     attend(q, k, v, plan)   gather the rows and keys of a call, one product, scatter

Jobs of similar size share a call. No Q x (P+Q): a mask lives as long as its call, and is bounded by
MAX_ROWS x keys of a job and MAX_CELLS of a call. Behind gateway keys every chunk of rows needs one,
and a copy of its keys, so there a call is computed again in the backward pass instead of kept.
Softmax is never split and merged.

Axis legend: B batch, Q own tokens, P prefix tokens, H query heads, Hkv key/value heads, D head dim;
J jobs of a call, R query rows, C keys of a job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from vla_nav.attention.mask import is_visible, joint_end
from vla_nav.attention.row_jobs import Job, row_jobs
from vla_nav.attention.types import Backend, check_shapes, same_length
from vla_nav.tree.packing import PackedTree
from vla_nav.tree.types import BoolArray, Int32Array

MAX_ROWS = 128  # query rows of a job with a mask
MAX_CELLS = 2**22  # J x R x C of one call with a mask
MAX_WASTE = 1.3  # padded cells of a call over the cells that its jobs need


@dataclass(frozen=True, eq=False)
class Call:
    """One batched call: q_index (J, R) own and k_index (J, C) joint indices, int64 (padding repeats
    an index that is masked or dropped); key_end (J, C) int64, or None for plain causal."""

    q_index: torch.Tensor
    k_index: torch.Tensor
    key_end: torch.Tensor | None

    def mask(self, num_prefix: int) -> torch.Tensor | None:
        """(J, 1, R, C) bool, or None for plain causal."""
        if self.key_end is None:
            return None
        rows, keys, ends = self.q_index + num_prefix, self.k_index, self.key_end
        return is_visible(rows[:, None, :, None], keys[:, None, None], ends[:, None, None])


@dataclass(frozen=True, eq=False)
class SdpaPlan:
    """The calls, and out_index (Q,) int64: where in their joined rows each token's output is."""

    calls: tuple[Call, ...]
    out_index: torch.Tensor
    num_prefix: int

    @property
    def num_tokens(self) -> int:
        """Q."""
        return len(self.out_index)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> SdpaPlan:
        """The same plan on `device`."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> SdpaPlan:
        """The same plan in page-locked memory."""
        return self._map(torch.Tensor.pin_memory)

    def _map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> SdpaPlan:
        calls = tuple(
            Call(
                function(call.q_index),
                function(call.k_index),
                None if call.key_end is None else function(call.key_end),
            )
            for call in self.calls
        )
        return SdpaPlan(calls, function(self.out_index), self.num_prefix)


def plan(packed: PackedTree, *, max_rows: int = MAX_ROWS) -> SdpaPlan:
    """Cut the pack into jobs of at most `max_rows` masked rows and batch them into calls."""
    subtree_end, prefix_end = packed.subtree_end.numpy(), packed.prefix_end.numpy()
    end = joint_end(packed.prefix_end, packed.subtree_end).numpy()
    num_prefix = len(prefix_end)
    alone, trunks, chunks = row_jobs(subtree_end, prefix_end, max_rows)
    calls: list[Call] = []
    out_index = np.empty(len(subtree_end), dtype=np.int64)
    position = len(alone)
    if position:  # trees of one token, padding mostly: all at once
        out_index[alone] = np.arange(position)
        index = torch.from_numpy(alone[:, None])  # (J, 1)
        calls.append(Call(index, index + num_prefix, None))
    for jobs, is_causal in ((trunks, True), (chunks, False)):
        for batch in _batches(jobs):
            num_rows = max(job.num_rows for job in batch)
            for job in batch:
                out_index[job.start : job.stop] = np.arange(position, position + job.num_rows)
                position += num_rows
            if is_causal:
                calls.append(_causal_call(batch, num_prefix))
            else:
                calls.append(_masked_call(batch, end, num_prefix))
    return SdpaPlan(tuple(calls), torch.from_numpy(out_index), num_prefix)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: SdpaPlan,
    scale: float | None = None,
) -> torch.Tensor:
    """q (B, Q, H, D), k and v (B, P+Q, Hkv, D) -> (B, Q, H, D)."""
    heads, _ = check_shapes(q, k, v, plan.num_tokens, plan.num_prefix)
    batch, num_tokens, _, dim = q.shape
    outputs = []
    for call in plan.calls:
        if plan.num_prefix:
            out = checkpoint(
                _attend_call,
                *(q, k, v, call, plan.num_prefix, scale),
                use_reentrant=False,
                preserve_rng_state=False,
            )
        else:
            out = _attend_call(q, k, v, call, 0, scale)
        outputs.append(out.transpose(1, 2).reshape(batch, -1, heads, dim))  # (B, J * R, H, D)
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
    return joined.index_select(1, plan.out_index).view(batch, num_tokens, heads, dim)


def _attend_call(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    call: Call,
    num_prefix: int,
    scale: float | None,
) -> torch.Tensor:
    """Whole q, k and v -> (B * J, H, R, D)."""
    batch, groups = q.shape[0], q.shape[2] // k.shape[2]
    mask = call.mask(num_prefix)
    if mask is not None and batch > 1:
        mask = mask.repeat(batch, 1, 1, 1)
    rows, keys, values = (
        _gather(x, index) for x, index in ((q, call.q_index), (k, call.k_index), (v, call.k_index))
    )
    if groups > 1:
        keys, values = (x.repeat_interleave(groups, dim=1) for x in (keys, values))
    return scaled_dot_product_attention(
        rows, keys, values, attn_mask=mask, is_causal=mask is None, scale=scale
    )


def _gather(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """(B, tokens, H, D) and (J, R) -> (B * J, H, R, D)."""
    jobs, rows = index.shape
    batch, _, heads, dim = x.shape
    taken = x.index_select(1, index.flatten())
    return taken.view(batch * jobs, rows, heads, dim).transpose(1, 2)


def _batches(jobs: list[Job]) -> list[list[Job]]:
    """Jobs of similar size together, largest first; padding costs at most MAX_WASTE."""
    batches: list[list[Job]] = []
    most_rows = most_keys = used = 0
    for job in sorted(jobs, key=lambda job: (job.num_keys, job.num_rows, job.start), reverse=True):
        cells = job.num_rows * job.num_keys
        rows, keys = max(most_rows, job.num_rows), max(most_keys, job.num_keys)
        size = (len(batches[-1]) + 1) * rows * keys if batches else 0
        if batches and size <= MAX_CELLS and size <= MAX_WASTE * (used + cells):
            batches[-1].append(job)
            most_rows, most_keys, used = rows, keys, used + cells
        else:
            batches.append([job])
            most_rows, most_keys, used = job.num_rows, job.num_keys, cells
    return batches


def _causal_call(batch: Sequence[Job], num_prefix: int) -> Call:
    """Short trunks are padded at the end by their last token: causality hides it from the rest."""
    index = np.empty((len(batch), max(job.num_rows for job in batch)), dtype=np.int64)
    for row, job in zip(index, batch, strict=True):
        row[: job.num_rows] = np.arange(job.start, job.stop)
        row[job.num_rows :] = job.stop - 1
    tensor = torch.from_numpy(index)  # (J, R)
    return Call(tensor, tensor + num_prefix, None)


def _masked_call(batch: Sequence[Job], end: Int32Array, num_prefix: int) -> Call:
    """Padding rows repeat the job's last row (a row that sees nothing would give NaN), and are
    dropped; padding keys are hidden from every row. end (P+Q,): joint."""
    num_rows = max(job.num_rows for job in batch)
    num_keys = max(job.num_keys for job in batch)
    q_index = np.empty((len(batch), num_rows), dtype=np.int64)
    k_index = np.zeros((len(batch), num_keys), dtype=np.int64)
    is_key: BoolArray = np.zeros((len(batch), num_keys), dtype=np.bool_)
    for j, job in enumerate(batch):
        rows = np.arange(job.start, job.stop)
        q_index[j, : job.num_rows] = rows
        q_index[j, job.num_rows :] = job.stop - 1
        k_index[j, : len(job.before)] = job.before
        k_index[j, len(job.before) : job.num_keys] = rows + num_prefix
        is_key[j, : job.num_keys] = True
    key_end = np.where(is_key, end[k_index], 0).astype(np.int64)
    return Call(*map(torch.from_numpy, (q_index, k_index, key_end)))


BACKEND = Backend("sdpa", plan, attend, same_length, ("cpu", "cuda"), same_length)
