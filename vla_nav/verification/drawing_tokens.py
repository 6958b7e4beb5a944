"""What a drawn token is and how it looks: kinds, colours, and runs of equal tokens.

    pack   t t t | 0 0 0 | 1 1 1 | a a | a a      t text, 0 and 1 frames, a supervised action
    runs   [    )[      )[      )[    )[    )     one box each: same node, same kind, same frame

Axis legend: T tokens of a tree.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vla_nav.models.vocabulary import Vocabulary
from vla_nav.tree import PrefixTree
from vla_nav.tree.types import IntArray

TEXT, SPECIAL, FRAME, POOLED, ACTION, LABEL = range(6)
WORDS = (
    "text: the instruction, and a summary where one is given",
    "special: begin, pose, or the mark that an action follows",
    "a frame at full token count: the current observation",
    "a frame pooled to few tokens: history",
    "executed action: context, never taught",
    "label: supervised action tokens, the targets of the loss",
)
COLOURS = ("#8c96a3", "#c3b1e1", "#4c8ed9", "#7cc7c0", "#f2c14e", "#d1495b")
INK = ("#ffffff", "#2b1d4e", "#10233a", "#10233a", "#3d2c00", "#ffffff")  # of text on them
TYPE_PT = 6.0  # of what is written into boxes
_CHARACTER_PX_PER_PT = 1.37  # mean width at the drawing's resolution
_OTHER_FRAME = {FRAME: "#86b6ec", POOLED: "#b3e0db"}  # every second frame, to tell them apart


class Run(NamedTuple):
    """Tokens start .. stop-1 of the pack: one node, one kind, one frame (-1 = none)."""

    start: int
    stop: int
    node: int
    kind: int
    frame: int


def token_kinds(tree: PrefixTree, vocabulary: Vocabulary, *, num_full: int) -> IntArray:
    """(T,) the kind of every token. num_full: patches below it show the frame at full count."""
    kinds = np.full(tree.num_tokens, TEXT, dtype=np.int64)
    kinds[tree.token_ids < vocabulary.num_own] = SPECIAL
    kinds[tree.token_ids < vocabulary.num_actions] = ACTION
    is_frame = tree.frame_index >= 0
    kinds[is_frame] = np.where(tree.patch_index[is_frame] < num_full, FRAME, POOLED)
    kinds[tree.target_index] = LABEL
    return kinds


def token_runs(tree: PrefixTree, kinds: IntArray) -> list[Run]:
    """The boxes to draw, in pack order."""
    node = np.repeat(np.arange(tree.num_nodes), np.diff(tree.node_start))
    columns = np.stack([node, kinds, tree.frame_index])  # (3, T)
    cuts = np.flatnonzero((columns[:, 1:] != columns[:, :-1]).any(axis=0)) + 1
    starts = np.concatenate([[0], cuts])
    stops = np.concatenate([cuts, [tree.num_tokens]])
    rows = np.stack([starts, stops, node[starts], kinds[starts], tree.frame_index[starts]], axis=1)
    return [Run(*row) for row in rows.tolist()]


def run_colour(run: Run) -> str:
    """The colour of a run; neighbouring frames differ in shade."""
    if run.kind in _OTHER_FRAME and run.frame % 2:
        return _OTHER_FRAME[run.kind]
    return COLOURS[run.kind]


def box_text(run: Run, text: str, width_px: float, size_pt: float = TYPE_PT) -> str:
    """What is written into a box `width_px` wide: a frame's number, or as much text as fits."""
    character_px = size_pt * _CHARACTER_PX_PER_PT
    if run.kind in (FRAME, POOLED):
        number = str(run.frame)
        return number if width_px >= len(number) * character_px else ""
    fits = int(width_px / character_px) - 1
    said = text.partition(": ")[2] or text
    if len(said) <= fits:
        return said
    return f"{said[: fits - 1].rstrip()}…" if run.kind == TEXT and fits >= 12 else ""


def token_colours(runs: list[Run]) -> npt.NDArray[np.float64]:
    """(T, 3) RGB in [0, 1] of every token."""
    colours = np.array(
        [[int(run_colour(run)[i : i + 2], 16) / 255 for i in (1, 3, 5)] for run in runs]
    )
    return np.repeat(colours, [run.stop - run.start for run in runs], axis=0)
