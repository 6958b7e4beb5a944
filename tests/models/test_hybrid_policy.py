"""The policy of a hybrid: its cache of keys and states gives what the packed forward gives."""

from __future__ import annotations

import pytest
import torch
from model_scenario import HYBRIDS, episode, small
from test_replay import LAYOUTS, SPACES, differences, recorded

from vla_nav.models.policy import VLAPolicy
from vla_nav.models.prompt import Layout
from vla_nav.models.replay import recorded_observation, replay, training_logits

TOLERANCE = 1e-5  # float32: other shapes, so sums round in another order
in_every_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)


@in_every_layout
def test_replay_equals_the_packed_forward_in_every_layout(layout):
    """Contexts part inside what was read in one call, so states are read again from their copies"""
    family = list(HYBRIDS)[LAYOUTS.index(layout) % 2]
    space = SPACES["chunk"]
    (model, builder), _ = small(space, layout=layout, family=family, attention="sdpa")
    slow_decay(model)
    found, source = recorded(11, space)
    packed = training_logits(model, builder, found, source)
    assert differences(replay(VLAPolicy(model, builder), found, source), packed) < TOLERANCE
    assert max(float(rows.std()) for rows in packed) > 0.1, "logits say something"


@pytest.mark.parametrize("family", HYBRIDS)
def test_slots_do_not_disturb_each_other_and_a_reused_one_remembers_nothing(family):
    space, layout = SPACES["polar"], Layout("pooled", "visible")
    (model, builder), _ = small(space, layout=layout, family=family)
    slow_decay(model)
    episodes = [episode(seed, space, num_steps=4 + seed, max_labels=1) for seed in range(3)]
    alone = [replay(VLAPolicy(model, builder), *one) for one in episodes]
    policy = VLAPolicy(model, builder)
    for _ in range(2):  # the second time in rows that have been used
        seen: dict[int, list[torch.Tensor]] = {slot: [] for slot in range(3)}
        for call in range(9):
            observations, forced = {}, {}
            for slot, (found, source) in enumerate(episodes):
                t = call - slot
                if t == 0:
                    policy.reset(slot, found.instruction)
                if 0 <= t < len(found.steps):
                    step = found.steps[t]
                    observations[slot] = recorded_observation(step.frames, step.pose, source)
                    forced[slot] = space.encode(space.label(step.pose, step.labels[0]))
            policy.act(observations, forced=forced)
            for slot in observations:
                policy.note_executed(slot, episodes[slot][0].steps[call - slot].executed)
                seen[slot].append(policy.last_logits[slot])
        for slot, logits in enumerate(alone):
            assert differences(seen[slot], logits) < TOLERANCE


@pytest.mark.parametrize("family", HYBRIDS)
def test_long_additions_are_read_in_pieces(family, monkeypatch):
    space = SPACES["polar"]
    layout = Layout("window", "visible", window=2)
    (model, builder), _ = small(space, family=family, layout=layout)
    slow_decay(model)
    found, source = episode(4, space)
    whole = replay(VLAPolicy(model, builder), found, source)
    monkeypatch.setattr("vla_nav.models.incremental._PREFILL_TOKENS", 3)
    pieces = replay(VLAPolicy(model, builder), found, source)
    assert differences(pieces, whole) < TOLERANCE


def slow_decay(model):
    """States that reach far: with random decays most of them forget within a token."""
    for name, parameter in model.named_parameters():
        if name.endswith("A_log"):
            parameter.data.fill_(-3.0)
