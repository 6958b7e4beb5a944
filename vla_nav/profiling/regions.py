"""Where a step's time goes: a recorder of boundaries between regions, and what they add up to.

    marks      | data wait | to device | vision fwd | ... | head bwd | ... | optimiser |
    time       t0          t1          t2                                              tn

A mark says which region begins; the region before it ends there. So every instant of a timeline
belongs to exactly one region, and nothing is counted twice. On a CPU a mark is a reading of the
process's clock. On CUDA it is also an event in the current stream: nothing waits inside a step, the
times are read afterwards, and a region lasts as long as the device needs for it, idle time
included.

Packs that are computed by several threads at once (CPU) have a timeline each. An instant in which
k threads work counts 1/k to each of their regions; the thread that waits for them counts nothing:

    main      other . . . . . . . . . . . . . . | optimiser
    thread 1        vision | attention          |              [attention 1/2 | vision 1/2 ...]
    thread 2        vision | vision | attention |
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

DATA, TRANSFER = "data wait", "host to device"
VISION, PROJECTOR, EMBEDDINGS = "vision encoder", "projector", "embeddings"
ATTENTION, REST, HEAD = "backbone attention", "backbone rest", "LM head and loss"
RELAY, COMMUNICATION = "gateway relay", "communication"
OPTIMISER, AVERAGE, OTHER = "optimiser", "weight average", "other"
REGIONS = (
    *(DATA, TRANSFER, VISION, PROJECTOR, EMBEDDINGS, ATTENTION, REST, HEAD),
    *(RELAY, COMMUNICATION, OPTIMISER, AVERAGE, OTHER),
)
FORWARD, BACKWARD, RECOMPUTE, STEP = "forward", "backward", "recompute", "step"
PHASES = (FORWARD, BACKWARD, RECOMPUTE, STEP)


class Label(NamedTuple):
    """A region in one pass. phase: recompute is a forward that is done again (activation
    checkpointing) or in advance (keys that partitions hand on); step is neither."""

    region: str
    phase: str = STEP


IDLE = Label("", STEP)  # a thread that does nothing, or waits for others


class Mark(NamedTuple):
    """`label` begins at `host_ns` of `time.perf_counter_ns`, on CUDA at `event`."""

    label: Label
    host_ns: int
    event: Any


class _State:
    """Where a timeline is: its label, the phase of a forward pass, the last backward pass seen."""

    def __init__(self) -> None:
        self.label, self.phase, self.graph_task = IDLE, FORWARD, -1


class _ThreadState(_State, threading.local):
    """The same, one for each thread."""


class Recorder:
    """Takes marks while it is on. Off, a mark costs one comparison.

    On CUDA there is one timeline, whichever thread marks (the backward pass has its own thread, but
    the main one waits for it). state: of the calling thread's timeline. on_mark: called after each
    mark.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.is_cuda = self.device.type == "cuda"
        self.is_on = False
        self.on_mark: Callable[[Mark], None] | None = None
        self._main = threading.get_ident()
        self.state: Any = _State() if self.is_cuda else _ThreadState()
        self._marks: dict[int, list[Mark]] = defaultdict(list)

    @property
    def is_worker(self) -> bool:
        """Whether the calling thread has a timeline beside the main one."""
        return not self.is_cuda and threading.get_ident() != self._main

    def start(self) -> None:
        """Forget all marks and begin with `other`."""
        self._marks = defaultdict(list)
        self.is_on = True
        self.mark(Label(OTHER))

    def stop(self) -> dict[int, list[Mark]]:
        """The marks of every thread, the main one's under key 0, up to now."""
        self.mark(IDLE)
        self.is_on = False
        main = 0 if self.is_cuda else self._main
        return {0 if key == main else key: marks for key, marks in self._marks.items()}

    def mark(self, label: Label) -> None:
        """`label` begins now."""
        if not self.is_on:
            return
        event = None
        if self.is_cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        key = 0 if self.is_cuda else threading.get_ident()
        made = Mark(label, time.perf_counter_ns(), event)
        self._marks[key].append(made)
        self.state.label = label
        if self.on_mark is not None:
            self.on_mark(made)

    @contextmanager
    def region(self, label: Label) -> Iterator[None]:
        """`label` inside, what was before again behind it."""
        before = self.state.label
        self.mark(label)
        try:
            yield
        finally:
            self.mark(before)

    @contextmanager
    def recompute(self) -> Iterator[None]:
        """A layer's forward again, inside the backward pass."""
        if not self.is_on:
            yield
            return
        before = self.state.phase
        self.state.phase = RECOMPUTE
        try:
            with self.region(Label(REST, RECOMPUTE)):
                yield
        finally:
            self.state.phase = before


def durations(marks: Mapping[int, Sequence[Mark]]) -> dict[Label, float]:
    """Seconds of every label; they add up to the time between the main timeline's ends.

    marks: by timeline, 0 the main one (see `Recorder.stop`). CUDA events must have happened.

    >>> marks = [Mark(Label(DATA), 0, None), Mark(Label(OPTIMISER), 10**9, None)]
    >>> durations({0: [*marks, Mark(IDLE, 3 * 10**9, None)]})
    {Label(region='data wait', phase='step'): 1.0, Label(region='optimiser', phase='step'): 2.0}
    """
    total: dict[Label, float] = defaultdict(float)
    if any(mark.event is not None for mark in marks[0]):
        for first, second in zip(marks[0], marks[0][1:], strict=False):
            total[first.label] += first.event.elapsed_time(second.event) / 1e3
    else:
        for span in shared_spans(marks):
            for label in span.labels:
                total[label] += (span.stop_ns - span.start_ns) / len(span.labels) / 1e9
    total.pop(IDLE, None)
    return dict(total)


class Span(NamedTuple):
    """From start to stop, these labels (one per working thread)."""

    start_ns: int
    stop_ns: int
    labels: tuple[Label, ...]


def shared_spans(marks: Mapping[int, Sequence[Mark]]) -> Iterator[Span]:
    """The main timeline cut wherever any thread's label changes."""
    begin, end = marks[0][0].host_ns, marks[0][-1].host_ns
    changes = sorted(
        (mark.host_ns, key, number, mark.label)
        for key, some in marks.items()
        for number, mark in enumerate(some)
    )
    now: dict[int, Label] = {}
    before = begin
    for at, key, _, label in changes:
        if begin < at <= end and at > before:
            workers = tuple(now[k] for k in sorted(now) if k != 0 and now[k] != IDLE)
            yield Span(before, at, workers or (now.get(0, IDLE),))
        before = max(before, at)
        now[key] = label
