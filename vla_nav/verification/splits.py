"""One pack computed in other ways: cut into partitions, and tree by tree with accumulation.

    whole         [ tree 0 | tree 1 | tree 2 ]           one forward, one backward
    partitions    [ tree 0 | tr ] [ ee 1 | tree 2 ]      1, 2, 3 ... of them, gateways in between
    accumulated   [ tree 0 ]  [ tree 1 ]  [ tree 2 ]     N packs, one optimiser step

Gradients and the parameters after one step must be those of the whole pack.

Axis legend: M targets, V logits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor

from vla_nav.attention import backend
from vla_nav.losses import (
    Normalisation,
    loss_denominator,
    total_denominator,
    weighted_cross_entropy,
)
from vla_nav.models.vla import VLA
from vla_nav.training.partitioned import partitioned_backward, partitioned_logits, plan_partitions
from vla_nav.tree.packing import PackedTree, pack
from vla_nav.tree.partition_types import PartitionMode
from vla_nav.verification.equivalence import FLOAT64_NORMS, Bounds, trees_of
from vla_nav.verification.oracle import Sample
from vla_nav.verification.report import Finding, compare, excess
from vla_nav.verification.updates import compare_updates, take_step
from vla_nav.verification.vla_forwards import packed_forward


def check_partitions(
    model: VLA,
    samples: Sequence[Sample],
    *,
    normalisation: Normalisation = "path_mean",
    max_parts: int = 5,
    bounds: Bounds = FLOAT64_NORMS,
) -> list[Finding]:
    """The pack in capacities of 1/1 .. 1/max_parts of it, in both modes, against the whole."""
    trees, frames = trees_of(samples), torch.cat([sample.frames for sample in samples])
    whole = pack(trees)
    total = loss_denominator(whole, normalisation)

    def loss_of(logits: Tensor, packed: PackedTree) -> Tensor:
        return weighted_cross_entropy(
            logits, packed, normalisation=normalisation, denominator=total
        ).value

    expected = _Whole(model, whole, frames, loss_of)
    findings = []
    for mode in get_args(PartitionMode):
        rows: dict[str, list[Finding]] = {}
        numbers = []
        for wanted in range(1, max_parts + 1):
            plans = plan_partitions(
                trees,
                backend(model.attention_name),
                capacity=-(-whole.num_tokens // wanted),
                mode=mode,
            )
            numbers.append(len(plans.cut.parts))
            cut_model = copy.deepcopy(model)
            loss = partitioned_backward(cut_model, plans, frames, loss_of)
            logits = partitioned_logits(model, plans, frames)
            name = f"{numbers[-1]} partitions"
            for finding in expected.compare(cut_model, logits, loss, bounds):
                rows.setdefault(finding.check, []).append(_named(finding, name))
        note = f"in {', '.join(map(str, numbers))} partitions"
        findings += [_worst(f"{mode}: {check}", group, note) for check, group in rows.items()]
    return findings


def check_accumulation(
    model: VLA, samples: Sequence[Sample], *, bounds: Bounds = FLOAT64_NORMS
) -> list[Finding]:
    """N trees in one pack against N packs of one step, under every normalisation."""
    trees = trees_of(samples)
    whole, parts = pack(trees), [pack([tree]) for tree in trees]
    frames = torch.cat([sample.frames for sample in samples])
    rows: dict[str, list[Finding]] = {}
    for normalisation in get_args(Normalisation):

        def loss_of(logits: Tensor, packed: PackedTree, name: Any = normalisation) -> Tensor:
            return weighted_cross_entropy(logits, packed, normalisation=name).value

        expected = _Whole(model, whole, frames, loss_of)
        denominators = [loss_denominator(part, normalisation) for part in parts]
        total = total_denominator(torch.stack(denominators), normalisation)
        split_model = copy.deepcopy(model)
        loss, logits = torch.zeros((), dtype=torch.float64), []
        for part, sample in zip(parts, samples, strict=True):
            logits.append(packed_forward(split_model, part, sample.frames))
            value = weighted_cross_entropy(
                logits[-1], part, normalisation=normalisation, denominator=total
            ).value
            torch.autograd.backward(value)
            loss = loss + value.detach()
        for finding in expected.compare(split_model, torch.cat(logits), loss, bounds):
            rows.setdefault(finding.check, []).append(_named(finding, normalisation))
    note = f"{len(trees)} trees"
    return [_worst(f"1 x N = N x 1: {check}", group, note) for check, group in rows.items()]


class _Whole:
    """The whole pack's logits, loss and update."""

    def __init__(
        self,
        model: VLA,
        packed: PackedTree,
        frames: Tensor,
        loss_of: Callable[[Tensor, PackedTree], Tensor],
    ) -> None:
        stepped = copy.deepcopy(model)
        logits = packed_forward(stepped, packed, frames)
        loss = loss_of(logits, packed)
        torch.autograd.backward(loss)
        self._logits, self._loss = logits.detach(), loss.detach()
        self._update = take_step(stepped)

    def compare(self, model: VLA, logits: Tensor, loss: Tensor, bounds: Bounds) -> list[Finding]:
        """`model` holds the other way's gradients; logits (M, V) in the whole pack's order."""
        return [
            compare("logits", logits, self._logits, bounds.logits),
            compare("loss", loss, self._loss, bounds.loss),
            *compare_updates(
                take_step(model),
                self._update,
                gradients=bounds.gradients,
                parameters=bounds.parameters,
            ),
        ]


def _named(finding: Finding, name: str) -> Finding:
    return replace(finding, note=f"{name}, {finding.note}" if finding.note else name)


def _worst(check: str, findings: Sequence[Finding], note: str) -> Finding:
    """The worst of one check; `findings` differ in the way, which their notes begin with."""
    top = max(findings, key=excess)
    return replace(top, check=check, note=f"{note}; worst: {top.note}" if top.absolute else note)
