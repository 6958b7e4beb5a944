"""The policy: observations to actions for many slots at once, on a cache of each slot's trunk.

    layout (tree/history.py)     appended to the trunk at step t      leaf, dropped after the action
    hidden  / full               full_t                               action tokens
    hidden  / pooled             pooled_{t-1}                         full_t, action tokens
    visible / full               exec_{t-1}, full_t                   action tokens
    visible / pooled             pooled_{t-1}, exec_{t-1}             full_t, action tokens
                                 (the root comes first at t = 0)

So every token is computed once per episode except pooled frames' full tokens, and the logits are
those of the packed training forward. exec_t is what the action's primitives amount to
(`ActionSpace.executed`), exactly as in training; `note_executed` corrects it where the caller
executed something else.

Decoding goes token by token for all slots together, under `ActionSpace.allowed` unless
`is_constrained` is False; then a sequence outside the grammar gives the declared fallback and
counts in `num_unparsed`.

Axes: B active slots, N new tokens of a slot, E hidden size, V outputs.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from vla_nav.actions.types import Action
from vla_nav.episodes.types import Pose, Step
from vla_nav.errors import UserError
from vla_nav.models.cache import TrunkCache
from vla_nav.models.prompt import PromptBuilder, frame_array
from vla_nav.models.vla import VLA
from vla_nav.seeding import generator
from vla_nav.simulators.protocol import Observation
from vla_nav.tree import Segment
from vla_nav.vision.frames import as_rgb, resize_frames

_PREFILL_TOKENS = 512  # new tokens of one slot per forward call: bounds memory on a long root


@dataclass
class _Slot:
    """One episode in progress."""

    row: int
    instruction: str
    rng: np.random.Generator
    start: Pose | None = None
    pooled: Segment | None = None  # the last frame as history, not yet in the trunk
    seen: Tensor | None = None  # (streams, P, D_v) its features
    executed: tuple[int, ...] | None = None  # the last primitives, not yet in the trunk


@dataclass
class _Part:
    """New tokens of one slot: segments with the row of `features` that their frame 0 is."""

    trunk: list[tuple[Segment, int]] = field(default_factory=list)
    leaf: list[tuple[Segment, int]] = field(default_factory=list)


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
        if temperature < 0:
            raise UserError(f"evaluation.temperature: got {temperature}, must be >= 0")
        self.model, self.prompt, self.space = model, prompt, prompt.action_space
        self.temperature, self.is_constrained, self.seed = temperature, is_constrained, seed
        self.num_unparsed = self.num_decoded = 0
        self.last_logits: dict[Hashable, Tensor] = {}
        self.last_tokens: dict[Hashable, tuple[int, ...]] = {}
        self._cache = TrunkCache(model.backbone.num_layers)
        self._slots: dict[Hashable, _Slot] = {}

    def reset(self, slot: Hashable, instruction: str, *, name: str = "") -> None:
        """Begin an episode in `slot`. name: seeds the slot's sampling (the episode's key)."""
        row = self._slots[slot].row if slot in self._slots else len(self._slots)
        self._cache.clear(row)
        self._slots[slot] = _Slot(row, instruction, generator(self.seed, "policy", name))

    def has_room(self, slot: Hashable) -> bool:
        """Whether another decision of an episode that has begun fits the backbone's positions."""
        state = self._slots[slot]
        if state.start is None:
            return True  # a root that is too long by itself is refused by `act`
        streams = range(len(self.prompt.streams))
        full, pooled = self.prompt.observation(streams, state.start, state.start)
        num_tokens = len(full) + len(pooled) + 2 * self.space.max_length
        return self._cache.length[state.row] + num_tokens <= self.model.backbone.max_positions

    def note_executed(self, slot: Hashable, primitives: tuple[int, ...]) -> None:
        """What was executed after the last `act`, where it is not that action's primitives."""
        self._slots[slot].executed = tuple(primitives)

    @torch.inference_mode()
    def act(
        self,
        observations: Mapping[Hashable, Observation],
        *,
        forced: Mapping[Hashable, tuple[int, ...]] | None = None,
    ) -> dict[Hashable, Action]:
        """One action per slot. forced: slot -> local action ids to take instead of choosing.

        Raises `UserError` when a slot's context exceeds the backbone's positions.
        """
        if not observations:
            return {}
        slots = sorted(observations, key=lambda slot: self._slots[slot].row)
        states = [self._slots[slot] for slot in slots]
        was_training = self.model.training
        self.model.eval()
        try:
            current = self._look([observations[slot] for slot in slots])  # (B * streams, P, D_v)
            parts, features = self._new_parts(
                states, [observations[s].pose for s in slots], current
            )
            hidden, leaves = self._extend(states, parts, features)
            chosen = self._decode(slots, states, hidden, leaves, forced or {})
        finally:
            self.model.train(was_training)
        return {
            slot: self._finish(slot, state, tokens, observations[slot])
            for slot, state, tokens in zip(slots, states, chosen, strict=True)
        }

    def _look(self, observations: Sequence[Observation]) -> Tensor:
        """Features of every slot's streams, slot by slot: (B * streams, P, D_v)."""
        encoder = self.model.encoder
        if encoder is None:
            raise UserError("the policy needs the model's encoder to see; none was given")
        by_stream = []
        for stream in self.prompt.streams:
            images = [as_rgb(frame_array(o.rgb, o.depth, stream)) for o in observations]
            pixels = torch.from_numpy(np.stack(images)).to(self._device)
            by_stream.append(resize_frames(pixels, encoder.image_size))
        return encoder.encode(torch.stack(by_stream, dim=1).flatten(0, 1))

    def _new_parts(
        self, states: Sequence[_Slot], poses: Sequence[Pose], current: Tensor
    ) -> tuple[list[_Part], Tensor]:
        """What each slot appends, and the features that the parts' rows point into."""
        num_streams, layout = len(self.prompt.streams), self.prompt.layout
        tables, num_rows = [current], len(current)
        parts = []
        for index, (state, pose) in enumerate(zip(states, poses, strict=True)):
            part = _Part()
            if state.start is None:
                state.start = pose
                part.trunk.append((self.prompt.root(), 0))
                part.trunk.append((self.prompt.instruction(state.instruction), 0))
            elif layout.history == "pooled":
                assert state.pooled is not None
                assert state.seen is not None
                part.trunk.append((state.pooled, num_rows))
                tables.append(state.seen)
                num_rows += num_streams
            if layout.actions == "visible" and state.executed is not None:
                action = self.space.executed(Step(pose, {}, state.executed, ()))
                part.trunk.append((self.prompt.action(action, is_supervised=False), 0))
            full, state.pooled = self.prompt.observation(range(num_streams), pose, state.start)
            row = index * num_streams
            (part.leaf if layout.history == "pooled" else part.trunk).append((full, row))
            if layout.history == "pooled":
                state.seen = current[row : row + num_streams]
            parts.append(part)
        return parts, torch.cat(tables) if len(tables) > 1 else current

    def _extend(
        self, states: Sequence[_Slot], parts: Sequence[_Part], features: Tensor
    ) -> tuple[Tensor, np.ndarray]:
        """Run the new tokens, commit the trunk's: (hidden of the last (B, E), leaf sizes (B,))."""
        flat = [[*part.trunk, *part.leaf] for part in parts]
        counts = np.array([sum(len(s) for s, _ in segments) for segments in flat])
        token_ids = np.concatenate([s.token_ids for segments in flat for s, _ in segments])
        patches = np.concatenate([s.patch_index for segments in flat for s, _ in segments])
        frames = np.concatenate(
            [
                np.where(s.frame_index < 0, -1, s.frame_index + row)
                for segments in flat
                for s, row in segments
            ]
        )
        embedded = self.model.embed(
            *(torch.from_numpy(a).to(self._device) for a in (token_ids, frames, patches)), features
        )  # (sum of counts, E)
        starts = np.array([self._cache.length[state.row] for state in states])
        self._check_length(int((starts + counts).max()) + self.space.max_length)
        first = np.cumsum(counts) - counts
        last = torch.empty(
            len(states), embedded.shape[1], dtype=embedded.dtype, device=self._device
        )
        for begin in range(0, int(counts.max()), _PREFILL_TOKENS):
            now = np.clip(counts - begin, 0, _PREFILL_TOKENS)
            part = np.flatnonzero(now)
            hidden = self._forward(
                [states[b].row for b in part],
                starts[part] + begin,
                now[part],
                embedded,
                first[part] + begin,
            )
            ends = np.flatnonzero((counts[part] - begin) <= _PREFILL_TOKENS)
            last[part[ends]] = hidden[ends, now[part][ends] - 1]
        for state, part in zip(states, parts, strict=True):
            self._cache.commit(state.row, sum(len(s) for s, _ in part.trunk))
        return last, np.array([sum(len(s) for s, _ in part.leaf) for part in parts])

    def _forward(
        self,
        rows: list[int],
        starts: np.ndarray,
        counts: np.ndarray,
        embedded: Tensor,
        first: np.ndarray,
    ) -> Tensor:
        """Hidden (B, N, E) of counts[b] tokens per row, read from `embedded` at first[b]."""
        offsets = np.arange(int(counts.max()))
        source = np.minimum(first[:, None] + offsets, len(embedded) - 1)  # padding reads anything
        positions = torch.from_numpy(starts[:, None] + np.minimum(offsets, counts[:, None] - 1))
        attend = self._cache.attend(rows, starts, counts)
        batch = embedded[torch.from_numpy(source).to(self._device)]
        return self.model.decode(batch, positions.to(self._device), attend)

    def _decode(
        self,
        slots: Sequence[Hashable],
        states: Sequence[_Slot],
        hidden: Tensor,
        leaves: np.ndarray,
        forced: Mapping[Hashable, tuple[int, ...]],
    ) -> list[tuple[int, ...]]:
        """Local action ids per slot, chosen token by token; fills `last_logits`."""
        chosen: list[tuple[int, ...]] = [() for _ in slots]
        seen: list[list[Tensor]] = [[] for _ in slots]
        active = np.arange(len(slots))
        while len(active):
            logits = self.model.logits(hidden).float().cpu()  # (active, V)
            for b, row in zip(active, logits, strict=True):
                seen[b].append(row)
                target = forced.get(slots[b])
                if target is not None:
                    token = target[len(chosen[b])]
                else:
                    token = self._choose(row.numpy(), chosen[b], states[b].rng)
                chosen[b] = (*chosen[b], token)
            active = np.array([b for b in active if self._is_open(chosen[b], forced.get(slots[b]))])
            if len(active):
                hidden = self._next_hidden(states, chosen, active, leaves)
        for slot, tokens, rows in zip(slots, chosen, seen, strict=True):
            self.last_logits[slot] = torch.stack(rows)
            self.last_tokens[slot] = tokens
        return chosen

    def _next_hidden(
        self,
        states: Sequence[_Slot],
        chosen: Sequence[tuple[int, ...]],
        active: np.ndarray,
        leaves: np.ndarray,
    ) -> Tensor:
        """Hidden (active, E) after each active slot's last chosen token, a leaf token."""
        # Rows that have finished ride along while they are few: leaving them out copies the cache.
        among = np.arange(len(states)) if 2 * len(active) > len(states) else active
        counts = np.isin(among, active).astype(np.int64)
        places = np.array(
            [self._cache.length[states[b].row] + leaves[b] + len(chosen[b]) - 1 for b in among]
        )
        ids = torch.tensor([max(chosen[b][-1], 0) for b in among], device=self._device)
        embedded = self.model.own_embedding(ids)
        rows = [states[b].row for b in among]
        hidden = self._forward(rows, places, counts, embedded, np.arange(len(among)))[:, 0]
        return hidden[torch.from_numpy(np.flatnonzero(counts))]

    def _choose(self, logits: np.ndarray, prefix: tuple[int, ...], rng: np.random.Generator) -> int:
        """A local action id, or -1 for a token that is no action (unconstrained only)."""
        if self.is_constrained:
            logits = np.where(self.space.allowed(prefix), logits[: self.space.num_tokens], -np.inf)
        if self.temperature == 0:
            token = int(logits.argmax())
        else:
            scaled = (logits.astype(np.float64) - logits.max()) / self.temperature
            weights = np.exp(scaled)
            token = int(
                np.searchsorted(weights.cumsum(), rng.random() * weights.sum(), side="right")
            )
        return self.prompt.vocabulary.action_of(token)

    def _is_open(self, tokens: tuple[int, ...], forced: tuple[int, ...] | None) -> bool:
        """Whether another token follows."""
        if forced is not None:
            return len(tokens) < len(forced)
        if len(tokens) >= self.space.max_length or tokens[-1] < 0:
            return False
        is_inside = bool(self.space.allowed(tokens[:-1])[tokens[-1]])
        return is_inside and bool(self.space.allowed(tokens).any())

    def _finish(
        self, slot: Hashable, state: _Slot, tokens: tuple[int, ...], observation: Observation
    ) -> Action:
        """Decode, count, and remember what the next step's context needs."""
        action, is_parsed = self.space.decode(tokens)
        self.num_decoded += 1
        self.num_unparsed += not is_parsed
        if self.prompt.layout.actions == "visible":
            depth = dict(observation.depth) or None
            state.executed = self.space.primitives(action, self.prompt.embodiment, depth)
        return action

    def _check_length(self, num_tokens: int) -> None:
        limit = self.model.backbone.max_positions
        if num_tokens > limit:
            raise UserError(
                f"a context of {num_tokens} tokens exceeds the backbone's {limit} positions; raise "
                "models.backbone.options.max_position_embeddings, or use tree.history=pooled"
            )

    @property
    def _device(self) -> torch.device:
        return self.model.own_embedding.weight.device
