"""The steps of a profile in Lightning's loop: which are timed bare, which with boundaries.

    warm-up | bare | profiled | bare | profiled | traced         one fit, one loader, real batches

Blocks of steps begin and end with the device idle; inside a block nothing waits that does not wait
in training. Bare and profiled blocks take turns, so that what drifts (clocks, caches, lengths)
falls on both, and their difference is what profiling costs. Lightning tells its profiler when it
fetches a batch, moves it, runs a step or a callback: these are the boundaries outside the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch.profilers import Profiler

from vla_nav.errors import require_count
from vla_nav.profiling.regions import (
    AVERAGE,
    BACKWARD,
    COMMUNICATION,
    DATA,
    HEAD,
    OPTIMISER,
    OTHER,
    TRANSFER,
    Label,
    Mark,
    Recorder,
)
from vla_nav.training.step_backward import GRADIENTS_OVER_RANKS

WARMUP, BARE, PROFILED, TRACED = "warm-up", "bare", "profiled", "traced"
_TURNS = 4  # bare and profiled


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """How many optimiser steps: before anything is timed, timed with boundaries (and as many
    without), and written into the trace (0: none). html: with a page of pictures."""

    warmup_steps: int = 5
    steps: int = 12
    trace_steps: int = 1
    html: bool = True

    def __post_init__(self) -> None:
        require_count("profile.warmup_steps", self.warmup_steps)
        require_count("profile.steps", self.steps)
        require_count("profile.trace_steps", self.trace_steps, least=0)

    @property
    def blocks(self) -> tuple[tuple[str, int], ...]:
        """Kinds and numbers of steps, in order."""
        num_turns = min(_TURNS, self.steps)
        sizes = [(self.steps + turn) // num_turns for turn in range(num_turns)]
        turns = [(kind, size) for size in sizes for kind in (BARE, PROFILED)]
        all_blocks = [(WARMUP, self.warmup_steps), *turns, (TRACED, self.trace_steps)]
        return tuple((kind, num) for kind, num in all_blocks if num)

    @property
    def num_steps(self) -> int:
        """Optimiser steps in all."""
        return sum(num for _, num in self.blocks)


@dataclass(frozen=True, slots=True)
class Block:
    """Steps first .. first + num - 1: their time by the clock outside, the marks of profiled and
    traced ones, and the largest number of bytes that the device had allocated (0 on a CPU)."""

    kind: str
    first: int
    num: int
    wall_s: float
    marks: Mapping[int, Sequence[Mark]]
    peak_bytes: int

    @property
    def steps(self) -> range:
        """The numbers of its steps."""
        return range(self.first, self.first + self.num)


class StepObserver(Profiler):
    """Lightning's profiler of such a run; `blocks` are those that are done.

    on_trace: makes the context of the traced block (torch's profiler); entered with the device
    idle, left after the block's last step.
    """

    def __init__(
        self,
        settings: ProfileSettings,
        recorder: Recorder,
        *,
        num_ranks: int = 1,
        on_trace: Callable[[], Any] | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__()
        self.blocks: list[Block] = []
        self._recorder, self._on_trace, self._progress = recorder, on_trace, progress
        self._num_ranks = num_ranks
        self._planned = list(settings.blocks)
        self._num_done = 0  # steps
        self._open: tuple[str, int, int, int] | None = None  # kind, first, num, start
        self._trace: Any = None

    def blocks_of(self, kind: str) -> list[Block]:
        """The blocks of a kind, in order."""
        return [block for block in self.blocks if block.kind == kind]

    def start(self, action_name: str) -> None:
        """An action of Lightning's begins."""
        recorder = self._recorder
        if action_name.endswith(".train_dataloader_next"):
            self._turn()
            recorder.mark(Label(DATA))
        elif action_name.endswith(".batch_to_device"):
            recorder.mark(Label(TRANSFER))
        elif action_name == "run_training_batch":
            # The denominators of all ranks come before the first forward.
            recorder.mark(Label(COMMUNICATION if self._num_ranks > 1 else OTHER))
        elif action_name.endswith(".on_after_backward"):
            recorder.mark(Label(OPTIMISER))  # the norm of the gradients
        elif action_name == GRADIENTS_OVER_RANKS:
            recorder.mark(Label(COMMUNICATION))
        elif action_name == "optimizer_step":
            recorder.mark(Label(OPTIMISER))
        elif action_name.endswith(".on_train_batch_end") and "WeightAverage" in action_name:
            recorder.mark(Label(AVERAGE))

    def stop(self, action_name: str) -> None:
        """An action of Lightning's has ended."""
        recorder = self._recorder
        if action_name.endswith((".train_dataloader_next", ".batch_to_device")):
            recorder.mark(Label(OTHER))
        elif action_name.endswith(".on_before_backward") and "[LightningModule]" in action_name:
            recorder.mark(Label(HEAD, BACKWARD))
        elif action_name == GRADIENTS_OVER_RANKS:
            recorder.mark(Label(OPTIMISER))
        elif action_name == "run_training_batch":
            recorder.mark(Label(OTHER))
            self._num_done += 1
        elif action_name.endswith(".on_train_batch_end"):
            recorder.mark(Label(OTHER))
            if action_name.startswith("[LightningModule]"):
                self._end_of_run()

    def _turn(self) -> None:
        """Between steps: close the block that is full, open the next."""
        if self._open is not None and self._num_done < self._open[1] + self._open[2]:
            return
        if self._open is None and self._num_done > 0:
            return
        self._close()
        if self._planned:
            kind, num = self._planned.pop(0)
            self._begin(kind, num)

    def _end_of_run(self) -> None:
        """The last block has no fetch behind it."""
        if not self._planned and self._open and self._num_done == self._open[1] + self._open[2]:
            self._close()

    def _begin(self, kind: str, num: int) -> None:
        if kind == TRACED and self._on_trace is not None:
            self._trace = self._on_trace()
            self._trace.__enter__()
        if self._recorder.is_cuda:
            torch.cuda.synchronize(self._recorder.device)
            torch.cuda.reset_peak_memory_stats(self._recorder.device)
        self._open = kind, self._num_done, num, time.perf_counter_ns()
        if kind in (PROFILED, TRACED):
            self._recorder.start()

    def _close(self) -> None:
        if self._open is None:
            return
        kind, first, num, start_ns = self._open
        self._open = None
        marks = self._recorder.stop() if self._recorder.is_on else {}
        peak = 0
        if self._recorder.is_cuda:
            torch.cuda.synchronize(self._recorder.device)
            peak = torch.cuda.max_memory_allocated(self._recorder.device)
        wall_s = (time.perf_counter_ns() - start_ns) / 1e9
        if self._trace is not None:
            self._trace.__exit__(None, None, None)
            self._trace = None
        self.blocks.append(Block(kind, first, num, wall_s, marks, peak))
        if self._progress is not None:
            self._progress(f"{kind}: {num} steps, {1e3 * wall_s / num:.1f} ms each")
