"""One packed forward and backward equals the flat paths through unmodified transformers."""

from __future__ import annotations

import copy

import pytest
import torch
from flat_paths import flat_logits, flat_targets, stock_backbone, use_plain_norms
from model_scenario import embodiment, episode, pixels, small
from torch.nn import functional as F

from vla_nav.actions import ChunkSpace, WaypointSpace
from vla_nav.attention.registry import backend
from vla_nav.models.prompt import Layout, PoseTokens, PromptConfig
from vla_nav.models.replay import label_rows
from vla_nav.tree import PrefixTree, pack

LAYOUTS = [Layout(h, a) for h in ("full", "pooled") for a in ("hidden", "visible")]
# Stock norms compute in float32 on both sides, where a different batch shape rounds differently.
STOCK, PLAIN = 1e-6, 1e-12


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).detach().norm() / b.detach().norm().clamp_min(1e-30))


def both(space, layout, *, family, attention, has_plain_norms, head="actions", tie_head=False):
    """(tree, flat): logits per path, and gradients by name, of two identical models."""
    body = embodiment(num_cameras=2, has_depth=True)
    prompt = PromptConfig(depth=True, facts="compact", separator=True, pose=PoseTokens())
    (model, builder), _ = small(
        space,
        layout=layout,
        body=body,
        prompt=prompt,
        family=family,
        head=head,
        tie_head=tie_head,
        attention=attention,
    )
    model.double()
    flat = copy.deepcopy(model)
    stock = stock_backbone(flat)
    if has_plain_norms:
        use_plain_norms(model.backbone.model)
        use_plain_norms(stock)
    found, source = episode(3, space, body=body, num_steps=4)
    paths, keys = builder.paths(found)
    frames = pixels(source, keys)

    tree = PrefixTree.from_paths(paths)
    packed = pack([tree])
    logits = model(packed, frames, backend(attention).plan(packed))
    losses = F.cross_entropy(logits, packed.target_ids, reduction="none")
    (losses * packed.loss_weights).sum().backward()
    tree_logits = [logits[rows] for rows in label_rows(tree, paths)]

    flat_all = [flat_logits(flat, stock, path, frames) for path in paths]
    flat_losses = [
        F.cross_entropy(rows, flat_targets(path), reduction="sum")
        for path, rows in zip(paths, flat_all, strict=True)
    ]
    torch.stack(flat_losses).sum().backward()
    tree_grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    flat_grads = {n: p.grad for n, p in flat.named_parameters() if p.grad is not None}
    for name, parameter in stock.named_parameters():
        full_name = f"backbone.model.{name}"
        if parameter.grad is not None:  # a tied text table has a part in both
            part = flat_grads.get(full_name)
            flat_grads[full_name] = parameter.grad if part is None else parameter.grad + part
    return (tree_logits, tree_grads), (flat_all, flat_grads)


def check(ours, theirs, tolerance):
    """Logits per path and gradients by name agree."""
    (logits, grads), (flat, flat_grads) = ours, theirs
    assert len(logits) == len(flat) >= 4
    for rows, flat_rows in zip(logits, flat, strict=True):
        assert relative(rows, flat_rows) < tolerance
    assert grads.keys() == flat_grads.keys()
    assert {name.split(".")[0] for name in grads} >= {"backbone", "projector", "encoder"}
    for name, grad in grads.items():
        if flat_grads[name].norm() > 1e-9:
            assert relative(grad, flat_grads[name]) < tolerance * 10, name


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda x: f"{x.history}-{x.actions}")
def test_logits_and_every_gradient_equal_those_of_the_flat_paths(layout):
    found = both(
        WaypointSpace(), layout, family="qwen3", attention="reference", has_plain_norms=True
    )
    check(*found, PLAIN)


@pytest.mark.parametrize("family", ["mistral", "llama"])
def test_the_other_families_equal_flat(family):
    found = both(
        WaypointSpace(), LAYOUTS[2], family=family, attention="reference", has_plain_norms=True
    )
    check(*found, PLAIN)


@pytest.mark.parametrize("family", ["qwen3", "mistral", "llama"])
def test_the_unmodified_backbone_equals_flat_within_its_float32_norms(family):
    found = both(
        WaypointSpace(), LAYOUTS[3], family=family, attention="sdpa", has_plain_norms=False
    )
    check(*found, STOCK)


@pytest.mark.parametrize("tie_head", [False, True])
def test_the_full_head_equals_flat(tie_head):
    found = both(
        ChunkSpace(length=3, decision="turn_then_forward(4)"),
        LAYOUTS[1],
        family="qwen3",
        attention="reference",
        has_plain_norms=True,
        head="full",
        tie_head=tie_head,
    )
    check(*found, PLAIN)
    (logits, grads), _ = found
    assert logits[0].shape[1] > 32_768
    assert ("own_head.weight" in grads) != tie_head


def test_a_later_frame_leaves_earlier_logits_bit_identical():
    space = WaypointSpace()
    (model, builder), _ = small(space)
    found, source = episode(5, space, num_steps=4)
    paths, keys = builder.paths(found)
    frames = pixels(source, keys)
    tree = PrefixTree.from_paths(paths)
    packed = pack([tree])
    plan = backend("reference").plan(packed)
    changed = frames.clone()
    changed[-1] = 255 - changed[-1]
    with torch.no_grad():
        before, after = model(packed, frames, plan), model(packed, changed, plan)
    rows = label_rows(tree, paths)
    num_last = len(found.steps[-1].labels)
    for row in rows[:-num_last]:
        assert torch.equal(before[row], after[row])
    assert all(not torch.equal(before[row], after[row]) for row in rows[-num_last:])
