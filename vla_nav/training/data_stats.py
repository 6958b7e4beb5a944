"""What a data set costs under a layout, before any training: tokens, reuse and speed bounds.

    recorded episodes, or an episode file with ground truth (lengths only: no frame is needed)
      -> prompt -> paths -> prefix trees -> TreeStats, added up            once per layout
    shapes of the configured model (no weights are made) -> FlopModel -> FLOP bound

The token bound N_flat / N_tree is what sharing saves in tokens; the FLOP bound is the honest limit
on the speed of a training step against flat paths (see `vla_nav.tree.stats`). It is given twice:
for the backbone and head alone, as if flat paths cached their frames' features, and with an encoder
in the step that flat paths run again for every path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vla_nav.actions.types import ActionSpace
from vla_nav.errors import UserError
from vla_nav.models.assembly import ModelConfig, build_prompt
from vla_nav.models.prompt import PromptBuilder
from vla_nav.training.cost_fit import read_costs
from vla_nav.training.cost_model import CostModel
from vla_nav.training.episode_file import open_episodes
from vla_nav.training.made_summaries import MadeSummaries
from vla_nav.training.recorded_split import require_conventions
from vla_nav.training.settings import PartitionSettings
from vla_nav.training.shapes import encoder_flops, flop_model, frame_tokens
from vla_nav.training.stats_balance import balance_report
from vla_nav.training.stats_cost import GpuSettings, epoch_cost
from vla_nav.training.stats_layout import chosen_trees, count_layout, layout_row
from vla_nav.training.stats_pictures import histogram
from vla_nav.training.stats_verdict import verdict
from vla_nav.tree import (
    FlopModel,
    Layout,
    TreeStats,
)
from vla_nav.tree.layout import every_layout

_WAYS = ("episode", "trajectory")  # of grouping, in the table of all layouts


@dataclass(frozen=True)
class StatsOptions:
    """What is counted. max_episodes: at most so many, evenly spread over the split; None for all.

    frame_tokens, pooled_tokens: tokens of one image instead of the encoder's own. role, turn_deg:
    of an episode file. summary_tokens, summary_steps: see `MadeSummaries`. format: of the data,
    None finds it. worth_from: the least FLOP bound that is called worth packing.
    """

    max_episodes: int | None = None
    frame_tokens: int | None = None
    pooled_tokens: int | None = None
    role: str = ""
    turn_deg: float = 15.0
    summary_tokens: int = 32
    summary_steps: int = 8
    format: str | None = None
    worth_from: float = 1.5

    def __post_init__(self) -> None:
        for name, least in (("max_episodes", 1), ("summary_tokens", 1), ("summary_steps", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                remedy = ", or null for all" if name == "max_episodes" else ""
                raise UserError(f"stats.{name}={value}: allowed: {least} and more{remedy}")
        if not self.worth_from >= 1:
            raise UserError(f"stats.worth_from={self.worth_from}: allowed: 1 and more")

    @property
    def summaries(self) -> MadeSummaries:
        """For episodes that give none."""
        return MadeSummaries(self.summary_tokens, self.summary_steps)


def data_stats(
    data_path: str | Path,
    split: str,
    *,
    model: ModelConfig,
    encoder: Mapping[str, Any],
    action_space: ActionSpace,
    layout: Layout,
    supervise: str = "own",
    group: str = "episode",
    every: bool = False,
    options: StatsOptions | None = None,
    gpu: GpuSettings | None = None,
    pack_tokens: int | None = None,
    partition: PartitionSettings | None = None,
    accumulate: int = 1,
    seed: int = 0,
    cost_profile: str | None = None,
    attention: str = "",
) -> dict[str, Any]:
    """Plain values: counts, POR, token and FLOP bound, lengths, parameters, cost and verdict.

    every: also one row per layout (key `layouts`), with the sizes of `layout`. gpu: what the cost
    is given for. pack_tokens: the token budget of a pack, to tell which trees are longer.
    partition: how training cuts trees (those of `layout` alone). accumulate, seed, cost_profile,
    attention: of training, for the balance of ranks. Raises `UserError` for data that is not there
    or does not fit, and for impossible options.
    """
    options = options or StatsOptions()
    episodes = open_episodes(
        data_path,
        split,
        action_space=action_space,
        prompt=model.prompt,
        role=options.role,
        turn_deg=options.turn_deg,
        format=options.format,
    )
    if not len(episodes):
        raise UserError(f"{episodes.root}: holds no episode")
    tokens = frame_tokens(encoder, full=options.frame_tokens, pooled=options.pooled_tokens)

    def builder_of(wanted: Layout) -> PromptBuilder:
        builder = build_prompt(
            model,
            action_space=action_space,
            embodiment=episodes.embodiment,
            layout=wanted,
            num_full=tokens.full,
            num_pooled=tokens.pooled,
        )
        require_conventions(episodes, builder)
        return builder

    builder = builder_of(layout)
    flops, num_backbone = flop_model(model, builder.vocabulary, frame_flops=encoder_flops(encoder))
    chosen = chosen_trees(episodes, group, options.max_episodes)
    main = count_layout(
        builder, episodes, chosen, layout, group, supervise, options.summaries, partition
    )
    costs = CostModel.from_flops(flops)
    if cost_profile is not None:
        costs = read_costs(cost_profile, costs, attention=attention)
    steps = episodes.num_steps[np.concatenate(chosen)]
    found: dict[str, Any] = {
        "data": str(episodes.root),
        "split": split,
        "split_episodes": len(episodes),
        "data_fingerprint": episodes.fingerprint(),
        "layout": asdict(layout) | {"supervise": supervise, "group": group},
        "layout_name": layout.name,
        "actions": action_space.name,
        "decision": str(action_space.decision),
        "frame_tokens": tokens.full,
        "pooled_tokens": tokens.pooled,
        "episodes": len(steps),
        "steps": int(steps.sum()),
        "steps_per_episode": float(steps.mean()),
        **layout_row(main, flops),
        "flops_per_episode": _flops(main.total, flops) / len(steps),
        "chain_share": main.num_chain / main.total.num_tree_tokens,
        "pack_tokens": pack_tokens,
        "trees_longer_than_a_pack": sum(
            length > (pack_tokens or length) for length in main.lengths
        ),
        "partitions": main.partitions.as_json(),
        "balance": None
        if pack_tokens is None
        else balance_report(
            main.trees,
            costs,
            pack_tokens=pack_tokens,
            accumulate=accumulate,
            partition=partition,
            seed=seed,
        ),
        "lengths": {"steps": histogram(steps.tolist()), "tokens": histogram(main.lengths)},
        "parameters": {
            "backbone_matrices": flops.linear_parameters,
            "head": flops.head_parameters,
            "backbone": num_backbone,
        },
    }
    if every:
        found["layouts"] = []
        has_trajectories = None not in episodes.metadata("trajectory_id")
        for wanted in _all_layouts(layout):
            if wanted.history == "pooled" and tokens.pooled == 0:
                continue
            for way in _WAYS if has_trajectories and wanted.instruction == "last" else _WAYS[:1]:
                chosen = chosen_trees(episodes, way, options.max_episodes)
                counted = count_layout(
                    builder_of(wanted), episodes, chosen, wanted, way, supervise, options.summaries
                )
                about = {"layout": wanted.name, "group": way}
                found["layouts"].append(about | layout_row(counted, flops))
    epoch = found["flops_per_episode"] * len(episodes)
    flat = epoch * found["flop_bound_with_vision"]
    found["cost"] = epoch_cost(epoch, flat, gpu or GpuSettings())
    said = verdict(found, worth_from=options.worth_from)
    found["verdict"] = {"kind": said.kind, "is_worth_packing": said.is_worth_packing}
    found["verdict"]["text"] = said.text
    return found


def _all_layouts(like: Layout) -> tuple[Layout, ...]:
    return every_layout(
        window=like.window,
        uniform=like.uniform,
        summary_every=like.summary_every,
        summary_keep=like.summary_keep,
    )


def _flops(total: TreeStats, flops: FlopModel) -> float:
    """Forward and backward FLOPs of the trees."""
    return flops.flops(
        tokens=total.num_tree_tokens,
        pairs=total.num_tree_pairs,
        predictors=total.num_tree_predictors,
        frames=total.num_tree_frames,
    )
