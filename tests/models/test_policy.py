"""The policy's choices: constrained, counted, reproducible, and loud when the context is full."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from model_scenario import embodiment, episode, small

from vla_nav.actions import Stop, Waypoint, WaypointSpace
from vla_nav.actions.grammar import is_complete
from vla_nav.episodes.types import Pose
from vla_nav.errors import UserError
from vla_nav.models.policy import VLAPolicy
from vla_nav.models.prompt import Layout
from vla_nav.models.replay import recorded_observation
from vla_nav.simulators.protocol import Observation

SPACE = WaypointSpace()


def look(seed: int = 0) -> Observation:
    image = np.random.default_rng(seed).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    return Observation(Pose.from_yaw((0.0, 0.0, 0.0), 0.0), {"front": image}, {}, {})


def play(policy: VLAPolicy, num_slots: int, num_calls: int) -> list[dict[int, tuple[int, ...]]]:
    for slot in range(num_slots):
        policy.reset(slot, f"walk to door {slot}", name=f"episode {slot}")
    calls = []
    for call in range(num_calls):
        policy.act({slot: look(10 * call + slot) for slot in range(num_slots)})
        calls.append(dict(policy.last_tokens))
    return calls


@pytest.mark.parametrize("temperature", [0.0, 1.0, 50.0])
def test_constrained_decoding_stays_inside_the_grammar(temperature):
    (model, builder), _ = small(SPACE)
    policy = VLAPolicy(model, builder, temperature=temperature)
    chosen = [tokens for call in play(policy, 7, 8) for tokens in call.values()]
    assert all(is_complete(SPACE, tokens) for tokens in chosen)
    assert (policy.num_decoded, policy.num_unparsed) == (56, 0)
    assert len(set(chosen)) > 1


def test_greedy_takes_the_best_allowed_token():
    (model, builder), _ = small(SPACE)
    policy = VLAPolicy(model, builder)
    play(policy, 1, 1)
    logits, tokens = policy.last_logits[0].numpy(), policy.last_tokens[0]
    for index, token in enumerate(tokens):
        allowed = SPACE.allowed(tokens[:index])
        assert token == np.where(allowed, logits[index], -np.inf).argmax()


def test_unconstrained_text_is_unparsed_and_counted():
    """With random weights and 32,768 text tokens, the full head nearly always says a word."""
    (model, builder), _ = small(SPACE, head="full")
    policy = VLAPolicy(model, builder, is_constrained=False)
    for slot in range(6):
        policy.reset(slot, "stop")
    actions = policy.act({slot: look(slot) for slot in range(6)})
    assert policy.num_decoded == 6
    assert policy.num_unparsed >= 5
    for slot, action in actions.items():
        if not is_complete(SPACE, policy.last_tokens[slot]):
            assert action == SPACE.decode(()).action


def test_constraint_applies_to_the_full_head():
    (model, builder), _ = small(SPACE, head="full")
    policy = VLAPolicy(model, builder)
    actions = [a for _ in range(3) for a in self_actions(policy)]
    assert all(isinstance(action, Stop | Waypoint) for action in actions)
    assert policy.num_unparsed == 0


def self_actions(policy: VLAPolicy) -> list[object]:
    for slot in range(3):
        policy.reset(slot, "go")
    return list(policy.act({slot: look(slot) for slot in range(3)}).values())


def test_sampling_depends_on_seed_and_name_only():
    (model, builder), _ = small(SPACE)
    first = play(VLAPolicy(model, builder, temperature=2.0, seed=3), 4, 5)
    again = play(VLAPolicy(model, builder, temperature=2.0, seed=3), 4, 5)
    other = play(VLAPolicy(model, builder, temperature=2.0, seed=4), 4, 5)
    assert first == again
    assert first != other
    alone = play(VLAPolicy(model, builder, temperature=2.0, seed=3), 1, 5)
    assert [call[0] for call in alone] == [call[0] for call in first]


def test_sampled_frequencies_follow_the_softmax():
    (model, builder), _ = small(SPACE)
    policy = VLAPolicy(model, builder, temperature=1.5)
    for slot in range(400):
        policy.reset(slot, "go", name=str(slot))
    policy.act(dict.fromkeys(range(400), look(1)))
    allowed = SPACE.allowed(())
    scores = policy.last_logits[0][0].double() / 1.5
    scores[~torch.from_numpy(allowed.copy())] = -torch.inf
    expected = torch.softmax(scores, 0).numpy()
    counts = np.bincount([t[0] for t in policy.last_tokens.values()], minlength=len(expected)) / 400
    assert np.abs(counts - expected).max() < 0.1  # 4 standard deviations of a share of one half


def test_visible_actions_enter_the_context_as_they_do_in_training():
    """Without a note, the executed action is what the chosen one's primitives amount to."""
    (model, builder), _ = small(SPACE, layout=Layout("full", "visible"))
    noted, plain = VLAPolicy(model, builder), VLAPolicy(model, builder)
    for policy in (noted, plain):
        policy.reset(0, "go")
    for call in range(3):
        action = noted.act({0: look(call)})[0]
        noted.note_executed(0, SPACE.primitives(action, embodiment()))
        plain.act({0: look(call)})
        assert torch.equal(noted.last_logits[0], plain.last_logits[0])
    noted.note_executed(0, (3, 3, 1))
    noted.act({0: look(9)})
    plain.act({0: look(9)})
    assert not torch.equal(noted.last_logits[0], plain.last_logits[0])


def test_a_full_context_is_one_clear_line():
    (model, builder), _ = small(SPACE)
    policy = VLAPolicy(model, builder)
    policy.reset(0, "go " * 600)
    with pytest.raises(UserError, match=r"exceeds the backbone's 512 positions") as caught:
        policy.act({0: look()})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "layout",
    [Layout("full", "visible"), Layout("pooled", "visible"), Layout("full", "hidden", "last")],
    ids=lambda layout: layout.name,
)
def test_while_there_is_room_a_decision_never_exceeds_the_positions(layout):
    (model, builder), _ = small(SPACE, layout=layout)
    model.backbone.max_positions = 128
    policy = VLAPolicy(model, builder)
    policy.reset(0, "go")
    num_decisions = 0
    while policy.has_room(0):
        policy.act({0: look(num_decisions)})
        num_decisions += 1
        assert num_decisions < 128
    assert num_decisions > 128 // 20  # the room is used, not given away
    with pytest.raises(UserError, match="positions"):
        _ = [policy.act({0: look(call)}) for call in range(9)]


def test_where_a_summary_could_stand_a_slot_without_any_is_refused_and_can_be_helped():
    layout = Layout("summary", "hidden", summary_every=2, summary_keep=3)
    (model, builder), _ = small(SPACE, layout=layout)
    refused, told = VLAPolicy(model, builder), VLAPolicy(model, builder)
    for policy in (refused, told):
        policy.reset(0, "go")
        for call in range(4):  # at step 4 the summary of 2 leaves three frames: 2 3 4
            policy.act({0: look(call)})
    told.note_summary(0, 2, "left the room")
    told.act({0: look(4)})
    with pytest.raises(UserError, match=r"needs summaries.*step 4; call note_summary") as caught:
        refused.act({0: look(4)})
    assert "\n" not in str(caught.value)
    refused.note_summary(0, 2, "left the room")  # the refused call has moved nothing
    refused.act({0: look(4)})
    assert torch.equal(refused.last_logits[0], told.last_logits[0])


def test_saying_that_there_is_no_summary_leaves_the_full_history():
    (model, builder), _ = small(SPACE, layout=Layout("summary", "hidden", summary_keep=1))
    (full_model, full_builder), _ = small(SPACE, layout=Layout("full", "hidden"))
    policy, full = VLAPolicy(model, builder), VLAPolicy(full_model, full_builder)
    policy.reset(0, "go")
    full.reset(0, "go")
    for call in range(4):
        if call:
            policy.note_summary(0, call, None)
        policy.act({0: look(call)})
        full.act({0: look(call)})
        assert torch.equal(policy.last_logits[0], full.last_logits[0])
    policy.note_summary(0, 3, "saw a door")
    policy.act({0: look(4)})
    full.act({0: look(4)})
    assert not torch.equal(policy.last_logits[0], full.last_logits[0])


def test_notes_that_make_no_sense_are_named():
    (model, builder), _ = small(SPACE, layout=Layout("window", "visible"))
    policy = VLAPolicy(model, builder)
    with pytest.raises(ValueError, match="'hall': no episode has begun; call reset"):
        policy.act({"hall": look()})
    policy.reset("hall", "go")
    with pytest.raises(ValueError, match="before the episode's first act"):
        policy.note_executed("hall", (1,))
    with pytest.raises(UserError, match=r"tree\.history=window, which uses none"):
        policy.note_summary("hall", 1, "saw a door")
    (model, builder), _ = small(SPACE, layout=Layout("summary", "visible"))
    policy = VLAPolicy(model, builder)
    policy.reset("hall", "go")
    policy.act({"hall": look()})
    for step in (0, 2):
        with pytest.raises(UserError, match=f"summary of step {step}, allowed: 1 to 1"):
            policy.note_summary("hall", step, "saw a door")


def test_a_refused_call_moves_no_slot():
    """One slot's context is too long; the other, in the same call, goes on as if never asked."""
    (model, builder), _ = small(SPACE, layout=Layout("full", "visible"))
    policy, alone = VLAPolicy(model, builder), VLAPolicy(model, builder)
    policy.reset(0, "go")
    alone.reset(0, "go")
    policy.reset(1, "go " * 600)
    for call in range(3):
        with pytest.raises(UserError, match=r"slot 1: a context of .* exceeds"):
            policy.act({0: look(9), 1: look(9)})
        policy.act({0: look(call)})
        alone.act({0: look(call)})
        assert torch.equal(policy.last_logits[0], alone.last_logits[0])


def test_no_observation_is_no_action_and_the_model_keeps_its_mode():
    (model, builder), _ = small(SPACE)
    model.train()
    policy = VLAPolicy(model, builder)
    assert policy.act({}) == {}
    policy.reset("a", "go")
    policy.act({"a": look()})
    assert model.training
    with pytest.raises(UserError, match="temperature"):
        VLAPolicy(model, builder, temperature=-1)
    with pytest.raises(UserError, match="temperature"):
        VLAPolicy(model, builder, temperature=float("nan"))


def test_black_images_change_the_logits():
    found, source = episode(0, SPACE)
    (model, builder), _ = small(SPACE)
    policy = VLAPolicy(model, builder)
    seen = recorded_observation(found.steps[0].frames, found.steps[0].pose, source)
    black = Observation(seen.pose, {"front": np.zeros_like(seen.rgb["front"])}, {}, {})
    policy.reset(0, "go")
    policy.reset(1, "go")
    policy.act({0: seen, 1: black})
    assert not torch.allclose(policy.last_logits[0][0], policy.last_logits[1][0], atol=1e-3)
