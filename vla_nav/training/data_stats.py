"""What a data set costs under a layout, before any training: tokens, reuse and speed bounds.

    recorded episodes -> prompt -> paths -> prefix trees -> TreeStats, added up
    shapes of the configured model (no weights are made) -> FlopModel -> FLOP bound

The token bound N_flat / N_tree is what sharing saves in tokens; the FLOP bound is the honest limit
on the speed of a training step against flat paths (see `vla_nav.tree.stats`). It is given twice:
for the backbone and head alone, as if flat paths cached their frames' features, and with an encoder
in the step that flat paths run again for every path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from vla_nav.actions.types import ActionSpace
from vla_nav.errors import UserError
from vla_nav.models.assembly import ModelConfig, assemble
from vla_nav.models.prompt import Layout
from vla_nav.models.vla import VLA
from vla_nav.training.datamodule import open_recorded, require_conventions
from vla_nav.tree import FlopModel, PrefixTree, flop_bound, total_stats, tree_stats
from vla_nav.vision.encoder import TimmEncoder


def data_stats(
    data_path: str | Path,
    split: str,
    *,
    model: ModelConfig,
    encoder: Mapping[str, Any],
    action_space: ActionSpace,
    layout: Layout,
    supervise: str = "own",
    max_episodes: int | None = None,
) -> dict[str, Any]:
    """Plain values: counts, POR, token and FLOP bound, episode lengths, parameters.

    max_episodes: at most so many, evenly spread over the split; None for all.
    """
    episodes = open_recorded(data_path, split)
    if not len(episodes):
        raise UserError(f"{episodes.root}: holds no episode")
    made = TimmEncoder(**encoder)
    assembled = assemble(
        model,
        action_space=action_space,
        embodiment=episodes.embodiment,
        layout=layout,
        encoder=made,
        attention="reference",
    )
    require_conventions(episodes, assembled.prompt)
    indices = np.arange(len(episodes))
    if max_episodes is not None and len(episodes) > max_episodes:
        indices = np.linspace(0, len(episodes) - 1, max_episodes).astype(int)
    parts, lengths = [], []
    for index in indices.tolist():
        paths, keys = assembled.prompt.paths(episodes[index], supervise=supervise)
        parts.append(tree_stats(PrefixTree.from_paths(paths, num_frames=len(keys))))
        lengths.append(parts[-1].num_tree_tokens)
    total = total_stats(parts)
    flops = flop_model(assembled.model)
    steps = episodes.num_steps[indices]
    return {
        "data": str(episodes.root),
        "data_fingerprint": episodes.fingerprint(),
        "layout": asdict(layout) | {"supervise": supervise},
        "actions": action_space.name,
        "episodes": len(indices),
        "steps": int(steps.sum()),
        "steps_per_episode": float(steps.mean()),
        "tokens_per_episode": {
            "mean": float(np.mean(lengths)),
            "p95": float(np.percentile(lengths, 95)),
            "max": int(np.max(lengths)),
        },
        "n_flat": total.num_flat_tokens,
        "n_tree": total.num_tree_tokens,
        "por": total.potential_overlap,
        "token_bound": total.token_bound,
        "pairs_flat": total.num_flat_pairs,
        "pairs_tree": total.num_tree_pairs,
        "frames_flat": total.num_flat_frames,
        "frames_tree": total.num_tree_frames,
        "flop_bound": flop_bound(total, replace(flops, frame_flops=0.0)),
        "flop_bound_with_vision": flop_bound(total, flops),
        "flops_per_episode": flops.flops(
            tokens=total.num_tree_tokens,
            pairs=total.num_tree_pairs,
            predictors=total.num_tree_predictors,
            frames=total.num_tree_frames,
        )
        / len(indices),
        "parameters": {
            "backbone_matrices": flops.linear_parameters,
            "head": flops.head_parameters,
            "encoder": sum(value.numel() for value in made.parameters()),
            "all": sum(value.numel() for value in assembled.model.parameters()),
        },
    }


def flop_model(model: VLA) -> FlopModel:
    """The cost model of a `VLA`: its backbone's matrices, head, attention, and encoder per frame.

    A frozen encoder reads cached features and costs nothing.
    """
    config = model.backbone.model.config
    linear = sum(
        layer.weight.numel() for layer in model.backbone.modules() if isinstance(layer, nn.Linear)
    )
    head_dim = getattr(config, "head_dim", None) or (
        config.hidden_size // config.num_attention_heads
    )
    encoder = model.encoder
    is_in_step = isinstance(encoder, TimmEncoder) and not encoder.is_frozen
    return FlopModel(
        linear_parameters=linear,
        head_parameters=model.num_outputs * config.hidden_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        head_dim=head_dim,
        frame_flops=encoder_flops(encoder) if is_in_step else 0.0,
    )


def encoder_flops(encoder: TimmEncoder) -> float:
    """Forward and backward FLOPs of one frame, counted by torch on the CPU."""
    from torch.utils.flop_counter import FlopCounterMode

    frame = torch.zeros((1, *encoder.image_size, 3), dtype=torch.uint8)
    with FlopCounterMode(display=False) as counter:
        encoder.encode(frame).float().sum().backward()
    encoder.zero_grad(set_to_none=True)
    return float(counter.get_total_flops())


def stats_table(stats: Mapping[str, Any]) -> str:
    """The numbers as an aligned table for people."""
    layout, lengths = stats["layout"], stats["tokens_per_episode"]
    rows = [
        ("data", stats["data"]),
        (
            "layout",
            f"history {layout['history']}, actions {layout['actions']}, "
            f"supervise {layout['supervise']}; action space {stats['actions']}",
        ),
        ("episodes", f"{stats['episodes']:,} with {stats['steps_per_episode']:.1f} steps"),
        (
            "tokens per episode",
            f"mean {lengths['mean']:.0f}, 95 % {lengths['p95']:.0f}, longest {lengths['max']}",
        ),
        ("N_flat", f"{stats['n_flat']:,} tokens, {stats['pairs_flat']:,} attended pairs"),
        ("N_tree", f"{stats['n_tree']:,} tokens, {stats['pairs_tree']:,} attended pairs"),
        ("POR", f"{stats['por']:.4f}"),
        ("token bound", f"{stats['token_bound']:.2f} x"),
        ("FLOP bound", f"{stats['flop_bound']:.2f} x"),
        ("  encoder in step", f"{stats['flop_bound_with_vision']:.2f} x"),
        ("FLOPs per episode", f"{stats['flops_per_episode']:.3g} forward and backward"),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
