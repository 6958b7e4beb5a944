"""Boundaries between the parts of a `VLA`, forward and backward, while its steps are profiled.

    forward    features > embed > projector > decode: rest > attention > rest ... > head and loss
    backward   head and loss > rest > attention > rest ... > embed > projector > embed > vision

Forward boundaries are calls: the model's own methods, wrapped on the instance and put back.
Backward boundaries are identities in the autograd graph: between two parts stands a function that
returns its inputs, and whose backward marks that the part before it (in forward order) begins. All
tensors of a boundary pass one such function, so it runs once everything behind it is done. That
holds under activation checkpointing (a recomputed layer is a pass of its own), in partitions, and
for several packs in threads.

A loss that is computed in chunks takes its gradients chunk by chunk in the forward pass: they count
there. So does the loss's backward pass in threads, which nobody announces.

Compiled layers call attention between two compiled halves, so it is split off as in others. Where
attention is called by code that is being traced, nothing is marked, and its time is the rest's.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from vla_nav.models.gateway import Gateway, GatewayStore
from vla_nav.models.vla import VLA
from vla_nav.profiling.regions import (
    ATTENTION,
    BACKWARD,
    COMMUNICATION,
    EMBEDDINGS,
    FORWARD,
    HEAD,
    IDLE,
    OTHER,
    PROJECTOR,
    RECOMPUTE,
    RELAY,
    REST,
    VISION,
    Label,
    Recorder,
)
from vla_nav.profiling.structure import nbytes

_CHECKPOINT = "_gradient_checkpointing_func"  # of transformers' layers


@contextmanager
def observed(model: VLA, recorder: Recorder, *, num_ranks: int = 1) -> Iterator[Observer]:
    """Inside, the model's passes mark their boundaries in `recorder` while it is on."""
    observer = Observer(model, recorder, num_ranks)
    wrapped = {
        name: getattr(observer, name)(getattr(model, name))
        for name in ("features", "embed", "hidden_states", "decode", "_attend")
    }
    own = {name: vars(model)[name] for name in wrapped if name in vars(model)}
    handles = observer.hooks()
    checkpointed = [
        layer for layer in model.backbone.modules() if getattr(layer, _CHECKPOINT, None) is not None
    ]
    stock = [getattr(layer, _CHECKPOINT) for layer in checkpointed]
    try:
        for name, function in wrapped.items():
            setattr(model, name, function)
        for layer, function in zip(checkpointed, stock, strict=True):
            recompute = functools.partial(function, context_fn=observer.recompute)
            setattr(layer, _CHECKPOINT, recompute)
        yield observer
    finally:
        for layer, function in zip(checkpointed, stock, strict=True):
            setattr(layer, _CHECKPOINT, function)
        for name in wrapped:
            delattr(model, name)
        for name, value in own.items():
            setattr(model, name, value)
        for handle in handles:
            handle.remove()


class _Boundary(torch.autograd.Function):
    """The same tensors; in the backward pass `label` begins here."""

    @staticmethod
    def forward(ctx: Any, observer: Observer, label: Label, *tensors: Tensor) -> Any:
        ctx.observer, ctx.label = observer, label
        ctx.set_materialize_grads(False)
        return tuple(x.view_as(x) for x in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        ctx.observer.begin_backward(ctx.label)
        return None, None, *gradients


class Observer:
    """What is wrapped around the methods of one model; every method takes what it stands for."""

    def __init__(self, model: VLA, recorder: Recorder, num_ranks: int) -> None:
        self.model, self.recorder, self.num_ranks = model, recorder, num_ranks
        self._has_gateway = False
        self._store: Callable[[], GatewayStore | None] = lambda: None

    def gateway_bytes(self) -> int:
        """Keys, values and their gradients that the current step's gateways hold."""
        store = self._store()
        return 0 if store is None else nbytes(list(vars(store).values()))

    def begin_backward(self, label: Label) -> None:
        """Mark `label`; at the first mark of a backward pass arrange for one at its end."""
        recorder = self.recorder
        if not recorder.is_on:
            return
        task = torch._C._current_graph_task_id()
        if task != recorder.state.graph_task and (recorder.is_worker or self.num_ranks > 1):
            end = IDLE if recorder.is_worker else Label(COMMUNICATION)
            torch.autograd.Variable._execution_engine.queue_callback(lambda: recorder.mark(end))
        recorder.state.graph_task = task
        recorder.mark(label)

    def recompute(self) -> tuple[Any, Any]:
        """Contexts of a checkpointed layer's forward and of its recomputation."""
        return nullcontext(), self.recorder.recompute()

    def hooks(self) -> list[Any]:
        """On the modules that `embed` calls."""
        model = self.model
        tables = [model.backbone.text_embedding, model.own_embedding, model.patch_embedding]
        return [
            model.projector.register_forward_pre_hook(self._before_projector),
            model.projector.register_forward_hook(self._behind_projector),
            *(table.register_forward_hook(self._behind_table) for table in tables),
        ]

    def features(self, original: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """Pixels are the encoder's; features pass."""

        def features(frames: Tensor) -> Tensor:
            if not self.recorder.is_on or frames.dtype != torch.uint8:
                return original(frames)
            with self.recorder.region(Label(VISION, self._phase())):
                rows = original(frames)
            return self._boundary(VISION, rows)

        return features

    def embed(self, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Tables and the projector, which has hooks of its own."""

        def embed(*arguments: Any, **keywords: Any) -> Tensor:
            if not self.recorder.is_on:
                return original(*arguments, **keywords)
            with self.recorder.region(Label(EMBEDDINGS, self._phase())):
                embeddings = original(*arguments, **keywords)
            return self._boundary(EMBEDDINGS, embeddings)

        return embed

    def hidden_states(self, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Tells the layers whether the pass has a gateway; a thread of its own begins here."""

        def hidden_states(*arguments: Any, **keywords: Any) -> Tensor:
            if self.recorder.state.label == IDLE:
                self.recorder.mark(Label(OTHER))
            given = (*arguments, *keywords.values())
            gateway = next((value for value in given if isinstance(value, Gateway)), None)
            self._has_gateway = gateway is not None
            if gateway is not None:
                self._store = weakref.ref(gateway.store)
            return original(*arguments, **keywords)

        return hidden_states

    def decode(self, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The layers; what follows is the head (or, without gradients, the gateways' store)."""

        def decode(
            embeddings: Tensor, position_ids: Tensor, attend: Any, recur: Any = None
        ) -> Tensor:
            if not self.recorder.is_on:
                return original(embeddings, position_ids, attend, recur)
            phase = self.recorder.state.phase = self._phase()
            if self._has_gateway:
                attend = self._between(attend, RELAY, REST)
            self.recorder.mark(Label(REST, phase))
            hidden = original(embeddings, position_ids, attend, recur)
            hidden = self._boundary(REST, hidden)
            self.recorder.mark(Label(HEAD if phase == FORWARD else RELAY, phase))
            return hidden

        return decode

    def _attend(self, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return self._between(original, ATTENTION, None)

    def _between(
        self, original: Callable[..., Tensor], region: str, outside: str | None
    ) -> Callable[..., Tensor]:
        """`original(q, k, v, ...)` as a region inside `outside` (None: inside a relay or none)."""

        def attend(q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> Tensor:
            if torch.compiler.is_compiling() or not self.recorder.is_on:
                return original(q, k, v, *arguments)
            behind = outside or (RELAY if self._has_gateway else REST)
            q, k, v = self._boundaries(behind, q, k, v)
            with self.recorder.region(Label(region, self.recorder.state.phase)):
                out = original(q, k, v, *arguments)
            return self._boundary(region, out)

        return attend

    def _phase(self) -> str:
        return FORWARD if torch.is_grad_enabled() else RECOMPUTE

    def _boundary(self, region: str, tensor: Tensor) -> Tensor:
        return self._boundaries(region, tensor)[0]

    def _boundaries(self, region: str, *tensors: Tensor) -> tuple[Tensor, ...]:
        if not self.recorder.is_on:
            return tensors
        found: tuple[Tensor, ...] = _Boundary.apply(self, Label(region, BACKWARD), *tensors)
        return found

    def _before_projector(self, module: nn.Module, arguments: tuple[Tensor]) -> Any:
        if not self.recorder.is_on:
            return None
        seen = self._boundary(EMBEDDINGS, arguments[0])
        self.recorder.mark(Label(PROJECTOR, self._phase()))
        return (seen,)

    def _behind_projector(self, module: nn.Module, arguments: Any, seen: Tensor) -> Tensor:
        if not self.recorder.is_on:
            return seen
        self.recorder.mark(Label(EMBEDDINGS, self._phase()))
        return self._boundary(PROJECTOR, seen)

    def _behind_table(self, module: nn.Module, arguments: Any, rows: Tensor) -> Tensor:
        return self._boundary(EMBEDDINGS, rows)
