"""A line of the step benchmark's table: its columns, and how it is printed."""

from __future__ import annotations

from dataclasses import dataclass

COLUMNS = (
    "model | tree | vision | trees | tokens | flat packs | tree ms | flat ms | token bound "
    "| FLOP bound | measured | of FLOP bound | MFU | flat MFU | GiB | recompute | POR | drift"
)
HEADING = f"| {COLUMNS} |\n" + "|---" * (COLUMNS.count("|") + 1) + "|"


@dataclass(frozen=True, slots=True)
class StepRow:
    """One line of the table. mfu: of 989 TFLOP/s, the tree side; flat_mfu the other. gib: peaks."""

    model: str
    tree: str
    vision: str
    tree_ms: float
    flat_ms: float
    token_bound: float
    flop_bound: float
    measured: float
    of_flop_bound: float
    mfu: float
    flat_mfu: float
    num_trees: int
    tokens: int
    flat_tokens: int
    flat_packs: int
    budget: int
    depth: int
    factor: int
    por: float
    is_checkpointed: bool
    tree_gib: float
    flat_gib: float
    gradient_drift: float

    def line(self) -> str:
        """In Markdown, under HEADING."""
        return (
            f"| {self.model} | {self.tree} | {self.vision} | {self.num_trees} | {self.tokens} "
            f"| {self.flat_packs} | {self.tree_ms:.1f} | {self.flat_ms:.0f} "
            f"| {self.token_bound:.1f} | {self.flop_bound:.2f} | {self.measured:.2f} "
            f"| {self.of_flop_bound:.3f} | {self.mfu:.3f} | {self.flat_mfu:.3f} "
            f"| {self.tree_gib:.0f} | {'yes' if self.is_checkpointed else 'no'} | {self.por:.3f} "
            f"| {self.gradient_drift:.1g} |"
        )
