"""A recorded episode through the policy's cache gives the logits of the packed training forward."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from model_scenario import Frames, embodiment, episode, small

from vla_nav.actions import ChunkSpace, DiscreteSpace, PointingSpace, WaypointSpace
from vla_nav.actions.types import ActionSpace
from vla_nav.episodes.types import Embodiment, Episode
from vla_nav.models.policy import VLAPolicy
from vla_nav.models.prompt import PoseTokens, PromptBuilder, PromptConfig
from vla_nav.models.replay import recorded_observation, replay, training_logits
from vla_nav.models.vla import VLA
from vla_nav.tree import Layout, every_layout

TOLERANCE = 1e-5  # float32: a cached call has other shapes, so sums round in another order
LAYOUTS = every_layout(window=3, uniform=3, summary_every=2, summary_keep=2)
SOME_LAYOUTS = (
    Layout("full", "visible"),
    Layout("pooled", "hidden", "last"),
    Layout("window", "visible", window=2),
    Layout("summary", "visible", "last", summary_keep=1),
)
SUMMARIES = {"2": "saw a sofa", "3": "this one is skipped where two divides", "4": "left the room"}
SPACES = {
    "discrete": DiscreteSpace(),
    "chunk": ChunkSpace(length=5, decision="turn_then_forward(4)"),
    "polar": WaypointSpace(),
    "cartesian": WaypointSpace(coordinates="cartesian", grid_m=0.125),
    "pointing": PointingSpace(),
}
in_every_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
in_some_layouts = pytest.mark.parametrize("layout", SOME_LAYOUTS, ids=lambda layout: layout.name)


def recorded(seed: int, space: ActionSpace, **options: object) -> tuple[Episode, Frames]:
    """An episode of seven steps, so that every history has been rewritten twice, with summaries."""
    found, source = episode(seed, space, num_steps=7, **options)
    return replace(found, metadata={"summaries": SUMMARIES}), source


def differences(live: list[torch.Tensor], packed: list[torch.Tensor]) -> float:
    """The largest relative difference by norm over the labels."""
    assert [x.shape for x in live] == [x.shape for x in packed]
    return max(float((a - b).norm() / b.norm()) for a, b in zip(live, packed, strict=True))


def wide_model(space: ActionSpace, layout: Layout) -> tuple[VLA, PromptBuilder, Embodiment]:
    """Two cameras with depth, facts, poses and a separator: every kind of token."""
    body = embodiment(num_cameras=2, has_depth=True)
    prompt = PromptConfig(depth=True, facts="full", separator=True, pose=PoseTokens())
    (model, builder), _ = small(space, layout=layout, body=body, prompt=prompt, attention="sdpa")
    return model, builder, body


def check_replay(space: ActionSpace, layout: Layout) -> None:
    model, builder, body = wide_model(space, layout)
    found, source = recorded(11, space, body=body)
    packed = training_logits(model, builder, found, source)
    assert differences(replay(VLAPolicy(model, builder), found, source), packed) < TOLERANCE
    assert max(float(rows.std()) for rows in packed) > 0.1, "logits say something"


@in_every_layout
def test_replay_equals_the_packed_forward_in_every_layout(layout):
    check_replay(SPACES["chunk"], layout)


@pytest.mark.parametrize("layout", SOME_LAYOUTS[1:3], ids=lambda layout: layout.name)
@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())
def test_replay_equals_the_packed_forward_in_every_action_space(space, layout):
    check_replay(space, layout)


@pytest.mark.parametrize("layout", SOME_LAYOUTS[2:], ids=lambda layout: layout.name)
@pytest.mark.parametrize("family", ["mistral", "llama"])
def test_replay_equals_the_packed_forward_in_every_family(family, layout):
    space = SPACES["polar"]
    (model, builder), _ = small(space, layout=layout, family=family, num_kv_heads=1)
    found, source = recorded(12, space)
    live = replay(VLAPolicy(model, builder), found, source)
    assert differences(live, training_logits(model, builder, found, source)) < TOLERANCE


@in_some_layouts
def test_slots_of_different_lengths_do_not_disturb_each_other(layout):
    """Slot b starts b calls later and reads a longer instruction; all share every call."""
    space = SPACES["polar"]
    (model, builder), _ = small(space, layout=layout)
    episodes = []
    for seed in range(4):
        found, source = episode(seed, space, num_steps=5 + seed % 3, max_labels=1)
        episodes.append((replace(found, metadata={"summaries": SUMMARIES}), source))
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
            if 0 < t < len(found.steps) and layout.history == "summary":
                policy.note_summary(slot, t, SUMMARIES.get(str(t)))
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
