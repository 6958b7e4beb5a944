"""Text actions: every text is an action of the grammar or is counted as unparsed (case 17)."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_nav.episodes.text_actions import FALLBACKS, MAX_UNITS, action_text, decode_action_text
from vla_nav.errors import UserError

# the ten texts of the published R2R annotations, read by hand
PUBLISHED = {
    "I think I should stop because I have finished the instruction.": (0,),
    "The next action is move forward 25 cm.": (1,),
    "The next action is move forward 50 cm.": (1, 1),
    "The next action is move forward 75 cm.": (1, 1, 1),
    "The next action is turn left 15 degree.": (2,),
    "The next action is turn left 30 degree.": (2, 2),
    "The next action is turn left 45 degree.": (2, 2, 2),
    "The next action is turn right 15 degree.": (3,),
    "The next action is turn right 30 degree.": (3, 3),
    "The next action is turn right 45 degree.": (3, 3, 3),
}
OUTSIDE = (
    "go forward a bit",
    "",
    "   ",
    "move",
    "The next action is",
    "do not stop",
    "move forward 75 cm, then stop",
    "The next action is move forward 75 cm. The next action is stop.",
    "move forward 30 cm",
    "move forward 0 cm",
    "move forward -25 cm",
    "move forward 2.5 m",
    "move forward cm",
    "move forward 325 cm",
    "move forward 99999999999999999999 cm",
    "turn left",
    "turn left 20 degree",
    "turn around 45 degree",
    "turn left \u0661\u0665 degree",
    "turn left 15 degree\x00",
    "STOP" * 3,
    "\ud800",
    "forward " * 10_000,
    " " * 10_000 + "stop",
)


@pytest.mark.parametrize("text", PUBLISHED)
def test_published_texts_are_read(text: str) -> None:
    assert decode_action_text(text) == (PUBLISHED[text], True)


@pytest.mark.parametrize(
    "text",
    ["turn left 30 degrees", " THE next action is  turn left 30 DEG . ", "turn left 30deg"],
)
def test_spelling_makes_no_difference(text: str) -> None:
    assert decode_action_text(text) == ((2, 2), True)


@pytest.mark.parametrize("fallback", FALLBACKS)
@pytest.mark.parametrize("text", OUTSIDE)
def test_a_text_outside_the_grammar_is_the_declared_fallback(text: str, fallback: str) -> None:
    action = decode_action_text(text, fallback=fallback)
    assert action == (FALLBACKS[fallback], False)
    assert 1 not in action.primitives  # never a step forward that nobody asked for


@pytest.mark.parametrize("value", [None, 3, ["stop"], b"stop"])
def test_what_is_no_text_is_unparsed(value: object) -> None:
    assert not decode_action_text(value).is_parsed


def test_an_unknown_fallback_is_refused() -> None:
    with pytest.raises(UserError, match="allowed: stop, turn"):
        decode_action_text("stop", fallback="forward")


@given(st.text(max_size=400) | st.sampled_from(sorted(PUBLISHED)).map(lambda text: text + "\n"))
def test_any_text_gives_an_action(text: str) -> None:
    primitives, is_parsed = decode_action_text(text)
    assert set(primitives) <= {0, 1, 2, 3}
    assert 1 <= len(primitives) <= MAX_UNITS
    if is_parsed:
        assert decode_action_text(action_text(primitives)) == (primitives, True)


@given(
    kind=st.sampled_from([1, 2, 3]),
    count=st.integers(1, MAX_UNITS),
    turn_deg=st.sampled_from([10.0, 15.0, 30.0]),
    step_m=st.sampled_from([0.1, 0.25, 0.5]),
)
def test_written_and_read_an_action_is_the_same(
    kind: int, count: int, turn_deg: float, step_m: float
) -> None:
    text = action_text((kind,) * count, turn_deg=turn_deg, step_m=step_m)
    got = decode_action_text(text, turn_deg=turn_deg, step_m=step_m)
    assert got == ((kind,) * count, True)


@pytest.mark.parametrize("primitives", [(), (1, 2), (0, 0), (4,), (1,) * (MAX_UNITS + 1)])
def test_what_one_text_cannot_say_is_refused(primitives: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="text action"):
        action_text(primitives)


def test_long_texts_take_no_time() -> None:
    texts = ["move forward " + "2" * n for n in (10, 10**3, 10**6)] + ["stop " * 10**6] * 10
    begin = time.perf_counter()
    assert not any(decode_action_text(text).is_parsed for text in texts)
    assert time.perf_counter() - begin < 0.5
