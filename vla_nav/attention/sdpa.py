"""Attention over a pack through scaled_dot_product_attention: the CPU training path.

The pack is cut into *heavy runs*: in pre-order with the heaviest child first, a root-to-leaf run is
contiguous, and a token is the last of its run exactly when its subtree_end is its own index + 1.

    pack   r a b c d | x | y z | w      the first run of a tree is its trunk; the light runs behind
           trunk       light runs       it hang from it (or from one another)

- A trunk is plain causal attention: no mask at all.
- Light runs are computed in chunks of at most MAX_ROWS consecutive rows [a, b). Whoever a row of
  the chunk sees is an ancestor of a, or in the chunk itself:
      keys = { k < a : subtree_end[k] > a }  +  [a, b)        with a mask of rows x keys
  A chunk holds whole light runs; a run longer than MAX_ROWS is cut.

Jobs of similar size are batched into one call. No N x N: memory is bounded by MAX_ROWS x keys per
job and MAX_CELLS per call. Softmax is never split and merged.

Axis legend: B batch, T packed tokens, H query heads, Hkv key/value heads, D head dim; J jobs of a
call, R query rows, C keys of a job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from vla_nav.attention.mask import is_visible
from vla_nav.attention.types import Backend, check_shapes, same_length
from vla_nav.tree.packing import PackedTree
from vla_nav.tree.types import BoolArray, Int32Array, IntArray

MAX_ROWS = 128  # query rows of a job with a mask
MAX_CELLS = 2**22  # J x R x C of one call with a mask
MAX_WASTE = 1.3  # padded cells of a call over the cells that its jobs need


@dataclass(frozen=True, eq=False)
class Call:
    """One batched call: q_index (J, R) and k_index (J, C) int64 pack indices (padding repeats an
    index that is masked or dropped); mask (J, 1, R, C) bool, or None for plain causal."""

    q_index: torch.Tensor
    k_index: torch.Tensor
    mask: torch.Tensor | None


@dataclass(frozen=True, eq=False)
class SdpaPlan:
    """The calls, and out_index (T,) int64: where in their joined rows each token's output is."""

    calls: tuple[Call, ...]
    out_index: torch.Tensor

    @property
    def num_tokens(self) -> int:
        """T."""
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
                None if call.mask is None else function(call.mask),
            )
            for call in self.calls
        )
        return SdpaPlan(calls, function(self.out_index))


class _Job(NamedTuple):
    """Query rows start .. stop - 1 against `ancestors` (all before start) and themselves."""

    start: int
    stop: int
    ancestors: IntArray

    @property
    def num_rows(self) -> int:
        return self.stop - self.start

    @property
    def num_keys(self) -> int:
        return len(self.ancestors) + self.stop - self.start


def plan(packed: PackedTree, *, max_rows: int = MAX_ROWS) -> SdpaPlan:
    """Cut the pack into jobs of at most `max_rows` masked rows and batch them into calls."""
    subtree_end = packed.subtree_end.numpy()
    covered = np.concatenate([[0], np.maximum.accumulate(subtree_end)[:-1]])
    roots = np.flatnonzero(covered <= np.arange(len(subtree_end)))  # no earlier subtree reaches it
    is_alone = subtree_end[roots] == roots + 1
    alone, roots = roots[is_alone], roots[~is_alone]
    trunks, chunks = _jobs(subtree_end, roots, max_rows)
    calls: list[Call] = []
    out_index = np.empty(len(subtree_end), dtype=np.int64)
    position = len(alone)
    if position:  # trees of one token, padding mostly: all at once
        out_index[alone] = np.arange(position)
        index = torch.from_numpy(alone[:, None])  # (J, 1)
        calls.append(Call(index, index, None))
    for jobs, is_causal in ((trunks, True), (chunks, False)):
        for batch in _batches(jobs):
            num_rows = max(job.num_rows for job in batch)
            for job in batch:
                out_index[job.start : job.stop] = np.arange(position, position + job.num_rows)
                position += num_rows
            calls.append(_causal_call(batch) if is_causal else _masked_call(batch, subtree_end))
    return SdpaPlan(tuple(calls), torch.from_numpy(out_index))


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: SdpaPlan,
    scale: float | None = None,
) -> torch.Tensor:
    """q (B, T, H, D), k and v (B, T, Hkv, D) -> (B, T, H, D)."""
    heads, kv_heads = check_shapes(q, k, v, plan.num_tokens)
    batch, num_tokens, _, dim = q.shape
    if kv_heads != heads:
        k = k.repeat_interleave(heads // kv_heads, dim=2)
        v = v.repeat_interleave(heads // kv_heads, dim=2)
    outputs = []
    for call in plan.calls:
        jobs, rows = call.q_index.shape
        mask = call.mask
        if mask is not None and batch > 1:
            mask = mask.repeat(batch, 1, 1, 1)
        out = scaled_dot_product_attention(
            _gather(q, call.q_index),
            _gather(k, call.k_index),
            _gather(v, call.k_index),
            attn_mask=mask,
            is_causal=mask is None,
            scale=scale,
        )  # (B * J, H, R, D)
        outputs.append(out.transpose(1, 2).reshape(batch, jobs * rows, heads, dim))
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
    return joined.index_select(1, plan.out_index).view(batch, num_tokens, heads, dim)


def _gather(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """(B, T, H, D) and (J, R) -> (B * J, H, R, D)."""
    jobs, rows = index.shape
    batch, _, heads, dim = x.shape
    taken = x.index_select(1, index.flatten())
    return taken.view(batch * jobs, rows, heads, dim).transpose(1, 2)


def _jobs(subtree_end: Int32Array, roots: IntArray, max_rows: int) -> tuple[list[_Job], list[_Job]]:
    """The trunks of the trees at `roots` (more than one token each), and chunks of their other
    rows."""
    leaves = np.flatnonzero(subtree_end == np.arange(1, len(subtree_end) + 1))
    first = np.searchsorted(leaves, roots).tolist()  # each tree's first leaf ends its trunk
    last = np.searchsorted(leaves, subtree_end[roots]).tolist()
    stops = (leaves + 1).tolist()
    trunks: list[_Job] = []
    chunks: list[_Job] = []
    for root, low, high in zip(roots.tolist(), first, last, strict=True):
        trunks.append(_Job(root, stops[low], np.empty(0, dtype=np.int64)))
        for start, stop in _row_chunks(stops[low:high], max_rows):
            ancestors = np.flatnonzero(subtree_end[root:start] > start) + root
            chunks.append(_Job(start, stop, ancestors))
    return trunks, chunks


def _row_chunks(stops: list[int], max_rows: int) -> Iterator[tuple[int, int]]:
    """Cut the rows stops[0] .. stops[-1] - 1 into chunks of whole runs where they fit; a longer run
    gives equal chunks of its own."""
    start = previous = stops[0]
    for stop in stops[1:]:
        if stop - start > max_rows and previous > start:
            yield start, previous
            start = previous
        if stop - start > max_rows:
            num_cuts = -(-(stop - start) // max_rows)
            bounds = np.linspace(start, stop, num_cuts + 1).astype(np.int64).tolist()
            yield from pairwise(bounds)
            start = stop
        previous = stop
    if previous > start:
        yield start, previous


def _batches(jobs: list[_Job]) -> list[list[_Job]]:
    """Jobs of similar size together, largest first; padding costs at most MAX_WASTE."""
    batches: list[list[_Job]] = []
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


def _causal_call(batch: Sequence[_Job]) -> Call:
    """Short trunks are padded at the end by their last token: causality hides it from the rest."""
    index = np.empty((len(batch), max(job.num_rows for job in batch)), dtype=np.int64)
    for row, job in zip(index, batch, strict=True):
        row[: job.num_rows] = np.arange(job.start, job.stop)
        row[job.num_rows :] = job.stop - 1
    tensor = torch.from_numpy(index)  # (J, R)
    return Call(tensor, tensor, None)


def _masked_call(batch: Sequence[_Job], subtree_end: Int32Array) -> Call:
    """Padding rows repeat the job's last row (a row that sees nothing would give NaN), and are
    dropped; padding keys are hidden from every row."""
    num_rows = max(job.num_rows for job in batch)
    num_keys = max(job.num_keys for job in batch)
    q_index = np.empty((len(batch), num_rows), dtype=np.int64)
    k_index = np.zeros((len(batch), num_keys), dtype=np.int64)
    is_key: BoolArray = np.zeros((len(batch), num_keys), dtype=np.bool_)
    for j, job in enumerate(batch):
        q_index[j, : job.num_rows] = np.arange(job.start, job.stop)
        q_index[j, job.num_rows :] = job.stop - 1
        num_ancestors = len(job.ancestors)
        k_index[j, :num_ancestors] = job.ancestors
        k_index[j, num_ancestors : job.num_keys] = np.arange(job.start, job.stop)
        is_key[j, : job.num_keys] = True
    key_end = np.where(is_key, subtree_end[k_index], 0).astype(np.int32)
    rows, keys = q_index.astype(np.int32), k_index.astype(np.int32)
    mask = is_visible(rows[:, :, None], keys[:, None, :], key_end[:, None, :])  # (J, R, C)
    return Call(
        torch.from_numpy(q_index), torch.from_numpy(k_index), torch.from_numpy(mask)[:, None]
    )


BACKEND = Backend("sdpa", plan, attend, same_length, ("cpu", "cuda"))
