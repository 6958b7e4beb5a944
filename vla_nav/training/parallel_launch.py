"""The processes of a run on several devices of one machine, where no launcher has started them.

    vla-nav train trainer=ddp trainer.devices=2
      `-- this process      watches; ends the others when one ends; its exit code is theirs
            |-- rank 0      the same command, speaks to the terminal
            `-- rank 1      its errors are told when it is the one that failed

The engine is PyTorch's (torch.distributed.launcher), with a meeting place on the loopback device.
Signals are passed on to the ranks, which end as a single process does: a checkpoint where the run
listens (`callbacks.checkpoint.signals`), the signal's own effect where it does not. Under torchrun,
srun or Lightning's own environment nothing is started here.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from lightning.pytorch import Trainer

from vla_nav.errors import UserError

_MEETING_PLACE = "127.0.0.1:0"  # a free port
_LAST_CHARACTERS = 4000  # of what a failed rank wrote
_KILLED = 128
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def num_to_start(trainer: Trainer) -> int:
    """Processes that the trainer needs and nobody has started; 0 where it has them.

    Raises `UserError` for several machines without a launcher.
    """
    place = getattr(trainer.strategy, "cluster_environment", None)
    is_alone = place is not None and not place.creates_processes_externally
    if not is_alone or trainer.world_size == 1:
        return 0
    if trainer.num_nodes > 1:
        raise UserError(
            f"trainer.num_nodes={trainer.num_nodes}: one process on one machine was started; start "
            f"the command on all of them with `srun --ntasks-per-node {trainer.num_devices}` or "
            f"`torchrun --nnodes {trainer.num_nodes} --nproc-per-node {trainer.num_devices}`"
        )
    return trainer.num_devices


def start_ranks(arguments: Sequence[str], num_ranks: int) -> int:
    """Run `python <arguments>` as `num_ranks` ranks of this machine; return the exit code: 0, that
    of the rank that failed first, or 128 and the number of the signal that ended the run."""
    from torch.distributed.elastic.multiprocessing.api import (
        DefaultLogsSpecs,
        Std,
    )
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # told below
    cores = os.cpu_count() or num_ranks
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // num_ranks)))
    with tempfile.TemporaryDirectory(prefix="vla_nav_ranks_") as logs:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=num_ranks,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint=_MEETING_PLACE,
            local_addr=_MEETING_PLACE.partition(":")[0],
            max_restarts=0,
            signals_to_handle="SIGQUIT",  # the others are passed on
            logs_specs=DefaultLogsSpecs(
                log_dir=logs, redirects={rank: Std.ERR for rank in range(1, num_ranks)}
            ),
        )
        with _passing_on():
            try:
                elastic_launch(config, sys.executable)(*arguments)
            except ChildFailedError as error:
                return _told(error.failures, Path(logs))
    return 0


@contextmanager
def _passing_on() -> Iterator[None]:
    """Pass signals on to the child processes; once they have ended, what handled a signal before
    (a launcher that puts its job back into the queue) has it. SIGTERM and Ctrl-C ask for no more
    than an end."""
    received: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        received.append(number)
        ranks = _children()
        if not ranks:  # not started yet
            raise SystemExit(_KILLED + number)
        for process in ranks:
            with suppress(ProcessLookupError):
                os.kill(process, number)

    earlier = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
        for number in received[:1]:
            handler = earlier[signal.Signals(number)]
            if number not in (signal.SIGTERM, signal.SIGINT) and callable(handler):
                handler(number, None)


def _children() -> list[int]:
    """Process ids of this thread's children."""
    path = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    return [int(word) for word in path.read_text(encoding="ascii").split()]


def _told(failures: Mapping[int, Any], logs: Path) -> int:
    """Say what rank 0 has not said; the exit code of the rank that failed first."""
    # The others were ended because of it, within the same second.
    own = {k: v for k, v in failures.items() if int(v.exitcode) != -signal.SIGTERM} or failures
    rank, first = min(own.items(), key=lambda item: (item[1].timestamp, item[0]))
    code = int(first.exitcode)
    if rank != 0 and 0 not in own:
        for path in sorted(logs.rglob(f"{rank}/stderr.log")):
            sys.stderr.write(path.read_text(encoding="utf-8", errors="replace")[-_LAST_CHARACTERS:])
    if code < 0:
        name = signal.Signals(-code).name
        print(
            f"rank {rank} was ended by {name}, and the others with it; the same command continues",
            file=sys.stderr,
        )
        return _KILLED - code
    return code
