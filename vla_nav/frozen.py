"""`@frozen`: an immutable dataclass with slots, also where Python has no slots for dataclasses.

A simulator worker may run on Python 3.9 (habitat-sim's stable packages), whose `dataclass` knows no
`slots`; there the class works the same and only takes more memory.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

if sys.version_info >= (3, 11):  # noqa: UP036 - workers run on 3.9, too
    from typing import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        """Only type checkers look at it."""
        return lambda decorator: decorator


@dataclass_transform(frozen_default=True)
def frozen(cls: type[T]) -> type[T]:
    """`@dataclass(frozen=True, slots=True)`, slots from Python 3.10 on."""
    if sys.version_info >= (3, 10):  # noqa: UP036
        return dataclass(frozen=True, slots=True)(cls)
    return dataclass(frozen=True)(cls)
