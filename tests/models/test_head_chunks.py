"""Both heads, tied or not: a loss in chunks trains the model as a loss of all logits does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.models.flat_paths import use_plain_norms
from tests.models.model_scenario import episode, pixels, small
from vla_nav.actions import WaypointSpace
from vla_nav.attention.registry import backend
from vla_nav.losses import weighted_cross_entropy
from vla_nav.tree import PrefixTree, pack


@pytest.mark.parametrize("tie_head", [False, True])
@pytest.mark.parametrize("head", ["actions", "full"])
def test_a_loss_in_chunks_gives_every_gradient_of_the_model(head, tie_head):
    space = WaypointSpace()
    (model, builder), _ = small(space, head=head, tie_head=tie_head)
    model.double()
    use_plain_norms(model.backbone.model)
    found, source = episode(3, space, num_steps=4)
    paths, keys = builder.paths(found)
    packed = pack([PrefixTree.from_paths(paths, num_frames=len(keys))])
    frames = pixels(source, keys)
    plan = backend(model.attention_name).plan(packed)
    gradients, values = [], []
    for num_rows in (len(packed.target_ids), 3):
        model.zero_grad()
        predictions = model.predictions(packed, frames, plan)
        assert predictions.shape == (len(packed.target_ids), model.num_outputs)
        some = replace(predictions, max_logits=num_rows * model.num_outputs)
        assert len(list(some.chunks())) == -(-len(packed.target_ids) // num_rows)
        loss = weighted_cross_entropy(some, packed)
        loss.value.backward()
        values.append(loss.value.detach())
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    assert torch.allclose(*values, rtol=1e-12, atol=0)
    whole, chunked = gradients
    assert chunked.keys() == whole.keys()
    for name, gradient in whole.items():
        # Float64, norms included: the order of sums is all that differs.
        assert (chunked[name] - gradient).norm() <= 1e-12 * gradient.norm() + 1e-15, name
    with torch.no_grad():
        logits = model(packed, frames, plan)
        assert torch.equal(some.argmax(), logits.argmax(-1))
