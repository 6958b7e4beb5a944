"""The vision-language-action model: token embeddings, a backbone, a head at the predictors.

    token_ids ----> text table (backbone)  or own table (actions, specials, pose)
    frames ----> [encoder] --> features (F, P, D_v) --> projector --+ patch row + camera row
                                                                    v  at vision tokens
    embeddings (1, T, E) --> backbone, attention by the pack's plan --> hidden (T, E)
    hidden[predictor_index] (M, E) --> head --> logits (M, V_out)

Head `actions`: V_out = A action tokens. Head `full`: V_out = all tokens, own ones first. Column k
is token k under both (vocabulary.py), so targets need no translation. Only predictors reach the
head.

Axes: B batch, T packed tokens, M targets, F frames, P tokens of a frame, E hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vla_nav.attention.registry import backend
from vla_nav.errors import UserError, unknown_name
from vla_nav.losses.predictions import Predictions
from vla_nav.models.backbone import Attend, Backbone
from vla_nav.models.gateway import Gateway
from vla_nav.models.hybrid import Recurrence, TreeRouting
from vla_nav.models.vocabulary import Vocabulary
from vla_nav.tree import PackedTree

HEADS = ("actions", "full")
_Result = TypeVar("_Result")


class VLA(nn.Module):
    """See the module's docstring.

    encoder: a module with `encode(uint8 frames) -> (F, P, D_v)`, or None where features are given.
    num_patches: P, full and pooled tokens of a frame. attention: a backend's name, used with the
    plans that this backend made. tie_head: the head's rows are those of the own table.
    """

    def __init__(
        self,
        backbone: Backbone,
        projector: nn.Module,
        vocabulary: Vocabulary,
        *,
        encoder: nn.Module | None = None,
        num_patches: int,
        head: str = "actions",
        tie_head: bool = False,
        attention: str = "sdpa",
    ) -> None:
        super().__init__()
        if head not in HEADS:
            raise unknown_name("models.head", head, HEADS)
        self.backbone, self.projector, self.encoder = backbone, projector, encoder
        self.vocabulary, self.head = vocabulary, head
        size = backbone.hidden_size
        scale = float(backbone.model.config.initializer_range)
        self.own_embedding = nn.Embedding(vocabulary.num_own, size)
        self.patch_embedding = nn.Embedding(num_patches, size)
        for table in (self.own_embedding, self.patch_embedding):
            nn.init.normal_(table.weight, std=scale)
        num_rows = vocabulary.num_actions if head == "actions" else vocabulary.num_own
        self.own_head = None if tie_head else nn.Linear(size, num_rows, bias=False)
        if self.own_head is not None:
            nn.init.normal_(self.own_head.weight, std=scale)
        self.text_head = None
        if head == "full" and not backbone.is_tied:
            self.text_head = backbone.text_head or nn.Linear(size, vocabulary.num_text, bias=False)
            if backbone.text_head is None:
                nn.init.normal_(self.text_head.weight, std=scale)
        backbone.text_head = None  # it lives here, or nowhere
        self.attention_name = attention
        self._attend = backend(attention).attend

    @property
    def num_outputs(self) -> int:
        """V_out."""
        return self.vocabulary.num_actions if self.head == "actions" else self.vocabulary.num_tokens

    def forward(
        self, packed: PackedTree, frames: Tensor, plan: Any, gateway: Gateway | None = None
    ) -> Tensor:
        """Logits (M, V_out) at the pack's predictors.

        frames: (F, H, W, 3) uint8 for the encoder, or (F, P, D_v) features; rows as in the pack's
        frame table. plan: this model's attention backend's plan of the pack. gateway: where the
        pack is a partition.
        """
        return self.predictions(packed, frames, plan, gateway).dense()

    def through(self, run: Callable[[VLA], _Result]) -> _Result:
        """`run(self)`, as one pass: sharded weights are whole while it lasts. The one door besides
        `forward` through which training enters; passes do not nest."""
        return run(self)

    def predictions(
        self, packed: PackedTree, frames: Tensor, plan: Any, gateway: Gateway | None = None
    ) -> Predictions:
        """The same before the head: losses compute many logits in chunks."""
        hidden = self.hidden_states(packed, frames, plan, gateway)  # (T, E)
        at_predictors = hidden.index_select(0, packed.predictor_index)
        return Predictions(at_predictors, self.head_weights(), self.logits)

    def hidden_states(
        self, packed: PackedTree, frames: Tensor, plan: Any, gateway: Gateway | None = None
    ) -> Tensor:
        """Hidden states (T, E) after the last norm, in pack order."""
        features = self.features(frames)
        embeddings = self.embed(
            packed.token_ids,
            packed.frame_index,
            packed.patch_index,
            features,
            vision_index=packed.vision_index,
        )

        def attend(q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float) -> Tensor:
            return self._attend(q, k, v, plan, scale)

        if gateway is not None:
            attend = gateway.bind(attend)
        recur = TreeRouting(packed.heavy_paths, None if gateway is None else gateway.carry)
        return self.decode(embeddings[None], packed.position_ids[None], attend, recur)[0]

    def features(self, frames: Tensor) -> Tensor:
        """uint8 frames through the encoder; features as they are."""
        if frames.dtype != torch.uint8:
            return frames
        if self.encoder is None:
            raise UserError(
                "the model has no encoder, but frames are pixels; give cached features "
                "(vla-nav encode), or an encoder (vision=...)"
            )
        return self.encoder.encode(frames)

    def embed(
        self,
        token_ids: Tensor,
        frame_index: Tensor,
        patch_index: Tensor,
        features: Tensor,
        *,
        vision_index: Tensor | None = None,
    ) -> Tensor:
        """Embeddings (T, E) of tokens (T,); vision tokens show features[frame, patch].

        vision_index: where frame_index >= 0; None looks it up, which waits for the device.
        """
        num_own = self.vocabulary.num_own
        is_own = token_ids < num_own
        text = self.backbone.text_embedding((token_ids - num_own).clamp_min(0))
        own = self.own_embedding(token_ids.clamp_max(num_own - 1))
        embeddings = torch.where(is_own[:, None], own, text)  # (T, E)
        shown = (frame_index >= 0).nonzero()[:, 0] if vision_index is None else vision_index
        if len(shown) == 0:
            return embeddings
        patch = patch_index.index_select(0, shown).long()
        row = frame_index.index_select(0, shown).long() * features.shape[1] + patch
        seen = self.projector(features.flatten(0, 1).index_select(0, row))
        seen = seen + self.patch_embedding(patch)
        return embeddings.index_add(0, shown, seen.to(embeddings.dtype))

    def decode(
        self,
        embeddings: Tensor,
        position_ids: Tensor,
        attend: Attend,
        recur: Recurrence | None = None,
    ) -> Tensor:
        """(B, T, E) embeddings and (B, T) positions through the backbone: (B, T, E). recur: what
        routes the states of recurrent layers."""
        return self.backbone(embeddings, position_ids, attend, recur)

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states (M, E) -> (M, V_out); column k is token k."""
        own, *text = (F.linear(hidden, weight) for weight in self.head_weights())
        return torch.cat([own, *text], dim=-1) if text else own

    def head_weights(self) -> tuple[Tensor, ...]:
        """The head's rows in the order of the columns: own tokens (V_own, E), and text tokens
        (V_text, E) where it has them."""
        num_rows = self.num_outputs if self.head == "actions" else self.vocabulary.num_own
        own = self.own_embedding.weight if self.own_head is None else self.own_head.weight
        own = own if len(own) == num_rows else own[:num_rows]
        if self.head == "actions":
            return (own,)
        text = self.backbone.text_embedding if self.text_head is None else self.text_head
        num_text = self.vocabulary.num_text
        weight = text.weight
        return own, weight if len(weight) == num_text else weight[:num_text]

    def head_tokens(self, columns: Tensor) -> Tensor:
        """Token ids of logit columns: the same numbers, by the order of the vocabulary."""
        return columns
