"""What the policy sees at a step: the definition that training paths and live inference share.

Full_i: frame i as current observation; pool_i: the same frame as history; exec_i: what was done
there. Drawn for t = 3, actions visible (hidden: without every exec), instruction first:

    full               root instr full_0 exec_0 full_1 exec_1 full_2 exec_2 full_3
    pooled             root instr pool_0 exec_0 pool_1 exec_1 pool_2 exec_2 full_3
    window, 2          root instr full_2 exec_2 full_3
    uniform, 3         root instr full_0 exec_0 full_2 exec_2 full_3
    summary of step 2  root instr sum_2  full_2 exec_2 full_3             sum_2 stands for 0 and 1

With `instruction: last` instr moves to the end: root full_0 ... full_3 instr. The action tokens of
step t come next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vla_nav.tree.episode import StepTokens
from vla_nav.tree.layout import Layout
from vla_nav.tree.types import Segment

_NONE: Mapping[int, Segment] = {}


def context_of(
    root: Segment,
    instruction: Segment,
    steps: Sequence[StepTokens],
    layout: Layout,
    t: int,
    summaries: Mapping[int, Segment] = _NONE,
) -> tuple[Segment, ...]:
    """Everything that the policy sees at step `t` before its action tokens, in order.

    steps: at least steps 0 .. t (of step t only `full` is read). Empty segments are left out.
    """
    parts = [root]
    if layout.instruction == "first":
        parts.append(instruction)
    start = summary_step(layout, t, summaries)
    if start is not None:
        parts.append(summaries[start])
    for i in seen_steps(layout, t, start or 0):
        if i < t:
            parts.append(steps[i].pooled if layout.history == "pooled" else steps[i].full)
            if layout.actions == "visible":
                parts.append(steps[i].executed)
    parts.append(steps[t].full)
    if layout.instruction == "last":
        parts.append(instruction)
    return tuple(part for part in parts if len(part))


def seen_steps(layout: Layout, t: int, start: int = 0) -> Sequence[int]:
    """The steps whose frames step `t` sees, in order, t last. start: where a summary ends.

    window, 3:   t = 0: 0     t = 1: 0 1     t = 2: 0 1 2     t = 3: 1 2 3
    uniform, 3:  t = 0: 0     t = 1: 0 1     t = 2: 0 1 2     t = 3: 0 2 3     t = 4: 0 2 4
    """
    if layout.history == "window":
        return range(max(0, t - layout.window + 1), t + 1)
    if layout.history == "uniform" and t >= layout.uniform:
        gaps = layout.uniform - 1
        return [(2 * k * t + gaps) // (2 * gaps) for k in range(layout.uniform)]  # halves go up
    return range(start, t + 1)


def summary_step(layout: Layout, t: int, summaries: Mapping[int, Segment]) -> int | None:
    """The step whose summary stands at the beginning of step `t`'s context, or None.

    summaries of steps 2 and 4, keep 2:   t = 0 1 2: None     t = 3 4: 2     t = 5 ...: 4
    """
    if layout.history != "summary":
        return None
    latest = t + 1 - layout.summary_keep
    return max(
        (s for s in summaries if 0 < s <= latest and s % layout.summary_every == 0), default=None
    )
