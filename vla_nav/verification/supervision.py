"""Whether every step's labels are supervised, each exactly once: counted from the episode.

    episode   step 0: forward   step 1: left | forward   step 2: STOP        4 labels
    tree      flat paths:  ... frame_1 [left]     what a path supervises behind its last frame,
                           ... frame_1 [forward]  beside that frame's key, counted

The two counts are compared as multisets, so a lost STOP, a step taught twice and a label under the
wrong frame all show. Under `supervise: own` nothing else may be supervised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from vla_nav.actions.types import Stop
from vla_nav.models.prompt import PromptBuilder
from vla_nav.tree.flatten import flatten
from vla_nav.tree.prefix_tree import PrefixTree
from vla_nav.verification.report import Finding
from vla_nav.verification.samples import EpisodeSample

# The frame that is current, and the tokens taught there.
_Taught = tuple[str, tuple[int, ...]]


def check_supervision(
    samples: Sequence[EpisodeSample],
    trees: Sequence[PrefixTree],
    builder: PromptBuilder,
    *,
    supervise: str,
) -> list[Finding]:
    """One row: labels that are missing, doubled or misplaced; and one for tokens taught beside."""
    wrong = num_labels = num_stops = num_elsewhere = 0
    stop = tuple(builder.action_space.encode(Stop()))
    for sample, tree in zip(samples, trees, strict=True):
        expected = _expected(sample, builder)
        found, elsewhere = _found(sample, tree)
        wrong += sum(((expected - found) + (found - expected)).values())
        num_labels += sum(expected.values())
        num_stops += sum(count for (_, ids), count in expected.items() if ids == stop)
        num_elsewhere += elsewhere
    note = f"{num_labels} labels of {len(samples)} episodes, {num_stops} of them STOP"
    findings = [Finding("labels not supervised exactly once", wrong, None, 0.0, note=note)]
    if supervise == "own":
        findings.append(Finding("tokens supervised beside the labels", num_elsewhere, None, 0.0))
    return findings


def _expected(sample: EpisodeSample, builder: PromptBuilder) -> Counter[_Taught]:
    """Every label of every step of every episode (one instruction each)."""
    space, stream = builder.action_space, builder.streams[-1]
    return Counter(
        (step.frames[stream], tuple(space.encode(space.label(step.pose, label))))
        for episode in sample.episodes
        for step in episode.steps
        for label in step.labels
    )


def _found(sample: EpisodeSample, tree: PrefixTree) -> tuple[Counter[_Taught], int]:
    """The same read from the tree's paths, and how many other tokens they supervise."""
    found: Counter[_Taught] = Counter()
    num_elsewhere = 0
    for path in flatten(tree):
        tokens = path.tokens()
        last = int(np.flatnonzero(tokens.frame_index >= 0)[-1])
        taught = tokens.is_supervised[last + 1 :]
        ids = tuple(tokens.token_ids[last + 1 :][taught].tolist())
        found[sample.frame_keys[tokens.frame_index[last]], ids] += 1
        num_elsewhere += int(tokens.is_supervised[:last].sum())
    return found, num_elsewhere
