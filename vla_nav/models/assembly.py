"""From a model's configuration to the model and its prompt: `conf/models/*.yaml` is `ModelConfig`.

    backbone [+ LoRA] + tokenizer -> text table      action space + prompt -> own tokens
    encoder -> projector -> vision tokens            head at the predictors

Everything that is not read from files is drawn from `seed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import torch
from torch import nn

from vla_nav.actions.types import ActionSpace
from vla_nav.episodes.types import Embodiment
from vla_nav.errors import UserError, unknown_name
from vla_nav.models.backbone import BackboneConfig, build_backbone
from vla_nav.models.lora import LoraConfig, add_lora
from vla_nav.models.prompt import Layout, PromptBuilder, PromptConfig
from vla_nav.models.tokenizer import TOKENIZERS, Tokenizer, load_tokenizer
from vla_nav.models.vla import HEADS, VLA
from vla_nav.vision.projector import Projector


@dataclass(frozen=True)
class ModelConfig:
    """backbone: see backbone.py. tokenizer, tokenizer_path: see tokenizer.py (the path of `folder`
    and `gguf` defaults to the backbone's). projector_hidden: None means the hidden size. head:
    actions | full. tie_head: head rows = embedding rows. lora: adapters instead of the backbone's
    own weights (lora.py), None trains those."""

    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    tokenizer: str = "mistral_v3"
    tokenizer_path: str | None = None
    projector_hidden: int | None = None
    head: str = "actions"
    tie_head: bool = False
    lora: LoraConfig | None = None
    prompt: PromptConfig = field(default_factory=PromptConfig)
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.backbone, Mapping):
            object.__setattr__(self, "backbone", BackboneConfig(**self.backbone))
        if isinstance(self.prompt, Mapping):
            object.__setattr__(self, "prompt", PromptConfig(**self.prompt))
        if isinstance(self.lora, Mapping):
            object.__setattr__(self, "lora", _lora(self.lora))
        elif self.lora is not None and not isinstance(self.lora, LoraConfig):
            raise UserError(
                f"models.lora={self.lora!r}: needs keys such as {{rank: 16, alpha: 32}}, or null "
                "for no adapters"
            )
        if self.lora is not None and self.backbone.compile:
            raise UserError(
                f"models.backbone.compile={self.backbone.compile} computes layers without their "
                "adapters; with models.lora set models.backbone.compile=false"
            )
        if self.tokenizer not in TOKENIZERS:
            raise unknown_name("models.tokenizer", self.tokenizer, TOKENIZERS)
        if self.head not in HEADS:
            raise unknown_name("models.head", self.head, HEADS)

    def describe(self) -> dict[str, Any]:
        """Constructor keywords as plain values."""
        return {
            "backbone": self.backbone.describe(),
            "tokenizer": self.tokenizer,
            "tokenizer_path": self.tokenizer_path,
            "projector_hidden": self.projector_hidden,
            "head": self.head,
            "tie_head": self.tie_head,
            "lora": None if self.lora is None else self.lora.describe(),
            "prompt": self.prompt.describe(),
            "seed": self.seed,
        }

    def load_tokenizer(self) -> Tokenizer:
        """The configured tokenizer."""
        if self.tokenizer_path is None and self.tokenizer == self.backbone.source:
            return load_tokenizer(self.tokenizer, self.backbone.path, key="models.backbone.path")
        return load_tokenizer(self.tokenizer, self.tokenizer_path)


class Assembled(NamedTuple):
    """A model and the prompt builder that belongs to it."""

    model: VLA
    prompt: PromptBuilder


def build_prompt(
    config: ModelConfig,
    *,
    action_space: ActionSpace,
    embodiment: Embodiment,
    layout: Layout,
    num_full: int,
    num_pooled: int,
) -> PromptBuilder:
    """The prompt builder alone: what loader workers and `stats` need, without any weights."""
    tokenizer = config.load_tokenizer()
    return PromptBuilder(
        tokenizer,
        action_space,
        embodiment,
        config.prompt,
        layout,
        num_full=num_full,
        num_pooled=num_pooled,
    )


def assemble(
    config: ModelConfig,
    *,
    action_space: ActionSpace,
    embodiment: Embodiment,
    layout: Layout,
    encoder: nn.Module,
    attention: str = "sdpa",
) -> Assembled:
    """The model and its prompt. encoder: a `TimmEncoder`, used on pixels (in training only where
    frames come as pixels; the policy always), with `num_full`, `num_pooled` and `feature_dim`.

    Raises `UserError` for files, names and values that do not fit.
    """
    prompt = build_prompt(
        config,
        action_space=action_space,
        embodiment=embodiment,
        layout=layout,
        num_full=encoder.num_full,
        num_pooled=encoder.num_pooled,
    )
    backbone = build_backbone(config.backbone, num_text=prompt.vocabulary.num_text)
    if config.lora is not None:
        add_lora(backbone.model, config.lora, seed=config.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        size = backbone.hidden_size
        projector = Projector(encoder.feature_dim, config.projector_hidden or size, size)
        model = VLA(
            backbone,
            projector,
            prompt.vocabulary,
            encoder=encoder,
            num_patches=encoder.num_full + encoder.num_pooled,
            head=config.head,
            tie_head=config.tie_head,
            attention=attention,
        )
    return Assembled(model, prompt)


def _lora(values: Mapping[str, Any]) -> LoraConfig:
    known = [item.name for item in fields(LoraConfig)]
    for key in values:
        if key not in known:
            raise unknown_name("key of models.lora", str(key), known)
    return LoraConfig(**values)
