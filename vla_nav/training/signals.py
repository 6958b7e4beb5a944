"""Signals that ask a run to end, and how the ranks of a run agree to obey one at the same step.

    a signal     -> a flag                        the handler does nothing else
    step s ends  -> the ranks' flags are combined while step s + 1 runs, on the CPU
    step s + 1 ends: every rank knows -> checkpoint, one line, exit code 128 + signal

A scheduler signals the ranks one after another, so a rank that stopped on its own would leave the
others waiting in a collective. The exchange runs over a gloo group of its own: no step waits for
the device because of it.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch
from torch import distributed

from vla_nav.errors import UserError, unknown_name

ALLOWED = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT", "SIGHUP")


def ignore_in_worker(worker: int) -> None:
    """For a loader worker: a scheduler signals every process of a job, and the run, which still
    needs its workers to come to the end of a step, ends them itself."""
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


class StopSignals:
    """Notes the first of some signals while it is installed."""

    def __init__(self, names: Sequence[str]) -> None:
        if isinstance(names, str) or not isinstance(names, Sequence):
            raise UserError(
                f"callbacks.checkpoint.signals={names}; a list is needed: [SIGTERM], or [] for none"
            )
        for name in names:
            if name not in ALLOWED:
                raise unknown_name("signal in callbacks.checkpoint.signals", str(name), ALLOWED)
        self.names = tuple(names)
        self.received: signal.Signals | None = None
        self._earlier: dict[signal.Signals, Any] = {}

    def install(self) -> None:
        """Take the signals over from whoever handled them. SIGTERM always: where nothing is to be
        done for it, it ends the process, and has Lightning start no exchange between ranks."""
        self._earlier[signal.SIGTERM] = signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for name in self.names:
            number = signal.Signals[name]
            handler = signal.signal(number, self._note)
            self._earlier.setdefault(number, handler)

    def restore(self) -> None:
        """Give them back."""
        for number, handler in self._earlier.items():
            if signal.getsignal(number) in (self._note, signal.SIG_DFL):
                signal.signal(number, handler)
        self._earlier = {}

    def pass_on(self) -> None:
        """Let whoever handled the received signal before have it now (a launcher that puts its job
        back into the queue). SIGTERM is not passed on: it asks for no more than an end."""
        earlier = self._earlier.get(self.received or signal.SIGTERM)
        if self.received not in (None, signal.SIGTERM) and callable(earlier):
            earlier(self.received, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number)


class RankFlags:
    """Numbers of every rank, combined to their maximum, one call late where there are several.

    rank 0  exchange([0, 0]) -> [0, 0]    exchange([0, 0]) -> [15, 0]
    rank 1  exchange([15, 0]) -> [0, 0]   exchange([15, 0]) -> [15, 0]
    """

    def __init__(self) -> None:
        self._group: Any = None
        self._pending: tuple[Any, torch.Tensor] | None = None
        if distributed.is_available() and distributed.is_initialized():
            self._group = distributed.new_group(backend="gloo")

    def exchange(self, values: Sequence[int]) -> list[int]:
        """Hand in this rank's values; get those of the call before (zeros in the first)."""
        if self._group is None:
            return list(values)
        found = [0] * len(values)
        if self._pending is not None:
            work, tensor = self._pending
            work.wait()
            found = tensor.tolist()
        tensor = torch.tensor(list(values))
        work = distributed.all_reduce(
            tensor, distributed.ReduceOp.MAX, group=self._group, async_op=True
        )
        self._pending = (work, tensor)
        return found
