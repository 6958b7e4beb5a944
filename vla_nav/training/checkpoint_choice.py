"""Which checkpoint a start continues from: the newest one, if it is what was written.

resume=newest         a damaged one is refused, the file named and the one before offered
resume=newest_whole   damaged ones are passed over, and put aside as damaged_step_...
"""

from __future__ import annotations

import os
from pathlib import Path

from vla_nav.errors import UserError, unknown_name
from vla_nav.training.checkpoint_folder import (
    DamagedCheckpointError,
    checkpoint_folders,
    step_of,
    verify_checkpoint,
)

RESUME = ("newest", "newest_whole")


def require_resume(resume: str) -> None:
    """Raise `UserError` for anything but a rule of this file."""
    if resume not in RESUME:
        raise unknown_name("resume", str(resume), RESUME)


def checkpoint_to_resume(
    checkpoints: str | Path, resume: str = "newest", *, is_writer: bool = True
) -> Path | None:
    """The verified checkpoint that a start continues from, or None where there is none at all.

    resume: newest (a damaged one is refused) | newest_whole (damaged ones are passed over, and
    kept under another name). is_writer: this process renames them (rank 0).
    Raises `UserError` when checkpoints are there and the one asked for is damaged.
    """
    require_resume(resume)
    damaged: list[tuple[Path, DamagedCheckpointError]] = []
    candidates = checkpoint_folders(checkpoints)
    for folder in candidates:
        try:
            verify_checkpoint(folder)
        except DamagedCheckpointError as error:
            if resume == "newest":
                raise UserError(f"{error}; {_remedy(candidates)}") from None
            damaged.append((folder, error))
            continue
        if is_writer:
            for path, _ in damaged:
                path.rename(path.with_name(f"damaged_{path.name}.{os.getpid()}"))
        return folder
    if damaged:
        raise UserError(
            f"{damaged[0][1]}, and so is every older checkpoint; overwrite=true trains from the "
            "start"
        )
    return None


def _remedy(candidates: list[Path]) -> str:
    """What to do about a damaged newest checkpoint."""
    for folder in candidates[1:]:
        try:
            verify_checkpoint(folder)
        except DamagedCheckpointError:
            continue
        return (
            f"restore it, or continue from {folder.name} with resume=newest_whole, which repeats "
            f"{step_of(candidates[0]) - step_of(folder)} steps"
        )
    return "no older checkpoint is whole: restore it, or train from the start with overwrite=true"
