"""In bfloat16 a packed tree drifts from its flat paths no further than other batch shapes do.

noise   flat paths, two or more a batch, against one by one    what any trainer has
drift   the packed tree, against the flat paths one by one     must be of that size
leak    the packed tree where siblings see each other          must be far above it
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tests.verification import tiny_vla
from tests.verification.random_samples import sample
from tests.verification.steps import target_keys, trees_of
from vla_nav.attention import backend
from vla_nav.losses import weighted_cross_entropy
from vla_nav.tree import PackedTree, pack
from vla_nav.verification import Sample

# 2.5 was seen: a tree also sums what its branches send to a shared token, in bfloat16.
FACTOR = 3.0
BATCHES = (2, 99)  # paths in one forward

Run = tuple[dict[tuple, Tensor], Tensor]  # logits by prefix (as in steps.py), all gradients


def forest_of(seed: int, device: str):
    made = [sample("bushy", 5, seed), sample("unary", 5, seed), sample("single tokens", 6, seed)]
    return [Sample(one.paths, one.frames.float().to(device)) for one in made]


def flat_run(model, forest, per_batch: int, device: str) -> Run:
    """The step_sum loss of all paths, `per_batch` of them padded into one forward."""
    flat = tiny_vla.flat_copy(model)
    logits: dict[tuple, Tensor] = {}
    for number, one in enumerate(forest):
        for first in range(0, len(one.paths), per_batch):
            paths = one.paths[first : first + per_batch]
            rows = [path.tokens() for path in paths]
            embedded = [
                flat.embed(*(torch.from_numpy(column).to(device) for column in row[:3]), one.frames)
                for row in rows
            ]
            # Padding stands behind the path, where causal attention hides it.
            inputs = pad_sequence(embedded, batch_first=True)  # (B, n, E)
            hidden = flat.backbone.model(inputs_embeds=inputs, use_cache=False).last_hidden_state
            loss = torch.zeros((), device=device)
            for path, row, states in zip(paths, rows, hidden, strict=True):
                places = torch.from_numpy(row.is_supervised).nonzero()[:, 0]
                out = flat.logits(states[(places - 1).to(device)]).float()
                keys = prefixes(number, row, places.tolist())
                logits.update(zip(keys, out.detach().unbind(), strict=True))
                targets = torch.from_numpy(row.token_ids)[places].to(device)
                loss = loss + path.coefficient * torch.nn.functional.cross_entropy(
                    out, targets, reduction="sum"
                )
            loss.backward()
    return logits, gradients(flat)


def tree_run(model, forest, plan_of: Callable[[PackedTree], object] | None = None) -> Run:
    """The same in one pack."""
    attention = backend(model.attention_name)
    total = sum(tree.num_tokens for tree in trees_of(forest))
    packed = pack(trees_of(forest), pad_to=attention.padded_length(total))
    frames = torch.cat([one.frames for one in forest])
    plan = (plan_of or attention.plan)(packed)
    model.zero_grad()
    logits = model(packed.to(frames.device), frames, plan.to(frames.device))
    loss = weighted_cross_entropy(logits, packed.to(frames.device), normalisation="step_sum")
    loss.value.backward()
    keyed = dict(zip(target_keys(packed), logits.detach().float().unbind(), strict=True))
    return keyed, gradients(model)


def prefixes(number, row, places):
    tokens = [
        ("t", i) if frame < 0 else ("v", frame, patch)
        for i, frame, patch in zip(
            row.token_ids.tolist(), row.frame_index.tolist(), row.patch_index.tolist(), strict=True
        )
    ]
    return [(number, *tokens[: place + 1]) for place in places]


def gradients(model) -> Tensor:
    found = [p.grad.float().flatten() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return torch.cat(found)


def gap(found: Run, expected: Run) -> Tensor:
    """(2,) distances of logits and of gradients, relative by norm."""
    assert found[0].keys() == expected[0].keys()
    pairs = (
        (torch.stack([found[0][key] for key in expected[0]]), torch.stack([*expected[0].values()])),
        (found[1], expected[1]),
    )
    return torch.stack([(a - b).norm() / b.norm() for a, b in pairs]).cpu()


def sibling_sees(packed: PackedTree) -> PackedTree:
    """The mistake: plain causal attention inside a tree."""
    sizes = packed.tree_start[1:] - packed.tree_start[:-1]
    end = packed.subtree_end.clone()
    end[: packed.num_tokens] = packed.tree_start[1:].repeat_interleave(sizes).int()
    return replace(packed, subtree_end=end)


def distances(model, device: str, seeds=range(2)):
    """(2,) each, over forests: largest noise and drift, least leak, largest drift in float32."""
    plan = backend(model.attention_name).plan
    noise, drift, leak, exact = [], [], [], []
    for seed in seeds:
        forest = forest_of(seed, device)
        exact.append(gap(tree_run(model, forest), flat_run(model, forest, 1, device)))
        with torch.autocast(device, torch.bfloat16):
            flat = flat_run(model, forest, 1, device)
            noise += [gap(flat_run(model, forest, size, device), flat) for size in BATCHES]
            drift.append(gap(tree_run(model, forest), flat))
            leak.append(gap(tree_run(model, forest, lambda p: plan(sibling_sees(p))), flat))
    largest = [torch.stack(rows).amax(0) for rows in (noise, drift, exact)]
    return (*largest[:2], torch.stack(leak).amin(0), largest[2])


def require_noise(model, device: str, float32_bound: float) -> None:
    noise, drift, leak, exact = distances(model, device)
    print(f"noise {noise.tolist()} drift {drift.tolist()} leak {leak.tolist()}")
    assert (noise > 1e-4).all()  # the shapes do round differently
    assert (drift <= FACTOR * noise).all(), (drift, noise)
    assert (leak > 2 * FACTOR * noise).all(), (leak, noise)
    assert (exact < float32_bound).all(), exact


def test_drift_is_of_the_size_of_other_batch_shapes():
    require_noise(tiny_vla.tiny_vla(dtype=torch.float32), "cpu", 1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("attention", ["flex", "sdpa"])
def test_gpu_drift_is_of_the_size_of_other_batch_shapes(attention):
    model = tiny_vla.tiny_vla(head_dim=64, attention=attention, dtype=torch.float32)
    require_noise(model.to("cuda"), "cuda", 1e-3)  # TF32 products, where they are on
