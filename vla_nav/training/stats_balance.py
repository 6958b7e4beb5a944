"""How evenly several ranks would be loaded: packs as they are filled, and balanced ones.

    a step takes as long as its costliest rank:   sum over steps of the largest predicted cost
                                                  over the sum of the mean one; 1 is perfect

of the first epoch, at most 200 steps of it. Costs are FLOPs, or what a profile measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vla_nav.training.balance import imbalance
from vla_nav.training.cost_model import CostModel, PackCosts, TreeCounts
from vla_nav.training.packing import PackOrder
from vla_nav.training.settings import PartitionSettings

RANKS = (2, 4, 8)
_MOST_STEPS = 200


def balance_report(
    counts: TreeCounts,
    model: CostModel,
    *,
    pack_tokens: int,
    accumulate: int = 1,
    partition: PartitionSettings | None = None,
    seed: int = 0,
) -> dict[str, Any] | None:
    """A row for each number of ranks that has a whole step; None where no number has, or a tree is
    longer than a pack. counts: of all trees of an epoch."""
    if counts.tokens.max() > pack_tokens:
        return None
    costs = PackCosts(model, counts, partition)
    rows = []
    for num_ranks in RANKS:
        loads = {}
        for name, given in (("none", None), ("cost", costs)):
            order = PackOrder(
                costs.tokens,
                pack_tokens=pack_tokens,
                accumulate=accumulate,
                seed=seed,
                num_ranks=num_ranks,
                costs=given,
            )
            num_steps = sum(order.epoch_of(step + 1) == 0 for step in range(_MOST_STEPS))
            steps = [order.ranks(step) for step in range(num_steps)]
            loads[name] = np.array([[costs.of(rank).sum() for rank in step] for step in steps])
        if all(map(len, loads.values())):
            row: dict[str, Any] = {"ranks": num_ranks}
            for name, found in loads.items():
                worst = float((found.max(axis=1) / found.mean(axis=1)).max())
                row[name] = {"mean": imbalance(found), "worst": worst, "steps": len(found)}
            rows.append(row)
    if not rows:
        return None
    return {
        "accumulate": accumulate,
        "pack_tokens": pack_tokens,
        "cost": model.source,
        "rows": rows,
    }


def balance_table(report: Mapping[str, Any]) -> str:
    """The rows as text for people."""
    packs = "a pack" if report["accumulate"] == 1 else f"{report['accumulate']} packs"
    lines = [
        f"largest rank's predicted cost over the mean ({report['cost']}; {packs} of "
        f"{report['pack_tokens']:,} tokens a rank and step)",
        "ranks  balance=none  worst step  balance=cost  worst step",
    ]
    for row in report["rows"]:
        none, cost = row["none"], row["cost"]
        lines.append(
            f"{row['ranks']:>5}  {none['mean']:>12.3f}  {none['worst']:>10.3f}  "
            f"{cost['mean']:>12.3f}  {cost['worst']:>10.3f}"
        )
    return "\n".join(lines)
