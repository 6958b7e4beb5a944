"""Every space: decoding is total, encoding its inverse, and nothing unparsed goes forward."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spaces import SPACES, embodiment

from vla_nav.actions import Pointing, Primitives, Stop, Waypoint, build_space, decode_text
from vla_nav.actions.grammar import is_complete
from vla_nav.episodes.types import MOVE_FORWARD, STOP, TURN_LEFT, TURN_RIGHT
from vla_nav.errors import UserError

every_space = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())


def sentences(space, limit=400):
    """Token sequences of the grammar, walked at random from a fixed seed."""
    rng = np.random.default_rng(0)
    for _ in range(limit):
        tokens = ()
        while (mask := space.allowed(tokens)).any():
            tokens = (*tokens, int(rng.choice(np.flatnonzero(mask))))
        yield tokens


@every_space
@settings(max_examples=60)
@given(tokens=st.lists(st.integers(-3, 100), max_size=14).map(tuple))
def test_any_tokens_give_an_action_and_only_the_grammar_is_parsed(space, tokens):
    action, is_parsed = space.decode(tokens)
    assert is_parsed == is_complete(space, tokens)
    primitives = space.primitives(action, embodiment())
    assert primitives
    if not is_parsed:
        assert primitives in ((TURN_LEFT,), (STOP,)), "an unparsed action never goes forward"


@every_space
@pytest.mark.parametrize("tokens", [(), (0,) * 10_000, (10**9,), (-1,)])
def test_empty_endless_and_foreign_tokens_are_unparsed(space, tokens):
    decoded = space.decode(tokens)
    assert not decoded.is_parsed
    assert decoded.action in (Primitives((TURN_LEFT,)), Stop())


@every_space
@pytest.mark.parametrize("text", ["", "go forward a bit", "STOP STOP " * 5_000, "🙂" * 10_000])
def test_text_outside_the_grammar_is_unparsed(space, text):
    assert not decode_text(space, text).is_parsed


@every_space
def test_token_names_are_distinct_and_read_back(space):
    assert len(set(space.token_names)) == space.num_tokens
    for tokens in list(sentences(space, 30)):
        text = ", ".join(space.token_names[token] for token in tokens)
        assert decode_text(space, text) == space.decode(tokens)


@every_space
def test_every_sentence_is_parsed_and_moves_the_agent_or_stops(space):
    assert space.allowed(()).shape == (space.num_tokens,)
    for tokens in sentences(space):
        assert len(tokens) <= space.max_length
        action, is_parsed = space.decode(tokens)
        assert is_parsed
        primitives = space.primitives(action, embodiment(turn_deg=30.0))
        assert primitives == (STOP,) if action == Stop() else STOP not in primitives
        net = primitives.count(TURN_LEFT) - primitives.count(TURN_RIGHT)
        if "discrete" not in space.name:
            assert action == Stop() or MOVE_FORWARD in primitives or net or space.name == "chunk"


@every_space
def test_encode_inverts_decode_on_what_encode_emits(space):
    for tokens in sentences(space):
        emitted = space.encode(space.decode(tokens).action)
        assert space.decode(emitted) == space.decode(space.encode(space.decode(emitted).action))
        assert is_complete(space, emitted)
        assert space.encode(space.decode(emitted).action) == emitted


@every_space
@settings(max_examples=60)
@given(x=st.floats(-50, 50), y=st.floats(-50, 50), yaw=st.floats(-10, 10), u=st.floats(-2, 2))
def test_any_action_of_the_space_is_clipped_into_the_grammar(space, x, y, yaw, u):
    if space.name == "waypoint":
        actions = [Waypoint(x, y, yaw)]
    elif space.name == "pointing":
        actions = [Pointing("front", u, 1 - u, yaw), Waypoint(x, y, yaw)]
    else:
        moves = (MOVE_FORWARD, TURN_LEFT, TURN_RIGHT)
        actions = [Primitives((moves[int(abs(x)) % 3],) * (3 if space.name == "chunk" else 1))]
    for action in actions:
        assert is_complete(space, space.encode(action))


@every_space
def test_a_space_is_rebuilt_from_its_description(space):
    twin = build_space(space.describe())
    assert type(twin) is type(space)
    assert twin.describe() == space.describe()
    assert twin.token_names == space.token_names
    assert twin.decision == space.decision
    for tokens in sentences(space, 20):
        assert twin.decode(tokens) == space.decode(tokens)


@every_space
def test_masks_handed_out_cannot_be_changed(space):
    with pytest.raises(ValueError, match="read-only"):
        space.allowed(())[0] = False


def test_unknown_spaces_keys_and_fallbacks_are_refused():
    with pytest.raises(UserError, match="did you mean 'waypoint'"):
        build_space({"name": "waypoints"})
    with pytest.raises(UserError, match="grid"):
        build_space({"name": "waypoint", "grid": 1})
    with pytest.raises(UserError, match=r"actions\.fallback"):
        build_space({"name": "discrete", "fallback": "forward"})
    assert math.isfinite(SPACES["polar"].range_m)
