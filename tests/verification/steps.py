"""One training step twice: flat paths by loops, and the packed tree; compared by prefix.

    flat    every path alone, the backbone's own causal attention, a loss by its definition
    tree    pack -> one forward -> the product's loss
    key     (tree number, the tokens from the root up to and with the target): a tree token *is* a
            distinct prefix of the paths, so both sides are matched without the tree's own maps

Nothing here uses `flatten`, the product's oracle or its comparison.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tests.tree.random_paths import token_list
from tests.verification import tiny_models
from tests.verification.tiny_models import packed_forward
from vla_nav.losses import weighted_cross_entropy
from vla_nav.tree import PackedTree, PrefixTree, pack
from vla_nav.verification import Sample

Key = tuple  # (tree number, token, token, ...)


class Step(NamedTuple):
    """logits: key -> (V,) for every flat occurrence of the target; gradients and parameters (after
    one AdamW step) by name; size: per parameter the sum over paths of their gradients' norms."""

    logits: dict[Key, list[Tensor]]
    loss: float
    gradients: dict[str, Tensor]
    parameters: dict[str, Tensor]
    size: dict[str, float]


class Bound(NamedTuple):
    """Largest differences relative by norm."""

    logits: float
    loss: float
    gradients: float
    parameters: float


def flat_step(
    model: nn.Module,
    samples: Sequence[Sample],
    normalisation: str,
    *,
    flat_copy: Callable = tiny_models.flat_copy,
    flat_forward: Callable = tiny_models.flat_forward,
) -> Step:
    """Every path by itself; `model` stays as it was."""
    flat = flat_copy(model)
    names = [name for name, value in flat.named_parameters() if value.requires_grad]
    parameters = [dict(flat.named_parameters())[name] for name in names]
    sums = [torch.zeros_like(value) for value in parameters]
    size = dict.fromkeys(names, 0.0)
    logits: dict[Key, list[Tensor]] = {}
    loss = 0.0
    for number, sample in enumerate(samples):
        for path in sample.paths:
            tokens, row = token_list(path), path.tokens()
            targets = row.is_supervised.nonzero()[0].tolist()
            if not targets:
                continue
            out = flat_forward(flat, row, sample.frames)  # (n, V)
            terms = []
            for i in targets:
                logits.setdefault((number, *tokens[: i + 1]), []).append(out[i - 1].detach())
                terms.append(-out[i - 1].log_softmax(-1)[int(row.token_ids[i])])
            share = path.coefficient / denominator(samples, sample, normalisation)
            value = share * torch.stack(terms).sum()
            loss += float(value.detach())
            for k, grad in enumerate(torch.autograd.grad(value, parameters, allow_unused=True)):
                if grad is not None:
                    sums[k] += grad
                    size[names[k]] += float(grad.double().norm())
    gradients = dict(zip(names, sums, strict=True))
    return Step(logits, loss, gradients, updated(flat, gradients), size)


def denominator(samples: Sequence[Sample], sample: Sample, normalisation: str) -> float:
    """What the definition divides a path's loss by (design section 3)."""
    if normalisation == "path_mean":
        return len(sample.paths) * len(samples)
    if normalisation == "token_mean":
        return sum(
            path.coefficient * float(path.tokens().is_supervised.sum())
            for other in samples
            for path in other.paths
        )
    return 1.0


def tree_step(
    model: nn.Module,
    samples: Sequence[Sample],
    normalisation: str,
    *,
    attention: str = "sdpa",
    pack_of: Callable[[Sequence[PrefixTree]], PackedTree] = pack,
) -> Step:
    """The same step over one pack."""
    ours = copy.deepcopy(model)
    packed = pack_of(trees_of(samples))
    frames = torch.cat([sample.frames for sample in samples])
    out = packed_forward(attention)(ours, packed, frames)  # (M, V)
    loss = weighted_cross_entropy(out, packed, normalisation=normalisation).value
    torch.autograd.backward(loss)
    gradients = {
        name: torch.zeros_like(value) if value.grad is None else value.grad
        for name, value in ours.named_parameters()
    }
    logits = {
        key: [row] for key, row in zip(target_keys(packed), out.detach().unbind(), strict=True)
    }
    assert len(logits) == len(out), "two targets of one prefix"
    return Step(logits, float(loss.detach()), gradients, updated(ours, gradients), {})


def trees_of(samples: Sequence[Sample]) -> list[PrefixTree]:
    """One tree per sample over the sample's own frames."""
    return [PrefixTree.from_paths(one.paths, num_frames=len(one.frames)) for one in samples]


def target_keys(packed: PackedTree) -> list[Key]:
    """The key of every target, read off the mask: its prefix is what it sees."""
    end, start = packed.subtree_end.tolist(), packed.tree_start.tolist()
    ids, patch = packed.token_ids.tolist(), packed.patch_index.tolist()
    frame, offset = packed.frame_index.tolist(), packed.frame_offset.tolist()
    keys = []
    for target, number in zip(
        packed.target_index.tolist(), packed.target_tree.tolist(), strict=True
    ):
        seen = [k for k in range(target + 1) if target < end[k]]
        assert all(start[number] <= k < start[number + 1] for k in seen), "sees another tree"
        keys.append(
            (
                number,
                *(
                    ("t", ids[k]) if frame[k] < 0 else ("v", frame[k] - offset[number], patch[k])
                    for k in seen
                ),
            )
        )
    return keys


def assert_equal_steps(ours: Step, flat: Step, bound: Bound, *, is_signed: bool = False) -> None:
    """All four comparisons. is_signed: paths may cancel, so gradients are held to their sizes."""
    assert ours.logits.keys() == flat.logits.keys()
    found = torch.stack([ours.logits[key][0] for key, rows in flat.logits.items() for _ in rows])
    expected = torch.stack([row for rows in flat.logits.values() for row in rows])
    assert relative(found, expected) <= bound.logits
    scale = max(abs(flat.loss), 1.0 if is_signed else 0.0)
    assert abs(ours.loss - flat.loss) <= bound.loss * scale
    assert ours.gradients.keys() == flat.gradients.keys()
    sizes = {
        name: flat.size[name] if is_signed else float(value.double().norm())
        for name, value in flat.gradients.items()
    }
    # A query with a single key has no gradient: what is left there is rounding of the others, and
    # may be as large as an epsilon of theirs.
    epsilon = max(torch.finfo(value.dtype).eps for value in flat.gradients.values())
    floor = max(1e-3, epsilon / bound.gradients) * max(sizes.values())
    for name, value in flat.gradients.items():
        gap = float((ours.gradients[name].double() - value.double()).norm())
        assert gap <= bound.gradients * max(sizes[name], floor), (name, gap / (sizes[name] + 1e-30))
    for name, value in flat.parameters.items():
        assert relative(ours.parameters[name], value) <= bound.parameters, name


def updated(model: nn.Module, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """The parameters after one AdamW step on these gradients."""
    named = {name: value for name, value in model.named_parameters() if name in gradients}
    for name, value in named.items():
        value.grad = gradients[name]
    torch.optim.AdamW(named.values(), lr=1e-3, weight_decay=0.01).step()
    return {name: value.detach() for name, value in named.items()}


def relative(found: Tensor, expected: Tensor) -> float:
    """||found - expected|| / ||expected||."""
    gap = float((found.double() - expected.double()).norm())
    return gap / max(float(expected.double().norm()), 1e-300)
