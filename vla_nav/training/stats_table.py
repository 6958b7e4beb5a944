"""The numbers of `vla-nav stats` as text for people.

    layout                 a tree per  tokens/tree  longest     POR  token x  pair x  FLOP x
    full-hidden-first      episode           11443    27023   0.968    31.40   22.69   26.05

token x, pair x, FLOP x: flat paths over the tree, in tokens, attended pairs and FLOPs of a training
step (backbone and head); the last is the honest bound on speed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vla_nav.training.stats_balance import balance_table
from vla_nav.training.stats_cost import hours_text
from vla_nav.training.stats_partitions import partitions_text


def stats_table(stats: Mapping[str, Any]) -> str:
    """The numbers as aligned tables for people."""
    layout, lengths = stats["layout"], stats["tokens_per_tree"]
    rows = [
        ("data", stats["data"]),
        (
            "layout",
            f"history {layout['history']}, actions {layout['actions']}, instruction "
            f"{layout['instruction']}, supervise {layout['supervise']}, a tree per "
            f"{layout['group']}",
        ),
        ("actions", f"{stats['actions']}, decision {stats['decision']}"),
        ("frame", f"{stats['frame_tokens']} tokens, {stats['pooled_tokens']} pooled"),
        ("episodes", f"{stats['episodes']:,} with {stats['steps_per_episode']:.1f} steps"),
        (
            "tokens per tree",
            f"mean {lengths['mean']:.0f}, 95 % {lengths['p95']:.0f}, longest {lengths['max']}",
        ),
        ("N_flat", f"{stats['n_flat']:,} tokens, {stats['pairs_flat']:,} attended pairs"),
        ("N_tree", f"{stats['n_tree']:,} tokens, {stats['pairs_tree']:,} attended pairs"),
        ("POR", f"{stats['por']:.4f}"),
        ("token bound", f"{stats['token_bound']:.2f} x"),
        ("FLOP bound", f"{stats['flop_bound']:.2f} x"),
        ("  encoder in step", f"{stats['flop_bound_with_vision']:.2f} x"),
        ("FLOPs per episode", f"{stats['flops_per_episode']:.3g} forward and backward"),
        ("an epoch", _epoch(stats)),
    ]
    if stats["trees_longer_than_a_pack"]:
        rows.append(
            (
                "longer than a pack",
                f"{stats['trees_longer_than_a_pack']:,} trees; training.pack_tokens is "
                f"{stats['pack_tokens']:,}, the longest tree has {lengths['max']:,}",
            )
        )
    if stats["partitions"] is not None:
        rows.append(("partitions", partitions_text(stats["partitions"])))
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {value}" for name, value in rows]
    if stats["balance"] is not None:
        lines += ["", balance_table(stats["balance"])]
    if "layouts" in stats:
        lines += ["", layouts_table(stats["layouts"])]
    return "\n".join([*lines, "", stats["verdict"]["text"]])


def _epoch(stats: Mapping[str, Any]) -> str:
    """What an epoch of the whole split costs."""
    cost = stats["cost"]
    gpu = cost["gpu"]
    return (
        f"{cost['flops_per_epoch']:.3g} FLOPs, {stats['split_episodes']:,} episodes: "
        f"{hours_text(cost['gpu_hours_per_epoch'])} of one {gpu['name']} "
        f"({gpu['peak_tflops']:g} TFLOP/s, {gpu['mfu']:g} MFU); flat paths "
        f"{hours_text(cost['gpu_hours_per_epoch_flat'])}"
    )


def layouts_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line per layout: what a tree holds and what sharing saves."""
    width = max(len(row["layout"]) for row in rows)
    lines = [
        f"{'layout':<{width}}  a tree per  tokens/tree  longest     POR  token x  pair x  FLOP x"
    ]
    for row in rows:
        lengths = row["tokens_per_tree"]
        lines.append(
            f"{row['layout']:<{width}}  {row['group']:<10}  {lengths['mean']:>11.0f}  "
            f"{lengths['max']:>7}  {row['por']:>6.3f}  {row['token_bound']:>7.2f}  "
            f"{row['pair_bound']:>6.2f}  {row['flop_bound']:>6.2f}"
        )
    return "\n".join(lines)
