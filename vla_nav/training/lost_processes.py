"""A process of a run that is gone, told by those that are left: one line, an exit code, no wait.

another rank    its connections close, so the collective that the others are in, or come to,
                fails at once (gloo; NCCL between nodes). Within a node NCCL waits, and the
                launcher that sees the dead process ends the others.
a loader        torch's loader notices that a worker is no more
"""

from __future__ import annotations

import re

from torch import distributed

from vla_nav.errors import StoppedError

_LOST_RANK = re.compile(
    r"gloo/transport|Connection (closed|reset) by (peer|remote)|NCCL.*(remote|aborted|timed? ?out)",
    re.IGNORECASE | re.DOTALL,
)
_LOST_WORKER = re.compile(r"DataLoader worker \(pid[^)]*\)[^:.]*(: \w+)?")


def of_lost_process(error: RuntimeError, newest: str | None) -> StoppedError | None:
    """What to say about an error of torch where a process of the run is gone; None for others.

    newest: the newest checkpoint.
    """
    kept = (
        "no checkpoint was written yet" if newest is None else f"the newest checkpoint is {newest}"
    )
    rest = f"{kept}; the same command continues"
    text = str(error)
    if found := _LOST_WORKER.search(text):
        return StoppedError(
            f"{found[0]}: a loader worker is gone (out of memory? then take fewer num_workers); "
            f"{rest}",
            code=1,
        )
    is_of_ranks = isinstance(error, distributed.DistError) or type(error) is RuntimeError
    if is_of_ranks and _LOST_RANK.search(text):
        return StoppedError(
            f"another rank of this run has ended (what it said stands in its own output); {rest}",
            code=1,
        )
    return None
