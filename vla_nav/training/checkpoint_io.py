"""Lightning's checkpoints as folders: `trainer.strategy.checkpoint_io = CheckpointFolders()`.

    trainer.save_checkpoint(step_folder(checkpoints, 120))      rank 0 writes
    trainer.fit(..., ckpt_path=step_folder(checkpoints, 120))   every rank reads

The format is `vla_nav.training.checkpoint_folder`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO

from vla_nav.files import remove_folder
from vla_nav.training.checkpoint_folder import read_checkpoint, write_checkpoint


class CheckpointFolders(CheckpointIO):
    """Reads and writes checkpoint folders.

    verified: a checkpoint whose digests were compared when it was chosen, so that it is not read
    twice; any other is verified when it is loaded.
    """

    def __init__(self, verified: str | Path | None = None) -> None:
        self.verified = None if verified is None else Path(verified)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Write `checkpoint` as the folder `path`."""
        assert storage_options is None, storage_options
        write_checkpoint(checkpoint, path)

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """The checkpoint of the folder `path`, on the CPU. Raises `UserError` if it is damaged."""
        return read_checkpoint(path, is_verified=Path(path) == self.verified)

    def remove_checkpoint(self, path: str | Path) -> None:
        """Delete the folder `path`."""
        remove_folder(path)
