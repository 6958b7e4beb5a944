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


@pytest.mark.parametrize("layout", [Layout("full", "visible"), Layout("pooled", "visible")])
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
