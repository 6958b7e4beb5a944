"""A step of trees and a step of their flat paths, which leave the same gradients in one model.

    tree   one pack                                   forward, backward
    flat   pack 0, pack 1, ...                        forward, backward; gradients add up
           with a vision tower in the step:
             again    tower(frames of pack i) before every pack
             once     tower(all frames) -> packs of detached features -> back through the tower

Loss: sum over trees of the mean over paths, by the same function on both sides.

Axis legend: F frames, P tokens of a frame, D feature width; q (1, T, H, D).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from vla_nav.attention.types import Backend
from vla_nav.losses import Predictions, weighted_cross_entropy
from vla_nav.models.backbone import Attend
from vla_nav.models.hybrid import TreeRouting
from vla_nav.models.vla import VLA
from vla_nav.profiling.flat import FlatPack
from vla_nav.tree import PackedTree


class StepSides:
    """The two steps; both return the loss. autocast: what a forward runs under.

    frames: (F, P, D) features, or (F, H, W, 3) uint8 for the model's tower, of all trees.
    is_encoded_again: the flat side encodes the frames of every pack anew.
    """

    def __init__(
        self,
        model: VLA,
        attention: Backend,
        packed: PackedTree,
        plan: Any,
        packs: Sequence[FlatPack],
        frames: Tensor,
        *,
        autocast: Callable[[], AbstractContextManager[Any]],
        is_encoded_again: bool = False,
    ) -> None:
        self.model, self.attention = model, attention
        self.packed, self.plan, self.packs = packed, plan, packs
        self.frames, self.is_encoded_again = frames, is_encoded_again
        self.autocast = autocast
        self.num_trees = packed.num_trees
        self.last_flat = torch.zeros(())
        self._optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.0)

    def tree(self) -> Tensor:
        """All trees at once."""
        self._begin()

        def attend(q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float) -> Tensor:
            return self.attention.attend(q, k, v, self.plan, scale)

        loss = self._loss(self.packed, self.model.features(self.frames), attend)
        loss.backward()
        return loss.detach()

    def flat(self) -> Tensor:
        """Every path, pack by pack."""
        return self.flat_part(len(self.packs))

    def flat_part(self, count: int) -> Tensor:
        """The first `count` packs, the longest paths first."""
        self._begin()
        losses: list[Tensor] = []
        if self.model.encoder is None:
            for part in self.packs[:count]:
                losses.append(self._backward(part.packed, self.frames, part))
        elif self.is_encoded_again:
            for part in self.packs[:count]:
                features = self.model.features(self.frames[part.own_frames])
                losses.append(self._backward(part.with_own_frames(), features, part))
        else:
            features = self.model.features(self.frames)  # (F, P, D)
            leaf = features.detach().requires_grad_()
            for part in self.packs[:count]:
                losses.append(self._backward(part.packed, leaf, part))
            features.backward(leaf.grad)
        self.last_flat = torch.stack(losses).sum()
        return self.last_flat

    def _begin(self) -> None:
        """No gradients, and nothing that a model keeps from one optimiser step to the next."""
        self.model.zero_grad(set_to_none=True)
        self._optimiser.step()  # of no weight of the model: what is kept for a step is dropped

    def _backward(self, packed: PackedTree, features: Tensor, part: FlatPack) -> Tensor:
        loss = self._loss(packed, features, part.attend)
        loss.backward()
        return loss.detach()

    def _loss(self, packed: PackedTree, features: Tensor, attend: Attend) -> Tensor:
        """The same on both sides; each sums to the path-mean loss over all trees."""
        with self.autocast():
            embeddings = self.model.embed(
                packed.token_ids,
                packed.frame_index,
                packed.patch_index,
                features,
                vision_index=packed.vision_index,
            )
            hidden = self.model.decode(
                embeddings[None],
                packed.position_ids[None],
                attend,
                TreeRouting(packed.heavy_paths),
            )[0]
            found = Predictions(
                hidden.index_select(0, packed.predictor_index),
                self.model.head_weights(),
                self.model.logits,
            )
            return weighted_cross_entropy(found, packed, denominator=float(self.num_trees)).value
