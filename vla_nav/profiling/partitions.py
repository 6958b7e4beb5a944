"""What partitions cost: time and memory of a step in partitions beside the same step resident.

    resident             the whole tree at once, with and without activation checkpointing
    recompute / keep     at most `capacity` tokens at once
    one partition        a tree of `capacity` tokens, resident: what fits
    bound                working memory of one partition + K/V of the whole tree

Working memory is what a step allocates above weights and gradients. A step is forward and backward
of one tree; the rate is the tree's tokens over its time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vla_nav.attention.registry import backend
from vla_nav.errors import UserError
from vla_nav.losses import weighted_cross_entropy
from vla_nav.models.backbone import disable_checkpointing, enable_checkpointing
from vla_nav.profiling.synthetic import (
    HEAD_DIM,
    MODEL_SHAPES,
    TreeShape,
    synthetic_features,
    synthetic_model,
    synthetic_tree,
)
from vla_nav.profiling.timing import Measured, measure
from vla_nav.training.partitioned import partitioned_backward, plan_partitions
from vla_nav.tree import PackedTree, pack

DRIFT = 0.05  # relative by norm: of bfloat16 gradients computed in another batch shape


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """One line of the table. rate: tokens/s over that of resident with checkpointing (recompute) or
    without (keep). memory: working bytes over `bound` (recompute) or over resident's (keep); None
    where torch does not count them."""

    tree: str
    tokens: int
    mode: str
    partitions: int
    capacity: int
    gateway_tokens: int
    recomputed_tokens: int
    step_ms: float
    rate: float
    working_gib: float
    memory: float | None
    gradient_drift: float


class PartitionBench:
    """Steps of one tree on one model. Checks gradients before it times anything."""

    def __init__(self, shape: TreeShape, size: str, *, device: str, attention: str) -> None:
        self.shape, self.size, self.device = shape, size, device
        self.dtype = torch.bfloat16 if torch.device(device).type == "cuda" else torch.float32
        self.attention = backend(attention, device=torch.device(device).type)
        self.model = synthetic_model(
            size,
            attention,
            device=device,
            dtype=self.dtype,
            num_patches=shape.frame + shape.history,
        )
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.tree = synthetic_tree(shape)
        self.features = synthetic_features(shape, 1, device, self.dtype)

    def resident(self, *, is_checkpointed: bool, shape: TreeShape | None = None) -> Measured:
        """The whole tree at once."""
        self._checkpoint(is_checkpointed)
        work = self._whole(synthetic_tree(shape) if shape else self.tree)
        return measure(work, device=self.device, repeats=3, warmups=1)

    def row(self, mode: str, capacity: int, base: Measured, bound_bytes: float) -> PartitionRow:
        """Time and memory in partitions. base: resident, what the rate is compared with."""
        self._checkpoint(False)
        plans = plan_partitions([self.tree], self.attention, capacity=capacity, mode=mode)
        cut = plans.cut
        plans = plans.to(self.device)
        drift = self._drift(lambda: partitioned_backward(self.model, plans, self.features, _loss))
        found = measure(
            lambda: partitioned_backward(self.model, plans, self.features, _loss),
            device=self.device,
            repeats=3,
            warmups=1,
        )
        return PartitionRow(
            tree=str(self.shape),
            tokens=self.tree.num_tokens,
            mode=mode,
            partitions=len(cut.parts),
            capacity=capacity,
            gateway_tokens=cut.gateway_tokens,
            recomputed_tokens=cut.recomputed_tokens,
            step_ms=found.time_ms,
            rate=base.time_ms / found.time_ms,
            working_gib=found.working_bytes / 2**30,
            memory=found.working_bytes / bound_bytes if found.working_bytes else None,
            gradient_drift=drift,
        )

    def kv_bytes(self) -> int:
        """Keys and values of the whole tree, all layers."""
        _, _, layers, _, kv_heads = MODEL_SHAPES[self.size]
        return 2 * layers * kv_heads * HEAD_DIM * self.tree.num_tokens * self.dtype.itemsize

    def cut_shape(self, capacity: int) -> TreeShape:
        """The same kind of tree with about `capacity` tokens."""
        per_step = self.shape.frame + self.shape.action + self.shape.history
        steps = max(1, (capacity - self.shape.prompt) // per_step)
        return replace(self.shape, steps=steps)

    def _whole(self, tree: Any) -> Callable[[], Any]:
        packed = pack([tree], pad_to=self.attention.padded_length(tree.num_tokens))
        plan = self.attention.plan(packed).to(self.device)
        on_device = packed.to(self.device)
        features = self.features[: tree.num_frames]
        return lambda: _loss(self.model(on_device, features, plan), on_device).backward()

    def _drift(self, work: Callable[[], Any]) -> float:
        """Largest relative difference by norm between gradients of `work` and of resident; refuses
        to go on where it is more than rounding."""
        found = self._gradients(work)
        self._checkpoint(True)  # what does not fit otherwise
        expected = self._gradients(self._whole(self.tree))
        self._checkpoint(False)
        drifts = [
            float((a.float() - b.float()).norm() / b.float().norm().clamp_min(1e-20))
            for a, b in zip(found, expected, strict=True)
            if b.float().norm() > 1e-6
        ]
        if not max(drifts) < DRIFT:
            raise UserError(f"{self.shape}: gradients in partitions differ by {max(drifts):.3g}")
        return max(drifts)

    def _gradients(self, work: Callable[[], Any]) -> list[Tensor]:
        for parameter in self.model.parameters():
            assert parameter.grad is not None
            parameter.grad.zero_()
        work()
        return [p.grad.to("cpu", copy=True) for p in self.model.parameters() if p.grad is not None]

    def _checkpoint(self, is_on: bool) -> None:
        (enable_checkpointing if is_on else disable_checkpointing)(self.model.backbone.model)


def recompute_rows(
    bench: PartitionBench, counts: Sequence[int]
) -> Iterator[tuple[str, Measured | PartitionRow]]:
    """Resident with checkpointing, then for each number of partitions what fits and the row."""
    base = bench.resident(is_checkpointed=True)
    yield "resident, checkpointed", base
    for count in counts:
        # A little over the share: cuts are at node boundaries, and a rest would be one part more.
        capacity = math.ceil(1.02 * bench.tree.num_tokens / count)
        part = bench.cut_shape(capacity)
        fits = bench.resident(is_checkpointed=False, shape=part)
        yield f"resident, {part}", fits
        bound = fits.working_bytes + bench.kv_bytes()
        yield "recompute", bench.row("recompute", capacity, base, bound)


def keep_rows(
    bench: PartitionBench, shares: Sequence[float]
) -> Iterator[tuple[str, Measured | PartitionRow]]:
    """Resident without checkpointing, then a row for each capacity as a share of the tokens."""
    base = bench.resident(is_checkpointed=False)
    yield "resident", base
    for share in shares:
        capacity = math.ceil(share * bench.tree.num_tokens)
        yield "keep", bench.row("keep", capacity, base, base.working_bytes)


def _loss(logits: Tensor, packed: PackedTree) -> Tensor:
    return weighted_cross_entropy(logits, packed, denominator=1.0).value
