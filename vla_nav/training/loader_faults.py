"""Faults of the data that a loader worker meets, raised in the training process as they are.

torch hands a worker's exception on as a new one whose text is the worker's traceback. A fault of a
file is one line for the user, so the worker hands it over in the place of the batch:

    worker    dataset[i] raises UserError  ->  the error is the item
    training  the item is an error         ->  it is raised
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset

from vla_nav.errors import UserError


class FaultsAsItems(Dataset[Any]):
    """A dataset whose faults (`UserError`, `OSError`) are items."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        try:
            return self._dataset[index]
        except (UserError, OSError) as error:
            return error


def require_item(item: Any) -> Any:
    """The item, unless it is a fault, which is raised."""
    if isinstance(item, UserError | OSError):
        raise item
    return item
