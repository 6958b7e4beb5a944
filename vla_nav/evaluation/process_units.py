"""Work in units spread over processes: a few in flight, results as they come, nothing left behind.

    units (made as they are asked for)   u0 u1 u2 u3 ...
    in flight, at most 2 a process          [u1 u2 u3 u4]     -> results, first finished first

A worker ends with its parent, even with one that is killed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import connection, get_context, parent_process
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vla_nav.errors import UserError

Unit = TypeVar("Unit")
Result = TypeVar("Result")


def run_units(
    work: Callable[[Unit], Result], units: Iterable[Unit], num_workers: int, *, where: str
) -> Iterator[Result]:
    """`work(unit)` of every unit, in any order. num_workers: 0 works in this process.

    work: picklable. where: what is made, for the error when a process is killed.
    """
    if num_workers == 0:
        yield from map(work, units)
        return
    units = iter(units)
    first = list(islice(units, 2 * num_workers))
    if not first:
        return
    with ProcessPoolExecutor(
        min(num_workers, len(first)),
        mp_context=get_context("spawn"),
        initializer=_end_with_parent,
    ) as pool:
        try:
            pending: set[Future[Result]] = {pool.submit(work, unit) for unit in first}
            while pending:
                finished, pending = wait(pending, return_when=FIRST_COMPLETED)
                pending |= {pool.submit(work, unit) for unit in islice(units, len(finished))}
                yield from (future.result() for future in finished)
        except BrokenProcessPool:
            raise UserError(
                f"{where}: a worker process was killed (out of memory?); start again to go on "
                "from what is written, with fewer num_workers"
            ) from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def progress_bar() -> Progress:
    """A bar on stderr with how many of how many, and the time left."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


def _end_with_parent() -> None:
    """A worker must not outlive a killed main process."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
