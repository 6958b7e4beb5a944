"""Transformers backbones with this project's attention (and recurrence) inside.

    embeddings (B, T, E) -> unmodified transformers layers -> hidden (B, T, E)
                               |  attention "vla_nav"
                               v
             attend(q, k, v, layer, scale)    q (B, T, H, D); k, v (B, T, Hkv, D), after RoPE

The attention is bound through transformers' public AttentionInterface under one name; what it
does is decided per call by the `attend` keyword, which the layers hand through: the packed
tree's backend in training, the KV cache in the policy. A mask function that returns None is
registered beside it, because transformers otherwise guesses packed sequences from position ids.

Decoders of attention alone: Qwen3, Mistral, Llama. Hybrids: Qwen3.5 (gated delta net) and Bamba
(Mamba-2), whose recurrent layers are routed by the `recur` keyword (`vla_nav.models.hybrid`).
Layers of any other type are refused: their state would cross the branches of a tree.

Weights: `config` (random, from `seed`), `folder` (a local Hugging Face model), `gguf` (a file, or
package://module/file).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vla_nav.errors import UserError, unknown_name
from vla_nav.models.hybrid import KERNELS, Recurrence, adopt_mixers, check_recurrence
from vla_nav.models.norms import fuse_norms
from vla_nav.models.tokenizer import locate

DECODERS = ("qwen3", "mistral", "llama")  # families of attention alone
HYBRIDS = ("qwen3_5_text", "bamba")  # families with recurrent layers
FAMILIES = (*DECODERS, *HYBRIDS)
SOURCES = ("config", "folder", "gguf")
NORMS = ("transformers", "fused")
COMPILE = (False, "layers", "joined")
ATTENTION_NAME = "vla_nav"
_NO_ARCHITECTURE = frozenset(  # keys of a transformers config that say where it came from
    ("model_type", "transformers_version", "architectures", "dtype", "quantization_config")
)
_RECURRENT = "linear_attention"  # as transformers calls layers of either kind of recurrence
_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")

Attend = Callable[[Tensor, Tensor, Tensor, int, float], Tensor]


@dataclass(frozen=True)
class BackboneConfig:
    """Where a backbone comes from.

    source: config | folder | gguf. family and options (the transformers config's own keywords:
    hidden_size, num_hidden_layers, ...) describe a random one; path names the files of the others.
    gradient_checkpointing: recompute layers in the backward pass: false (keep their activations),
    true (every layer), or k: every k-th layer. norms: transformers' own, or
    `fused` (norms.py): the same function in one kernel, for GPUs. compile: false, or `layers`
    (layers.py): training runs every layer as two compiled halves around attention; `joined`: with
    one matrix product for q, k and v (a copy of their weights is kept). kernels, of recurrent
    layers: `fla` (flash-linear-attention, for GPUs), `torch`, or `auto`: by device.
    """

    source: str = "config"
    family: str = "qwen3"
    path: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    gradient_checkpointing: bool | int = False
    norms: str = "transformers"
    compile: str | bool = False
    kernels: str = "auto"

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise unknown_name("models.backbone.source", self.source, SOURCES)
        if self.family not in FAMILIES:
            raise unknown_name("models.backbone.family", self.family, FAMILIES)
        if self.norms not in NORMS:
            raise unknown_name("models.backbone.norms", self.norms, NORMS)
        if self.kernels not in KERNELS:
            raise unknown_name("models.backbone.kernels", self.kernels, KERNELS)
        if self.compile not in COMPILE:
            given, allowed = str(self.compile).lower(), (str(name).lower() for name in COMPILE)
            raise unknown_name("models.backbone.compile", given, allowed)
        if type(self.gradient_checkpointing) is not bool and (
            type(self.gradient_checkpointing) is not int or self.gradient_checkpointing < 1
        ):
            raise UserError(
                f"models.backbone.gradient_checkpointing={self.gradient_checkpointing}; allowed: "
                "false, true (recompute every layer), or k >= 1 (recompute every k-th layer)"
            )
        if self.compile and self.norms != "fused":
            raise UserError(
                f"models.backbone.compile={self.compile} has norms of its own, the fused ones; "
                f"models.backbone.norms={self.norms} needs compile=false, or set it to fused"
            )
        if self.source != "config" and self.path is None:
            raise UserError(f"models.backbone.source={self.source}: models.backbone.path is needed")

    def describe(self) -> dict[str, Any]:
        """Constructor keywords as plain values."""
        return {**asdict(self), "options": dict(self.options)}


class AttentionShape(NamedTuple):
    """Heads of a layer and their width; the keywords of `attention.require_parity`."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


class Backbone(nn.Module):
    """A decoder without head. `text_head`: the pretrained text head where it is not tied."""

    def __init__(self, model: nn.Module, text_head: nn.Linear | None = None) -> None:
        super().__init__()
        self.model = model
        self.text_head = text_head
        self.norms = "transformers"
        self.kernels = "auto"
        self.hidden_size: int = model.config.hidden_size
        self.num_layers: int = model.config.num_hidden_layers
        kinds = getattr(model.config, "layer_types", None) or ()
        self.num_recurrent: int = sum(kind == _RECURRENT for kind in kinds)
        self.max_positions: int = model.config.max_position_embeddings
        self.is_tied: bool = bool(model.config.tie_word_embeddings)

    @property
    def attention_shape(self) -> AttentionShape:
        """Query heads, key heads and head dim of every layer."""
        config = self.model.config
        heads = config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        return AttentionShape(heads, config.num_key_value_heads or heads, head_dim)

    @property
    def text_embedding(self) -> nn.Embedding:
        """The text table, (num_text, E)."""
        return self.model.embed_tokens

    def forward(
        self,
        embeddings: Tensor,
        position_ids: Tensor,
        attend: Attend,
        recur: Recurrence | None = None,
    ) -> Tensor:
        """embeddings (B, T, E), position_ids (B, T) int64 -> normed hidden (B, T, E). recur: what
        recurrent layers need, unused where there are none."""
        routed = {"recur": recur} if self.num_recurrent else {}
        output = self.model(
            inputs_embeds=embeddings,
            # Taken as a finished mask, so transformers does not look for packed sequences in the
            # positions (which waits for the device); its own attention would fail on this shape.
            attention_mask=embeddings.new_empty(1, 1, 1, 0),
            position_ids=position_ids,
            use_cache=False,
            attend=attend,
            **routed,
        )
        return output.last_hidden_state

    def architecture(self) -> dict[str, Any]:
        """Keywords of a `config` backbone of the same shape; its weights are stored elsewhere."""
        known = type(self.model.config)()
        options = {
            key: value
            for key, value in self.model.config.to_diff_dict().items()
            if key not in _NO_ARCHITECTURE
            and not key.startswith("_")
            and hasattr(known, key)
            and not _is_same_pair(value, getattr(known, key))
        }
        family = self.model.config.model_type
        found = {"source": "config", "family": family, "options": options, "norms": self.norms}
        return found | ({"kernels": self.kernels} if self.num_recurrent else {})


def build_backbone(config: BackboneConfig, *, num_text: int) -> Backbone:
    """The backbone of `config`. num_text: text ids that its table must hold at least.

    Raises `UserError` for unknown keys, unreadable files and unsupported architectures.
    """
    bind_attention()
    builder = _from_config if config.source == "config" else _from_files
    backbone = builder(config, num_text)
    check_architecture(backbone.model.config)
    if backbone.text_embedding.num_embeddings < num_text:
        raise UserError(
            f"models.backbone: its text table has {backbone.text_embedding.num_embeddings} rows, "
            f"the tokenizer {num_text} ids; choose the tokenizer that belongs to the model"
        )
    adopt_mixers(backbone.model, config.kernels)
    backbone.kernels = config.kernels
    if config.norms == "fused":
        fuse_norms(backbone.model)
    backbone.norms = config.norms
    if config.compile:
        if backbone.num_recurrent:
            raise UserError(
                f"models.backbone.compile={config.compile}: {backbone.model.config.model_type} has "
                "recurrent layers, which are not compiled; set models.backbone.compile=false"
            )
        from vla_nav.models.layers import compile_layers

        compile_layers(backbone.model, is_joined=config.compile == "joined")
    if config.gradient_checkpointing:
        enable_checkpointing(backbone.model, every=int(config.gradient_checkpointing))
    return backbone


def enable_checkpointing(model: Any, *, every: int = 1) -> None:
    """Recompute every `every`-th layer of a transformers model in the backward pass."""
    # Renamed in transformers 5.24; the old name goes away in 6.
    enable = getattr(model, "activation_checkpointing_enable", None)
    (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
    for number, layer in enumerate(model.layers, start=1):
        layer.gradient_checkpointing = number % every == 0


def disable_checkpointing(model: Any) -> None:
    """Keep the activations of a transformers model again."""
    disable = getattr(model, "activation_checkpointing_disable", None)
    (disable or model.gradient_checkpointing_disable)()


def bind_attention() -> None:
    """Register the attention and its mask function under `vla_nav`; idempotent."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(ATTENTION_NAME, _bound_attention)
    AttentionMaskInterface.register(ATTENTION_NAME, _no_mask)


def check_architecture(config: Any) -> None:
    """Raise `UserError` unless every layer is plain full attention with fixed rotary angles, or a
    recurrence that is routed."""
    if config.model_type not in FAMILIES:
        raise unknown_name("backbone family", config.model_type, FAMILIES)
    supported = {"full_attention"} | ({_RECURRENT} if config.model_type in HYBRIDS else set())
    kinds = sorted(set(getattr(config, "layer_types", None) or ()) - supported)
    check_recurrence(config)
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    if kinds or (window is not None and window < config.max_position_embeddings):
        raise UserError(
            f"backbone {config.model_type}: layers of type {kinds or ['sliding_attention']} "
            f"(sliding_window={window}) are not supported, only {' and '.join(sorted(supported))}; "
            "for a window that never binds set max_position_embeddings <= sliding_window, or "
            "sliding_window null"
        )
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") in _LENGTH_DEPENDENT_ROPE:
        raise UserError(
            f"backbone {config.model_type}: rope_type {rope['rope_type']} depends on the length of "
            "the sequence, so a packed tree would differ from its paths; use default or linear"
        )
    if getattr(config, "attention_dropout", 0.0):
        raise UserError(
            f"backbone {config.model_type}: attention_dropout={config.attention_dropout} would "
            "make shared tokens differ between paths; set it to 0"
        )


def _from_config(config: BackboneConfig, num_text: int) -> Backbone:
    from transformers import AutoConfig, AutoModel

    options = {"vocab_size": num_text, "pad_token_id": None, "use_cache": False, **config.options}
    if config.family == "mistral":
        options.setdefault("sliding_window", None)
    known = AutoConfig.for_model(config.family)
    for key in config.options:
        if not hasattr(known, key):
            raise unknown_name(
                f"key of models.backbone.options ({config.family})", key, known.to_dict()
            )
    try:
        model_config = AutoConfig.for_model(config.family, **options)
        check_architecture(model_config)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            model = AutoModel.from_config(model_config, attn_implementation=ATTENTION_NAME)
    except (TypeError, RuntimeError, ZeroDivisionError) as error:
        raise UserError(f"models.backbone.options={dict(config.options)}: {error}") from None
    return Backbone(model)


def _from_files(config: BackboneConfig, num_text: int) -> Backbone:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    path = locate(
        config.path or "", key="models.backbone.path", is_folder=config.source == "folder"
    )
    folder, extra = (
        (path, {}) if config.source == "folder" else (path.parent, {"gguf_file": path.name})
    )
    has_bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        causal = AutoModelForCausalLM.from_pretrained(
            str(folder),
            local_files_only=True,
            trust_remote_code=False,
            dtype=torch.float32,
            attn_implementation=ATTENTION_NAME,
            **config.options,
            **extra,
        )
    except (OSError, ValueError, KeyError, ImportError, TypeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise UserError(f"models.backbone.path={config.path}: not loadable ({reason})") from None
    finally:
        if has_bars:
            logging.enable_progress_bar()
    check_architecture(causal.config)
    is_tied = bool(causal.config.tie_word_embeddings)
    return Backbone(causal.model, None if is_tied else causal.lm_head)


def _is_same_pair(value: Any, default: Any) -> bool:
    """Whether both are one sequence, as a list or a tuple; transformers' diff tells them apart."""
    kinds = (list, tuple)
    return isinstance(value, kinds) and isinstance(default, kinds) and [*value] == [*default]


def _bound_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    attend: Attend | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Transformers' calling convention, (B, H, T, D), around `attend`'s (B, T, H, D)."""
    if attend is None:
        raise UserError(
            f"attention '{ATTENTION_NAME}' was called without `attend`: the model's forward did "
            "not hand its keywords to the layers; this transformers version is not supported"
        )
    assert attention_mask is None or attention_mask.numel() == 0
    assert dropout == 0.0
    # Under autocast, norms with float32 weights hand on float32 queries and keys.
    query, key = query.to(value.dtype), key.to(value.dtype)
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    return attend(q, k, v, module.layer_idx, scaling), None  # (B, T, H, D)


def _no_mask(*_: Any, **__: Any) -> None:
    """No mask: visibility is the business of `attend`."""
    return None
