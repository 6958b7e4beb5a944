"""bfloat16 at full size: how far the packed tree is from flat paths, beside what is only noise.

    a   flat paths one by one, bfloat16                     a - d   rounding of bfloat16 itself
    b   the same paths, several a batch, bfloat16           b - a   noise of another batch shape
    c   the packed tree, bfloat16                           c - a   the drift in question
    d   flat paths one by one, float32

Sums in another order round differently, so c - a cannot be zero; it must not be larger than a few
times the noise of a trainer that never heard of trees. All runs are of one model in one place, its
attention bound anew for each; `mixed` computes in bfloat16 over float32 weights (autocast).

Axis legend: n tokens of a path, B paths of a batch, M supervised tokens, V logits, E hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from vla_nav.attention import backend
from vla_nav.losses import Normalisation, weighted_cross_entropy
from vla_nav.models.vla import VLA
from vla_nav.tree.flatten import path_supervision, path_token_index
from vla_nav.tree.packing import pack
from vla_nav.tree.types import PathTokens
from vla_nav.verification.equivalence import trees_of
from vla_nav.verification.oracle import Sample, num_supervised
from vla_nav.verification.progress import Paced, Progress
from vla_nav.verification.report import Finding, difference
from vla_nav.verification.report import largest as largest_of
from vla_nav.verification.vla_forwards import (
    causal_hidden,
    path_embeddings,
    use_packed_attention,
    use_stock_attention,
)

_BATCH = 4  # flat paths of one batch of run b
_FACTOR = 3.0  # how many times the noise the tree may drift: each side rounds by itself
_LEAST = 2.0**-8  # one rounding of bfloat16, relative: what no bound is below


class _Run(NamedTuple):
    """loss; logits (M, V) of every path's supervised tokens, path by path; gradients by name."""

    loss: Tensor
    logits: Tensor
    gradients: dict[str, Tensor]


class _Drift(NamedTuple):
    """(absolute, relative by norm) differences of two runs; `tensor` names the worst gradient."""

    logits: tuple[float, float]
    loss: tuple[float, float]
    gradients: tuple[float, float]
    worst: tuple[float, float]
    tensor: str


def check_drift(
    model: VLA,
    samples: Sequence[Sample],
    *,
    normalisation: Normalisation,
    is_mixed: bool,
    progress: Progress,
) -> list[Finding]:
    """Runs a to d of `model` on its own device; rows of c - a, then those of b - a and a - d.

    samples: on that device, features in float32. is_mixed: autocast over float32 weights, else
    bfloat16 weights (float32 then computes with the same, rounded ones). The model's gradients and
    dtype are changed.
    """
    runs = _Runs(model, samples, normalisation, progress, is_mixed=is_mixed)
    progress("bf16: flat paths one by one")
    flat = runs.flat(1)
    progress(f"bf16: flat paths, {_BATCH} a batch")
    batch = _drift(runs.flat(_BATCH), flat)
    progress(f"bf16: the packed tree, attention {model.attention_name}")
    tree = _drift(runs.tree(), flat)
    progress("float32: flat paths one by one")
    rounding = _drift(runs.flat(1, is_float32=True), flat)
    return [*_rows(tree, batch, rounding)]


def _rows(tree: _Drift, batch: _Drift, rounding: _Drift) -> list[Finding]:
    findings = []
    for name, quantity in (
        ("logits", "logits"),
        ("loss", "loss"),
        ("all gradients", "gradients"),
        ("worst gradient", "worst"),
    ):
        found, other, float32 = (getattr(drift, quantity) for drift in (tree, batch, rounding))
        bound = max(_FACTOR * max(other[1], float32[1]), _LEAST)
        if not math.isfinite(bound):  # nothing to compare with
            bound = _LEAST
        notes = [drift.tensor if quantity == "worst" else "" for drift in (tree, batch, rounding)]
        free = float("inf")
        findings += [
            Finding(f"{name}: tree - flat", *found, bound, note=notes[0]),
            Finding(f"{name}: flat, {_BATCH} a batch - flat", *other, free, note=notes[1]),
            Finding(f"{name}: flat - flat in float32", *float32, free, note=notes[2]),
        ]
    return findings


def _drift(found: _Run, expected: _Run) -> _Drift:
    square = norm = largest = 0.0
    tensor, worst = "", (0.0, 0.0)
    for name, theirs in expected.gradients.items():
        ours, reference = found.gradients[name].double(), theirs.double()
        gap = ours - reference
        square += float(gap.square().sum())
        norm += float(reference.square().sum())
        largest = largest_of([largest, float(gap.abs().max())])
        one = difference(ours, reference)
        if not math.isnan(worst[1]) and not one[1] <= worst[1]:
            tensor, worst = name, one
    overall = (square / norm) ** 0.5 if norm > 0 else float(square > 0)
    return _Drift(
        logits=difference(found.logits, expected.logits),
        loss=difference(found.loss, expected.loss),
        gradients=(largest, overall),
        worst=worst,
        tensor=tensor,
    )


class _Runs:
    """One model under stock or packed attention; every run clears the gradients first."""

    def __init__(
        self,
        model: VLA,
        samples: Sequence[Sample],
        normalisation: Normalisation,
        progress: Progress,
        *,
        is_mixed: bool,
    ) -> None:
        self._model, self._normalisation, self._progress = model, normalisation, progress
        self._is_mixed = is_mixed
        if not is_mixed:
            model.bfloat16()
        self._samples = [replace(s, frames=self._as_input(s.frames)) for s in samples]
        self._trees = trees_of(self._samples)

    def flat(self, batch: int, *, is_float32: bool = False) -> _Run:
        """Every path, `batch` of them at a time, in the trees' order of paths."""
        use_stock_attention(self._model)
        self._model.zero_grad(set_to_none=True)
        if is_float32:
            self._model.float()
        taught = num_supervised(self._samples)
        total, logits = 0.0, []
        num_batches = sum(-(-tree.num_paths // batch) for tree in self._trees)
        paced = Paced(self._progress, "batch", num_batches)
        for sample, tree in zip(self._samples, self._trees, strict=True):
            frames = sample.frames
            if is_float32 and frames.is_floating_point():
                frames = frames.float()
            order = tree.path_source.tolist()
            for first in range(0, len(order), batch):
                paced.step()
                chosen = [sample.paths[k] for k in order[first : first + batch]]
                with self._autocast(is_off=is_float32):
                    loss, rows = self._batch_loss(
                        [path.tokens() for path in chosen],
                        [path.coefficient for path in chosen],
                        frames,
                    )
                scale = {
                    "path_mean": 1 / (len(order) * len(self._samples)),
                    "token_mean": 1 / taught,
                    "step_sum": 1.0,
                }[self._normalisation]
                torch.autograd.backward(loss * scale)
                total += float(loss.detach()) * scale
                logits.append(rows)
        return self._finish(torch.tensor(total), torch.cat(logits))

    def tree(self) -> _Run:
        """The packed tree through the model's own attention."""
        model = self._model
        use_packed_attention(model)
        model.zero_grad(set_to_none=True)
        found = backend(model.attention_name)
        frames = torch.cat([sample.frames for sample in self._samples])
        length = found.padded_length(sum(tree.num_tokens for tree in self._trees))
        packed = pack(self._trees, pad_to=length)
        plan = found.plan(packed).to(frames.device)
        with self._autocast():
            logits = model(packed.to(frames.device), frames, plan)  # (targets, V)
            loss = weighted_cross_entropy(
                logits, packed.to(frames.device), normalisation=self._normalisation
            ).value
        torch.autograd.backward(loss)
        row_of = {token: row for row, token in enumerate(packed.target_index.tolist())}
        rows = []
        for number, tree in enumerate(self._trees):
            offset = int(packed.tree_start[number])
            for k in range(tree.num_paths):
                taught = path_token_index(tree, k)[path_supervision(tree, k)]
                rows += [row_of[offset + token] for token in taught.tolist()]
        return self._finish(loss.detach(), logits.detach()[rows])

    def _batch_loss(
        self, paths: Sequence[PathTokens], coefficients: Sequence[float], frames: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Sum of coefficient x -log p over some paths, and their logits (M, V) at predictors."""
        model = self._model
        parts = path_embeddings(model, paths, frames)
        embeddings = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)  # (B, n, E)
        hidden = causal_hidden(model, embeddings)
        rows, ids, weights = [], [], []
        for b, (path, coefficient) in enumerate(zip(paths, coefficients, strict=True)):
            taught = [i for i in path.is_supervised.nonzero()[0].tolist() if i > 0]
            rows += [hidden[b, i - 1] for i in taught]
            ids += path.token_ids[taught].tolist()
            weights += [coefficient] * len(taught)
        logits = model.logits(torch.stack(rows))  # (M, V)
        targets = torch.tensor(ids, device=logits.device)
        losses = torch.nn.functional.cross_entropy(logits.float(), targets, reduction="none")
        return (losses * torch.tensor(weights, device=logits.device)).sum(), logits.detach()

    def _finish(self, loss: Tensor, logits: Tensor) -> _Run:
        gradients = {
            name: torch.zeros_like(value) if value.grad is None else value.grad
            for name, value in self._model.named_parameters()
            if value.requires_grad
        }
        run = _Run(loss.cpu(), logits.float().cpu(), {k: v.cpu() for k, v in gradients.items()})
        self._model.zero_grad(set_to_none=True)
        return run

    def _as_input(self, frames: Tensor) -> Tensor:
        if not frames.is_floating_point():
            return frames
        return frames.float() if self._is_mixed else frames.bfloat16()

    def _autocast(self, *, is_off: bool = False) -> AbstractContextManager[object]:
        if is_off or not self._is_mixed:
            return nullcontext()
        device = next(self._model.parameters()).device.type
        return torch.autocast(device, dtype=torch.bfloat16)
