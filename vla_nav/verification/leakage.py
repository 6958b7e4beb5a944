"""Leakage probes: change one token and see whose logits move.

    root - full_0 - full_1 - full_2      probe x: label_0, full_0's and full_1's predictors must not
              |        |        |                 change by a bit (sibling, descendant), label_x's
           label_0  label_1  label_x              own later ones may
    probe full_2: every predictor of steps 0 and 1 must not change (future frame)
    probe root:   every predictor below it must change (else the probe itself is blind)

Who may change is decided by the flat paths (a predictor's own tokens from root to predictor), not
by the mask under test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from vla_nav.tree.packing import PackedTree, pack
from vla_nav.tree.prefix_tree import PrefixTree
from vla_nav.verification.equivalence import PackedForward, trees_of
from vla_nav.verification.oracle import Sample
from vla_nav.verification.report import Finding, largest


@torch.no_grad()
def check_leakage(
    model: nn.Module,
    samples: Sequence[Sample],
    *,
    packed_forward: PackedForward,
    num_probes: int = 12,
    seed: int = 0,
) -> list[Finding]:
    """Probe `num_probes` random text tokens and every frame of the first sample.

    Differences must be exactly zero where the path says so, and above zero at descendants.
    """
    trees = trees_of(samples)
    packed = pack(trees)
    frames = torch.cat([sample.frames for sample in samples])
    before = packed_forward(model, packed, frames)
    ancestors = _ancestors(trees, packed)  # (M, T) whether predictor m's path holds token t
    moved: dict[str, list[float]] = {
        "other branch": [],
        "descendant": [],
        "future frame": [],
        "label": [],
        "ancestor": [],
    }
    generator = torch.Generator().manual_seed(seed)
    text = torch.nonzero(packed.frame_index[: packed.num_tokens] < 0)[:, 0]
    chosen = text[torch.randperm(len(text), generator=generator)[:num_probes]].tolist()
    for token in chosen:
        after = packed_forward(model, _other_token(packed, token, text), frames)
        change = (after - before).abs().amax(dim=1)  # (M,)
        sees = ancestors[:, token]
        # Predictors that the token itself descends from, and all others.
        above = (packed.predictor_index < token) & (
            token < packed.subtree_end[packed.predictor_index]
        )
        _note(moved["descendant"], change[~sees & above])
        _note(moved["other branch"], change[~sees & ~above])
        if sees.any():
            moved["ancestor"].append(float(change[sees].max()))
    for frame in range(len(samples[0].frames)):
        shows = packed.frame_index == frame
        after = packed_forward(model, packed, _other_frame(frames, frame))
        change = (after - before).abs().amax(dim=1)
        sees = ancestors[:, shows].any(dim=1)
        _note(moved["future frame"], change[~sees])
        if sees.any():
            moved["ancestor"].append(float(change[sees].max()))
    other_labels = replace(packed, target_ids=packed.target_ids.flip(0))
    moved["label"].append(float((packed_forward(model, other_labels, frames) - before).abs().max()))
    return [_finding(kind, values) for kind, values in moved.items()]


def _finding(kind: str, values: list[float]) -> Finding:
    note = f"{len(values)} probes"
    if kind == "ancestor":
        least = -largest(-value for value in values)
        return Finding("probe: ancestor moves logits", least, None, 0.0, True, note)
    return Finding(f"probe: {kind}", largest(values), None, 0.0, note=note)


def _note(values: list[float], change: Tensor) -> None:
    if len(change):
        values.append(float(change.max()))


def _ancestors(trees: Sequence[PrefixTree], packed: PackedTree) -> Tensor:
    """(M, T) bool by walking from each predictor's node up to the root."""
    holds = torch.zeros(len(packed.predictor_index), len(packed.token_ids), dtype=torch.bool)
    for row, predictor in enumerate(packed.predictor_index.tolist()):
        number = int(packed.target_tree[row])
        tree, offset = trees[number], int(packed.tree_start[number])
        token = predictor - offset
        node = int((tree.node_start[1:] <= token).sum())
        stop = token + 1
        while node >= 0:
            holds[row, offset + int(tree.node_start[node]) : offset + stop] = True
            node = int(tree.node_parent[node])
            stop = int(tree.node_start[node + 1])
    return holds


def _other_token(packed: PackedTree, token: int, text: Tensor) -> PackedTree:
    """The pack with one text token's id exchanged for another id that the pack uses."""
    token_ids = packed.token_ids.clone()
    ids = torch.unique(token_ids[text])
    place = int(torch.searchsorted(ids, token_ids[token]))
    token_ids[token] = ids[(place + 1) % len(ids)]
    return replace(packed, token_ids=token_ids)


def _other_frame(frames: Tensor, frame: int) -> Tensor:
    """The frame table with one frame inverted (a constant shift would vanish in a norm)."""
    changed = frames.clone()
    changed[frame] = 255 - frames[frame] if frames.dtype == torch.uint8 else -frames[frame]
    return changed
