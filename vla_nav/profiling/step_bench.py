"""One training step: trees in a pack against their flat paths, the same model, loss and policies.

    tree   all trees that a token budget holds, one pack: forward, backward
    flat   every path of the same trees, packed to the same budget: forward, backward per pack
    measured = flat time / tree time       of FLOP bound = measured / FLOP bound

Both sides begin without gradients and end with those of one optimiser step; the optimiser itself is
not part of it. Packs lie on the device, so nothing waits for data. What is the same on both sides:
weights, loss (path mean), checkpointing, compiled layers, fused norms, random data.

    vision   cached                features are given
             trained               the vision tower is in the step: a tree encodes each frame once,
                                   the flat side the frames of every path in a pack again
             trained, flat caches  the flat side encodes each frame once too, before its first pack,
                                   and goes back through the tower after its last

Gradients of a small tree are compared first, those of the timed steps at the end: nothing is
reported where they differ.

Axis legend: F frames, P tokens of a frame, D feature width.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

import torch
from torch import Tensor

from vla_nav.attention.parity import require_parity
from vla_nav.attention.registry import backend
from vla_nav.errors import UserError, unknown_name
from vla_nav.models.backbone import disable_checkpointing, enable_checkpointing
from vla_nav.models.hybrid.parity import require_recurrence
from vla_nav.profiling.bounds import PEAK_FLOPS, bounds, encoder_flops, flop_model
from vla_nav.profiling.flat import flat_packs
from vla_nav.profiling.step_row import StepRow
from vla_nav.profiling.step_sides import StepSides
from vla_nav.profiling.synthetic import (
    FEATURE_WIDTH,
    Forest,
    TreeShape,
    synthetic_features,
    synthetic_model,
)
from vla_nav.profiling.timing import measure
from vla_nav.tree import PrefixTree, pack
from vla_nav.vision.encoder import TimmEncoder

VISION = ("cached", "trained", "trained, flat caches")
# Median over tensors of the relative difference by norm: bfloat16 gradients of another batch shape
# are a few hundredths off, a wrong target, weight or position is 0.3 and more off.
DRIFT = {torch.bfloat16: 0.1, torch.float32: 1e-3, torch.float64: 1e-9}
_SAMPLES = 4096  # gradient values kept of a tensor
_TREE_STEPS = 2  # tree steps a sample: the flat side has many packs behind one another
_WARM_PACKS = 2  # flat packs run before the flat side is timed


class StepBench:
    """Steps of one model. is_checkpointed: activations are recomputed, on both sides; a tree pack
    that does not fit without turns it on for its own row. weights: their dtype, and that of the
    gradients; where it is wider than `dtype`, products are computed under autocast."""

    def __init__(
        self,
        size: str,
        attention: str,
        *,
        device: str,
        num_patches: int,
        dtype: torch.dtype = torch.bfloat16,
        weights: torch.dtype = torch.bfloat16,
        compile_layers: str | bool = False,
        head: str = "actions",
        is_checkpointed: bool = False,
        num_layers: int | None = None,
        tower: str = "vit_base_patch16_224",
        feature_width: int = FEATURE_WIDTH,
        log: Callable[[str], None] = print,
    ) -> None:
        self.size, self.device, self.dtype, self.weights = size, device, dtype, weights
        self.is_checkpointed = is_checkpointed
        self.tower, self.log = tower, log
        self.attention = backend(attention, device=torch.device(device).type)
        self.model = synthetic_model(
            size,
            attention,
            device=device,
            dtype=weights,
            num_patches=num_patches,
            num_layers=num_layers,
            feature_width=feature_width,
            compile_layers=compile_layers,
            head=head,
        )
        self.feature_width = feature_width
        require_parity(
            attention, device, dtype=dtype, **self.model.backbone.attention_shape._asdict()
        )
        require_recurrence(self.model.backbone.model, device, dtype)
        self._checked: set[tuple[str, int]] = set()

    def autocast(self) -> torch.autocast:
        """What a forward runs under."""
        kind = torch.device(self.device).type
        return torch.autocast(kind, dtype=self.dtype, enabled=self.dtype != self.weights)

    def row(
        self,
        forest: Forest,
        *,
        vision: str,
        budget: int,
        repeats: int = 10,
        flat_repeats: int = 2,
    ) -> StepRow:
        """Time both sides of the forest. Raises `UserError` where their gradients differ."""
        if vision not in VISION:
            raise unknown_name("value of vision", vision, VISION)
        self._set_tower(forest, vision)
        self._check_small(forest, vision, budget)
        for is_checkpointed in sorted({self.is_checkpointed, True}):
            try:
                return self._row(forest, vision, budget, repeats, flat_repeats, is_checkpointed)
            except torch.OutOfMemoryError as error:
                if is_checkpointed:
                    raise UserError(
                        f"{forest} of {self.size}: out of memory with budget={budget}, also with "
                        f"recomputed activations; give a smaller budget ({error})"
                    ) from None
                self.log(f"  {forest}: does not fit, so both sides recompute their activations")
            self.model.zero_grad(set_to_none=True)
            gc.collect()
            torch.cuda.empty_cache()
        raise AssertionError

    def _row(
        self,
        forest: Forest,
        vision: str,
        budget: int,
        repeats: int,
        flat_repeats: int,
        is_checkpointed: bool,
    ) -> StepRow:
        self._checkpoint(is_checkpointed)
        trees = forest.trees(budget)
        sides = self._sides(forest, trees, vision, budget)
        tree = measure(sides.tree, device=self.device, repeats=repeats, calls=_TREE_STEPS)
        tree_loss, tree_gradients = sides.tree(), self._gradients()
        self.log(f"  {forest} {vision}: tree {tree.time_ms:.1f} ms")
        sides.flat_part(_WARM_PACKS)
        flat = measure(sides.flat, device=self.device, repeats=flat_repeats, warmups=0)
        self.log(f"  {forest} {vision}: flat {flat.time_ms:.1f} ms")
        drift = self._compare(
            f"{forest} of {self.size}", tree_loss, sides.last_flat, tree_gradients
        )
        encoder = self.model.encoder
        cost = flop_model(
            self.model, frame_flops=encoder_flops(encoder, self.device) if encoder else 0.0
        )
        bound = bounds(trees, cost, flat_encodes_once=vision != "trained")
        measured = flat.time_ms / tree.time_ms
        return StepRow(
            model=self.size,
            tree=str(forest),
            vision=vision,
            tree_ms=tree.time_ms,
            flat_ms=flat.time_ms,
            token_bound=bound.token_bound,
            flop_bound=bound.flop_bound,
            measured=measured,
            of_flop_bound=measured / bound.flop_bound,
            mfu=bound.tree_flops / tree.time_ms * 1e3 / PEAK_FLOPS,
            flat_mfu=bound.flat_flops / flat.time_ms * 1e3 / PEAK_FLOPS,
            num_trees=len(trees),
            tokens=bound.stats.num_tree_tokens,
            flat_tokens=bound.stats.num_flat_tokens,
            flat_packs=len(sides.packs),
            budget=budget,
            depth=forest.shape.depth,
            factor=forest.shape.factor,
            por=bound.stats.potential_overlap,
            is_checkpointed=is_checkpointed,
            tree_gib=tree.peak_bytes / 2**30,
            flat_gib=flat.peak_bytes / 2**30,
            gradient_drift=drift,
        )

    def _sides(
        self, forest: Forest, trees: Sequence[PrefixTree], vision: str, budget: int
    ) -> StepSides:
        """Both steps of these trees, ready to run."""
        num_tokens = sum(tree.num_tokens for tree in trees)
        packed = pack(trees, pad_to=self.attention.padded_length(num_tokens))
        plan = self.attention.plan(packed).to(self.device)
        packs = [flat.to(self.device) for flat in flat_packs(trees, budget)]
        if self.model.encoder is None:
            frames = synthetic_features(
                forest.shape, len(trees), self.device, self.dtype, width=self.feature_width
            )
        else:
            count = sum(tree.num_frames for tree in trees)
            size = (count, *self.model.encoder.image_size, 3)
            frames = torch.randint(0, 256, size, dtype=torch.uint8, device=self.device)
        return StepSides(
            self.model,
            self.attention,
            packed.to(self.device),
            plan,
            packs,
            frames,
            autocast=self.autocast,
            is_encoded_again=vision == "trained",
        )

    def _check_small(self, forest: Forest, vision: str, budget: int) -> None:
        """Gradients of a tree of a few frames, tree against flat, once per kind of shape."""
        shape = forest.shape
        short = (
            replace(shape, steps=min(3, shape.steps))
            if isinstance(shape, TreeShape)
            else replace(shape, depth=min(2, shape.depth), factor=min(2, shape.factor))
        )
        key = (vision, shape.frame)
        if key in self._checked:
            return
        self._checkpoint(self.is_checkpointed)
        small = Forest(short, 2)
        sides = self._sides(small, small.trees(), vision, budget)
        loss, gradients = sides.tree(), self._gradients()
        sides.flat()
        drift = self._compare(f"{small} of {self.size}, {vision}", loss, sides.last_flat, gradients)
        self.log(f"  {small} {vision}: gradients of tree and flat differ by {drift:.2g}")
        self._checked.add(key)

    def _compare(
        self, what: str, tree_loss: Tensor, flat_loss: Tensor, gradients: list[Tensor | None]
    ) -> float:
        """The median relative difference over tensors between `gradients` and the present ones."""
        drifts = []
        for a, b in zip(gradients, self._gradients(), strict=True):
            if (a is None) != (b is None):
                raise UserError(f"{what}: only one of tree and flat has some gradients")
            if a is not None and b is not None and float(b.norm()) > 0:
                drifts.append(float((a - b).norm() / b.norm()))
        drift, allowed = median(drifts), DRIFT[self.dtype]
        losses = float(tree_loss), float(flat_loss)
        if not (drift <= allowed and abs(losses[0] / losses[1] - 1) <= allowed):
            raise UserError(
                f"{what}: tree and flat differ: gradients by {drift:.2g} (allowed {allowed:g}), "
                f"losses {losses[0]:.5g} and {losses[1]:.5g}; nothing is reported"
            )
        return drift

    def _gradients(self) -> list[Tensor | None]:
        """Up to _SAMPLES evenly spread values of every parameter's gradient."""
        return [
            None
            if parameter.grad is None
            else parameter.grad.flatten()[:: max(1, parameter.numel() // _SAMPLES)].float()
            for parameter in self.model.parameters()
        ]

    def _set_tower(self, forest: Forest, vision: str) -> None:
        """The vision tower of this row in the model, or none."""
        if vision == "cached":
            self.model.encoder = None
            return
        if forest.shape.history:
            raise UserError(f"{forest}: vision={vision} is for trees without pooled history")
        encoder = TimmEncoder(
            self.tower,
            num_tokens=forest.shape.frame,
            num_pooled=0,
            dtype="bfloat16" if self.dtype == torch.bfloat16 else "float32",
            freeze=False,
        )
        if encoder.feature_dim != self.feature_width:
            raise UserError(
                f"tower={self.tower}: its features have {encoder.feature_dim} channels, the "
                f"projector takes {self.feature_width}"
            )
        self.model.encoder = encoder.to(self.device, self.weights)

    def _checkpoint(self, is_on: bool) -> None:
        (enable_checkpointing if is_on else disable_checkpointing)(self.model.backbone.model)
