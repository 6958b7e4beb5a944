"""The policy: observations to actions for many slots at once, each slot's context in a cache.

    observation --look--> features --+
                                     v
    context of step t (slots.py) --keep the common prefix, append the rest (incremental.py)-->
    hidden --token by token (decoding.py)--> action

Any layout: what a slot sees is `context_of`, and the logits are those of the packed training
forward. Tokens that stay a prefix are computed once per episode; a rewritten context (window,
uniform, a new summary) is computed from where it differs. exec_t is what the action's primitives
amount to (`ActionSpace.executed`), exactly as in training; `note_executed` corrects it where the
caller executed something else. History `summary` needs `note_summary`.

Decoding is under `ActionSpace.allowed` unless `is_constrained` is False; then a sequence outside
the grammar gives the declared fallback and counts in `num_unparsed`.

Axes: B active slots, P tokens of a frame, D_v feature size, V outputs.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from vla_nav.actions.types import Action
from vla_nav.episodes.types import Pose, Step
from vla_nav.errors import UserError
from vla_nav.models.decoding import Decoder
from vla_nav.models.incremental import IncrementalModel
from vla_nav.models.prompt import PromptBuilder, frame_array
from vla_nav.models.slots import Rest, Slot, rest_of, shown
from vla_nav.models.vla import VLA
from vla_nav.seeding import generator
from vla_nav.simulators.protocol import Observation
from vla_nav.tree import StepTokens
from vla_nav.tree.types import text_segment
from vla_nav.vision.frames import as_rgb, resize_frames

_NOTHING = text_segment(())


class VLAPolicy:
    """Greedy at `temperature` 0, else sampled from each slot's own generator.

    last_logits: slot -> (num predicted tokens, V) of the last `act`, float32 on the CPU.
    last_tokens: slot -> the chosen local action ids. num_unparsed, num_decoded: counts since the
    construction.
    """

    def __init__(
        self,
        model: VLA,
        prompt: PromptBuilder,
        *,
        temperature: float = 0.0,
        is_constrained: bool = True,
        seed: int = 0,
    ) -> None:
        self.model, self.prompt, self.space, self.seed = model, prompt, prompt.action_space, seed
        self.num_unparsed = self.num_decoded = 0
        self.last_logits: dict[Hashable, Tensor] = {}
        self.last_tokens: dict[Hashable, tuple[int, ...]] = {}
        self._decoder = Decoder(
            self.space, prompt.vocabulary, temperature=temperature, is_constrained=is_constrained
        )
        self._incremental = IncrementalModel(model)
        self._slots: dict[Hashable, Slot] = {}

    def reset(self, slot: Hashable, instruction: str, *, name: str = "") -> None:
        """Begin an episode in `slot`. name: seeds the slot's sampling (the episode's key)."""
        row = self._slots[slot].row if slot in self._slots else len(self._slots)
        self._incremental.clear(row)
        self._slots[slot] = Slot(
            row,
            self.prompt.root(),
            self.prompt.instruction(instruction),
            generator(self.seed, "policy", name),
        )

    def has_room(self, slot: Hashable) -> bool:
        """Whether another decision of an episode that has begun fits the backbone's positions."""
        state = self._state(slot)
        if not state.steps:
            return True  # a root that is too long by itself is refused by `act`
        # Every step's frame takes the same number of tokens, so the last stands for the next.
        context = state.context(self.prompt.layout, state.steps[-1])
        num_tokens = sum(len(segment) for segment in context) + self.space.max_length
        return num_tokens <= self.model.backbone.max_positions

    def note_executed(self, slot: Hashable, primitives: tuple[int, ...]) -> None:
        """What was executed after the last `act`, where it is not that action's primitives."""
        state = self._state(slot)
        if not state.steps:
            raise ValueError(f"slot {slot!r}: note_executed before the episode's first act")
        if self.prompt.layout.actions == "visible":
            step = Step(state.poses[-1], {}, tuple(primitives), ())
            action = self.space.executed(step)
            state.note_executed(self.prompt.action(action, is_supervised=False))

    def note_summary(self, slot: Hashable, step: int, text: str | None) -> None:
        """`text` may stand for steps 0 .. step-1 from the next `act` on (history `summary`).

        None: there is none for this step, and that is known. Where a summary could stand, `act`
        refuses a slot about which nothing was ever said.
        """
        state = self._state(slot)
        if self.prompt.layout.history != "summary":
            raise UserError(
                f"a summary was given to a policy of tree.history={self.prompt.layout.history}, "
                "which uses none; train with tree.history=summary"
            )
        if not 1 <= step <= len(state.steps):
            raise UserError(
                f"slot {slot!r}: a summary of step {step}, allowed: 1 to {len(state.steps)}, the "
                "number of steps decided; it stands for the steps before `step`"
            )
        state.is_summarised = True
        if text is not None:
            state.summaries[step] = self.prompt.summary(text)

    @torch.inference_mode()
    def act(
        self,
        observations: Mapping[Hashable, Observation],
        *,
        forced: Mapping[Hashable, tuple[int, ...]] | None = None,
    ) -> dict[Hashable, Action]:
        """One action per slot. forced: slot -> local action ids to take instead of choosing.

        Raises `UserError` when a slot's context exceeds the backbone's positions, or lacks a
        summary; no slot has then moved.
        """
        if not observations:
            return {}
        slots = sorted(observations, key=lambda slot: self._state(slot).row)
        states = [self._slots[slot] for slot in slots]
        was_training = self.model.training
        self.model.eval()
        try:
            chosen = self._act(slots, states, observations, forced or {})
        finally:
            self.model.train(was_training)
        return {
            slot: self._finish(slot, tokens, observations[slot])
            for slot, tokens in zip(slots, chosen, strict=True)
        }

    def _act(
        self,
        slots: Sequence[Hashable],
        states: Sequence[Slot],
        observations: Mapping[Hashable, Observation],
        forced: Mapping[Hashable, tuple[int, ...]],
    ) -> list[tuple[int, ...]]:
        """Local action ids per slot; slots and cache then hold the new context and these."""
        seen = [observations[slot] for slot in slots]
        steps = [self._step(state, o.pose) for state, o in zip(states, seen, strict=True)]
        self._require_summaries(slots, states)
        contexts = [
            state.context(self.prompt.layout, step)
            for state, step in zip(states, steps, strict=True)
        ]
        rests = [
            rest_of(context, state.held) for context, state in zip(contexts, states, strict=True)
        ]
        self._require_positions(slots, rests)
        features = self._look(seen)  # (B, streams, P, D_v)
        for index, (state, step) in enumerate(zip(states, steps, strict=True)):
            state.add(step, seen[index].pose, features[index])
            state.held = contexts[index]
            self._incremental.keep(state.row, rests[index].num_kept)
        rows = [state.row for state in states]
        hidden = self._incremental.append(rows, *shown(states, rests))
        decoded = self._decoder.decode(
            hidden,
            [state.rng for state in states],
            [forced.get(slot) for slot in slots],
            logits_of=self.model.logits,
            follow=lambda active, ids: self._incremental.append_own(rows, active, ids),
        )
        for slot, state, chosen in zip(slots, states, decoded, strict=True):
            state.held = (*state.held, text_segment(chosen.tokens[:-1]))  # the last was not read
            state.drop_features(self.prompt.layout)
            self.last_tokens[slot], self.last_logits[slot] = chosen
        return [chosen.tokens for chosen in decoded]

    def _step(self, state: Slot, pose: Pose) -> StepTokens:
        """The next step's tokens; its frames are the next rows of the slot's frame table."""
        num_streams = len(self.prompt.streams)
        first = len(state.steps) * num_streams
        full, pooled = self.prompt.observation(
            range(first, first + num_streams), pose, state.start or pose
        )
        return StepTokens(full, pooled, executed=_NOTHING)

    def _require_summaries(self, slots: Sequence[Hashable], states: Sequence[Slot]) -> None:
        layout = self.prompt.layout
        if layout.history != "summary":
            return
        for slot, state in zip(slots, states, strict=True):
            t = len(state.steps)
            if t + 1 - layout.summary_keep >= layout.summary_every and not state.is_summarised:
                raise UserError(
                    f"slot {slot!r}: tree.history=summary needs summaries, and none was given up "
                    f"to step {t}; call note_summary(slot, step, text) before act, or train with "
                    "another tree.history"
                )

    def _require_positions(self, slots: Sequence[Hashable], rests: Sequence[Rest]) -> None:
        limit = self.model.backbone.max_positions
        for slot, (num_kept, new) in zip(slots, rests, strict=True):
            num_tokens = num_kept + len(new.token_ids) + self.space.max_length
            if num_tokens > limit:
                raise UserError(
                    f"slot {slot!r}: a context of {num_tokens} tokens exceeds the backbone's "
                    f"{limit} positions; raise models.backbone.options.max_position_embeddings, "
                    "or train with tree.history=pooled, window or uniform"
                )

    def _look(self, observations: Sequence[Observation]) -> Tensor:
        """Features of every slot's streams: (B, streams, P, D_v)."""
        encoder = self.model.encoder
        if encoder is None:
            raise UserError("the policy needs the model's encoder to see; none was given")
        by_stream = []
        for stream in self.prompt.streams:
            images = [as_rgb(frame_array(o.rgb, o.depth, stream)) for o in observations]
            pixels = torch.from_numpy(np.stack(images)).to(self._incremental.device)
            by_stream.append(resize_frames(pixels, encoder.image_size))
        features = encoder.encode(torch.stack(by_stream, dim=1).flatten(0, 1))
        return features.unflatten(0, (len(observations), len(self.prompt.streams)))

    def _finish(self, slot: Hashable, tokens: tuple[int, ...], observation: Observation) -> Action:
        """Decode, count, and note what is executed unless the caller says otherwise."""
        action, is_parsed = self.space.decode(tokens)
        self.num_decoded += 1
        self.num_unparsed += not is_parsed
        if self.prompt.layout.actions == "visible":
            depth = dict(observation.depth) or None
            self.note_executed(slot, self.space.primitives(action, self.prompt.embodiment, depth))
        return action

    def _state(self, slot: Hashable) -> Slot:
        if slot not in self._slots:
            raise ValueError(f"slot {slot!r}: no episode has begun; call reset first")
        return self._slots[slot]
