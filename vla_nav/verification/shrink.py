"""A model small enough for a float64 proof on the CPU, and what was cut.

    layers   28 -> 2          every layer is the same code
    width    2048 -> 512      heads and their grouping (16 : 8 -> 4 : 2), MLP in proportion
    text     131,072 -> 37    the rows that occur; the others are the same zero gradient twice

A model that is cut in layers or width has random weights, of its own family and options. What is
not cut is proven as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from vla_nav.models.assembly import ModelConfig
from vla_nav.models.backbone import Backbone, BackboneConfig
from vla_nav.models.tokenizer import locate
from vla_nav.models.vla import VLA
from vla_nav.tree.types import Path, Segment, Trunk
from vla_nav.verification.oracle import Sample
from vla_nav.verification.shrink_recurrent import recurrent_cuts


class Shrunk(NamedTuple):
    """The configuration to prove, and what differs from the one asked for, as `what: a -> b`."""

    model: ModelConfig
    changes: tuple[str, ...]


def shrink(config: ModelConfig, *, max_layers: int | None, max_width: int | None) -> Shrunk:
    """`config` with at most so many layers and so large a hidden size; None: no limit."""
    backbone = config.backbone
    architecture = _architecture(backbone)
    known = _config(architecture)
    shape = _shape(known)
    cut: dict[str, Any] = {}
    if max_layers is not None and shape["num_hidden_layers"] > max_layers:
        cut["num_hidden_layers"] = max_layers
    if max_width is not None and shape["hidden_size"] > max_width:
        cut |= _narrow(shape, max_width)
    if not cut:
        return Shrunk(config, ())
    changes = [
        f"{name} {shape[name]} -> {value}" for name, value in cut.items() if value != shape[name]
    ]
    sizes = {**shape, **cut}
    recurrent = recurrent_cuts(
        known, num_layers=sizes["num_hidden_layers"], hidden_size=sizes["hidden_size"]
    )
    changes += [
        f"{name} {getattr(known, name)} -> {value}"
        for name, value in recurrent.items()
        if name != "layer_types" and value != getattr(known, name)
    ]
    if backbone.source != "config":
        changes.append(f"weights of {backbone.source} -> random")
    options = {**architecture.options, **cut}
    options.pop("layer_types", None)
    options.pop("max_window_layers", None)
    options |= recurrent
    if not hasattr(known, "head_dim"):
        options.pop("head_dim", None)
    path = config.tokenizer_path
    if path is None and config.tokenizer == backbone.source:
        path = backbone.path
    small = replace(architecture, options=options, seed=backbone.seed)
    hidden = config.projector_hidden
    if hidden is not None and max_width is not None:
        hidden = min(hidden, max_width)
    return Shrunk(
        replace(config, backbone=small, tokenizer_path=path, projector_hidden=hidden),
        tuple(changes),
    )


def compact_text(model: VLA, samples: Sequence[Sample]) -> tuple[VLA, list[Sample]]:
    """`model` (in place) and `samples` with a text table of the rows that the samples use.

    num_own 10, ids in use  3  12  500  12      rows 0 .. 1 of the new table: 12, 500
                        ->  3  10   11  10
    """
    num_own = model.vocabulary.num_own
    ids = [segment.token_ids for s in samples for path in s.paths for segment in path.all_segments]
    used = np.unique(np.concatenate([np.array([num_own]), *ids]))
    used = used[used >= num_own]
    rows = torch.from_numpy(used - num_own)
    transformer: Any = model.backbone.model
    whole = model.backbone.text_embedding.weight
    table = whole.detach()[rows].clone()
    is_frozen = not whole.requires_grad  # under LoRA
    transformer.embed_tokens = nn.Embedding.from_pretrained(table, freeze=is_frozen)
    if model.text_head is not None:
        head = nn.Linear(table.shape[1], len(rows), bias=False, dtype=table.dtype)
        head.weight.data.copy_(model.text_head.weight.detach()[rows])
        model.text_head = head
    model.vocabulary = replace(model.vocabulary, num_text=len(rows))
    renamed = _Renamed(used, num_own)
    return model, [Sample(tuple(map(renamed.path, s.paths)), s.frames) for s in samples]


class _Renamed:
    """Segments, trunks and paths under new text ids; shared parts stay shared."""

    def __init__(self, used: np.ndarray, num_own: int) -> None:
        self._used, self._num_own = used, num_own
        self._segments: dict[int, tuple[Segment, Segment]] = {}  # the key's owner is kept alive
        self._trunks: dict[int, tuple[Trunk, Trunk]] = {}

    def path(self, path: Path) -> Path:
        return replace(
            path,
            segments=tuple(map(self._segment, path.segments)),
            trunk=None if path.trunk is None else self._trunk(path.trunk),
        )

    def _segment(self, segment: Segment) -> Segment:
        if id(segment) not in self._segments:
            ids = segment.token_ids
            place = self._num_own + np.searchsorted(self._used, ids)
            new = replace(segment, token_ids=np.where(ids < self._num_own, ids, place))
            self._segments[id(segment)] = segment, new
        return self._segments[id(segment)][1]

    def _trunk(self, trunk: Trunk) -> Trunk:
        chain: list[Trunk] = []
        link: Trunk | None = trunk
        while link is not None and id(link) not in self._trunks:
            chain.append(link)
            link = link.parent
        for old in reversed(chain):
            parent = None if old.parent is None else self._trunks[id(old.parent)][1]
            self._trunks[id(old)] = old, Trunk(parent, self._segment(old.segment))
        return self._trunks[id(trunk)][1]


def _architecture(backbone: BackboneConfig) -> BackboneConfig:
    """A `config` backbone of the same shape, read without the weights of a file."""
    if backbone.source == "config":
        return backbone
    from transformers import AutoConfig, AutoModel

    path = locate(
        backbone.path or "", key="models.backbone.path", is_folder=backbone.source == "folder"
    )
    if backbone.source == "folder":
        config = AutoConfig.from_pretrained(str(path), local_files_only=True, **backbone.options)
    else:
        config = AutoConfig.from_pretrained(
            str(path.parent), gguf_file=path.name, local_files_only=True, **backbone.options
        )
    with torch.device("meta"):
        described = Backbone(AutoModel.from_config(config)).architecture()
    return replace(backbone, **{**described, "norms": backbone.norms, "path": None})


def _config(architecture: BackboneConfig) -> Any:
    """Its transformers config, with the family's defaults where the options leave them out."""
    from transformers import AutoConfig

    return AutoConfig.for_model(architecture.family, **architecture.options)


def _shape(config: Any) -> dict[str, int]:
    """Sizes that can be cut."""
    heads = int(config.num_attention_heads)
    return {
        "num_hidden_layers": int(config.num_hidden_layers),
        "hidden_size": int(config.hidden_size),
        "intermediate_size": int(config.intermediate_size),
        "num_attention_heads": heads,
        "num_key_value_heads": int(config.num_key_value_heads or heads),
        "head_dim": int(getattr(config, "head_dim", None) or config.hidden_size // heads),
    }


def _narrow(shape: dict[str, int], width: int) -> dict[str, int]:
    """Sizes for a hidden size of about `width`: at most two key heads, as many queries each."""
    group = shape["num_attention_heads"] // shape["num_key_value_heads"]
    kv_heads = min(2, shape["num_key_value_heads"])
    heads = group * kv_heads
    head_dim = min(shape["head_dim"], max(8, width // heads // 2 * 2))
    return {
        "hidden_size": width - width % heads,
        "intermediate_size": max(8, shape["intermediate_size"] * width // shape["hidden_size"]),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
    }
