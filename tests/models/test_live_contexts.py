"""Live contexts that are rewritten: recomputed where they differ, never computed where they do not,
and equal to the packed forward of whatever the policy itself sampled."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from model_scenario import ENCODER, embodiment, small

from vla_nav.actions import ChunkSpace, WaypointSpace
from vla_nav.attention.registry import backend
from vla_nav.episodes.types import MOVE_FORWARD, TURN_LEFT, Pose
from vla_nav.models.policy import VLAPolicy
from vla_nav.models.prompt import PromptBuilder
from vla_nav.models.replay import label_rows
from vla_nav.models.vla import VLA
from vla_nav.simulators.protocol import Observation
from vla_nav.tree import Layout, Path, PrefixTree, StepTokens, context_of, every_layout, pack
from vla_nav.tree.types import text_segment

SPACE = ChunkSpace(length=4)
LAYOUTS = every_layout(window=3, uniform=3, summary_every=2, summary_keep=2)
NUM_FULL, NUM_POOLED = ENCODER["num_tokens"], ENCODER["num_pooled"]
HERE = Pose.from_yaw((0.0, 0.0, 0.0), 0.0)
TURN = (TURN_LEFT, TURN_LEFT, 4)  # two primitives and the end: three tokens
WALK = (MOVE_FORWARD, MOVE_FORWARD, MOVE_FORWARD, MOVE_FORWARD)


def image(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (32, 32, 3), dtype=np.uint8)


def summary_at(layout: Layout, t: int) -> str | None:
    """A text for steps 2 and 4."""
    return f"saw {t} doors" if layout.history == "summary" and t in (2, 4) else None


def decide(policy: VLAPolicy, slot: int, t: int, seen: np.ndarray, forced=None) -> None:
    if t and policy.prompt.layout.history == "summary":
        policy.note_summary(slot, t, summary_at(policy.prompt.layout, t))
    observation = Observation(HERE, {"front": seen}, {}, {})
    policy.act({slot: observation}, forced=None if forced is None else {slot: forced})


def num_computed(layout: Layout, num_steps: int, forced, executed=None) -> list[int]:
    """New tokens of every step's context, as the model was given them."""
    (model, builder), _ = small(SPACE, layout=layout)
    policy, counts = VLAPolicy(model, builder), []
    embed = model.embed

    def counting_embed(token_ids, *others):
        counts.append(len(token_ids))
        return embed(token_ids, *others)

    model.embed = counting_embed
    policy.reset(0, "go")
    for t in range(num_steps):
        decide(policy, 0, t, image(t), forced)
        if executed is not None:
            policy.note_executed(0, executed)
    num_root, num_text = len(builder.root()), len(builder.instruction("go"))
    return [counts[0] - num_root - num_text, *counts[1:]]


def test_tokens_that_stay_a_prefix_are_computed_once():
    """Counts by hand: C tokens of the current frame, p of a pooled one, n of the action."""
    c, p = NUM_FULL, NUM_POOLED
    num_text = len(small(SPACE)[0].prompt.instruction("go"))
    assert num_computed(Layout("full", "hidden"), 5, TURN) == [c] * 5
    assert num_computed(Layout("full", "hidden", "last"), 5, TURN) == [c] + [c + num_text] * 4
    assert num_computed(Layout("pooled", "hidden"), 5, TURN) == [c] + [p + c] * 4
    assert num_computed(Layout("pooled", "visible"), 5, TURN) == [c] + [p + 3 + c] * 4
    # Of the executed action all but the last token was computed when it was decoded.
    assert num_computed(Layout("full", "visible"), 5, TURN) == [c] + [1 + c] * 4
    walked = num_computed(Layout("full", "visible"), 5, TURN, executed=WALK)
    assert walked == [c] + [4 + c] * 4


def test_a_rewritten_context_is_computed_from_where_it_differs():
    c, num_text = NUM_FULL, len(small(SPACE)[0].prompt.instruction("go"))
    window = num_computed(Layout("window", "hidden", window=3), 6, TURN)
    assert window == [c, c, c, 3 * c, 3 * c, 3 * c]
    last = num_computed(Layout("window", "hidden", "last", window=3), 5, TURN)
    assert last == [c, c + num_text, c + num_text, 3 * c + num_text, 3 * c + num_text]
    # Frames in sight: 0, 01, 012, 023, 024, 035 - frame 0 stays, then 2 stays once.
    uniform = num_computed(Layout("uniform", "hidden", uniform=3), 6, TURN)
    assert uniform == [c, c, c, 2 * c, c, 2 * c]
    layout = Layout("summary", "hidden", summary_keep=2)
    (_, builder), _ = small(SPACE, layout=layout)
    two, four = (len(builder.summary(summary_at(layout, t))) for t in (2, 4))
    # The summary of 2 stands from step 3 on, that of 4 from step 5 on; both begin alike.
    found = num_computed(layout, 6, TURN)
    assert found[:5] == [c, c, c, two + 2 * c, c]
    assert 2 * c < found[5] < four + 2 * c


@pytest.mark.parametrize(
    ("layout", "blind"),
    [  # the steps that must not see frame 1
        (Layout("window", "visible", window=3), {4, 5, 6}),
        (Layout("uniform", "hidden", uniform=3), {3, 4, 5, 6}),
        (Layout("summary", "visible", "last", summary_keep=2), {3, 4, 5, 6}),
        (Layout("pooled", "visible"), set()),
    ],
    ids=lambda value: value.name if isinstance(value, Layout) else "",
)
def test_a_frame_out_of_sight_changes_no_logit_by_a_bit(layout, blind):
    logits = []
    for frame_1 in (image(1), 255 - image(1)):
        (model, builder), _ = small(SPACE, layout=layout)
        policy = VLAPolicy(model, builder)
        policy.reset(0, "go")
        logits.append([])
        for t in range(7):
            decide(policy, 0, t, frame_1 if t == 1 else image(t), TURN)
            logits[-1].append(policy.last_logits[0])
    is_equal = [torch.equal(a, b) for a, b in zip(*logits, strict=True)]
    assert {t for t in range(1, 7) if is_equal[t]} == blind
    assert is_equal[0]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_sampled_rollouts_equal_the_packed_forward_of_what_they_sampled(layout):
    """Two slots, one of which begins two calls later; one policy samples, the other executes what
    nobody chose; the logits of every decision are those of one packed tree."""
    (model, builder), _ = small(SPACE, layout=layout, attention="sdpa")
    policy = VLAPolicy(model, builder, temperature=2.0, seed=5)
    begins, texts = (0, 2), ("go to the door and wait", "stop")
    live: list[list[torch.Tensor]] = [[], []]
    chosen: list[list[tuple[int, ...]]] = [[], []]
    executed: list[list[tuple[int, ...]]] = [[], []]
    for call in range(8):
        observations = {}
        for slot, begin in enumerate(begins):
            if (t := call - begin) == 0:
                policy.reset(slot, texts[slot], name=str(slot))
            if t > 0 and layout.history == "summary":
                policy.note_summary(slot, t, summary_at(layout, t))
            if t >= 0:
                seen = {"front": image(100 * slot + t)}
                observations[slot] = Observation(HERE, seen, {}, {})
        for slot, action in policy.act(observations).items():
            done = SPACE.primitives(action, embodiment())
            if slot == 1 and len(chosen[1]) % 2:
                policy.note_executed(slot, done := (TURN_LEFT, MOVE_FORWARD))
            executed[slot].append(done)
            chosen[slot].append(policy.last_tokens[slot])
            live[slot].append(policy.last_logits[slot])
    assert len({tokens for tokens in chosen[0]}) > 2, "the policy sampled"
    for slot, text in enumerate(texts):
        frames = [image(100 * slot + t) for t in range(len(chosen[slot]))]
        packed = packed_logits(model, builder, text, frames, chosen[slot], executed[slot])
        for a, b in zip(live[slot], packed, strict=True):
            assert a.shape == b.shape
            assert float((a - b).norm() / b.norm()) < 1e-5  # float32, sums in another order


def packed_logits(
    model: VLA,
    builder: PromptBuilder,
    text: str,
    frames: list[np.ndarray],
    chosen: list[tuple[int, ...]],
    executed: list[tuple[int, ...]],
) -> list[torch.Tensor]:
    """Logits at every chosen token, from the paths `context_of` each step + what was chosen."""
    layout = builder.layout
    steps = []
    for t, done in enumerate(executed):
        full, pooled = builder.observation([t], HERE, HERE)
        ids = done if len(done) == SPACE.max_length or done == (0,) else (*done, 4)
        steps.append(StepTokens(full, pooled, text_segment(ids)))
    paths = []
    for t, tokens in enumerate(chosen):
        given = {s: builder.summary(said) for s in range(t + 1) if (said := summary_at(layout, s))}
        context = context_of(builder.root(), builder.instruction(text), steps, layout, t, given)
        paths.append(Path((*context, text_segment(tokens, is_supervised=True))))
    tree = PrefixTree.from_paths(paths)
    packed = pack([tree])
    with torch.no_grad():
        pixels = torch.from_numpy(np.stack(frames))
        logits = model(packed, pixels, backend(model.attention_name).plan(packed))
    return [logits[rows] for rows in label_rows(tree, paths)]


def test_windows_go_on_where_a_full_history_runs_out_of_positions():
    space = WaypointSpace()
    for layout, is_endless in (
        (Layout("window", "visible", window=4), True),
        (Layout("uniform", "visible", uniform=4), True),
        (Layout("full", "visible"), False),
    ):
        (model, builder), _ = small(space, layout=layout)
        model.backbone.max_positions = 64
        policy = VLAPolicy(model, builder)
        policy.reset(0, "go")
        num_decisions = 0
        while num_decisions < 40 and policy.has_room(0):
            decide(policy, 0, num_decisions, image(num_decisions))
            num_decisions += 1
        assert (num_decisions == 40) == is_endless, layout.name
        assert num_decisions > 4
