"""A recorded episode through the policy's cache gives the logits of the packed training forward."""

from __future__ import annotations

import pytest
import torch
from model_scenario import embodiment, episode, small

from vla_nav.actions import ChunkSpace, DiscreteSpace, PointingSpace, WaypointSpace
from vla_nav.models.policy import VLAPolicy
from vla_nav.models.prompt import Layout, PoseTokens, PromptConfig
from vla_nav.models.replay import recorded_observation, replay, training_logits

TOLERANCE = 1e-5  # float32: a cached call has other shapes, so sums round in another order
LAYOUTS = [Layout(h, a) for h in ("full", "pooled") for a in ("hidden", "visible")]
SPACES = {
    "discrete": DiscreteSpace(),
    "chunk": ChunkSpace(length=5, decision="turn_then_forward(4)"),
    "polar": WaypointSpace(),
    "cartesian": WaypointSpace(coordinates="cartesian", grid_m=0.125),
    "pointing": PointingSpace(),
}
every_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda x: f"{x.history}-{x.actions}")


def differences(live: list[torch.Tensor], packed: list[torch.Tensor]) -> float:
    """The largest relative difference by norm over the labels."""
    assert [x.shape for x in live] == [x.shape for x in packed]
    return max(float((a - b).norm() / b.norm()) for a, b in zip(live, packed, strict=True))


@every_layout
@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())
def test_replay_equals_the_packed_forward(space, layout):
    body = embodiment(num_cameras=2, has_depth=True)
    prompt = PromptConfig(depth=True, facts="full", separator=True, pose=PoseTokens())
    (model, builder), _ = small(space, layout=layout, body=body, prompt=prompt, attention="sdpa")
    found, source = episode(11, space, body=body)
    policy = VLAPolicy(model, builder)
    packed = training_logits(model, builder, found, source)
    assert differences(replay(policy, found, source), packed) < TOLERANCE
    assert max(float(rows.std()) for rows in packed) > 0.1, "logits say something"


@every_layout
@pytest.mark.parametrize("family", ["mistral", "llama"])
def test_replay_equals_the_packed_forward_in_every_family(family, layout):
    space = SPACES["polar"]
    (model, builder), _ = small(space, layout=layout, family=family, num_kv_heads=1)
    found, source = episode(12, space)
    live = replay(VLAPolicy(model, builder), found, source)
    assert differences(live, training_logits(model, builder, found, source)) < TOLERANCE


@every_layout
def test_slots_of_different_lengths_do_not_disturb_each_other(layout):
    """Slot b starts b calls later and reads a longer instruction; all share every call."""
    space = SPACES["polar"]
    (model, builder), _ = small(space, layout=layout)
    episodes = [episode(seed, space, num_steps=5 + seed % 3, max_labels=1) for seed in range(4)]
    alone = []
    for found, source in episodes:
        alone.append(replay(VLAPolicy(model, builder), found, source))
    policy = VLAPolicy(model, builder)
    seen: dict[int, list[torch.Tensor]] = {slot: [] for slot in range(4)}
    for call in range(12):
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


def test_a_reused_slot_remembers_nothing():
    space = SPACES["polar"]
    (model, builder), _ = small(space, layout=Layout("pooled", "visible"))
    (first, first_source), (second, second_source) = episode(1, space), episode(2, space)
    policy = VLAPolicy(model, builder)
    replay(policy, first, first_source)
    again = replay(policy, second, second_source)
    fresh = replay(VLAPolicy(model, builder), second, second_source)
    assert all(torch.equal(a, b) for a, b in zip(again, fresh, strict=True))


def test_a_long_root_is_read_in_pieces(monkeypatch):
    space = SPACES["polar"]
    (model, builder), _ = small(space)
    found, source = episode(4, space)
    whole = replay(VLAPolicy(model, builder), found, source)
    monkeypatch.setattr("vla_nav.models.incremental._PREFILL_TOKENS", 3)
    pieces = replay(VLAPolicy(model, builder), found, source)
    assert differences(pieces, whole) < TOLERANCE
