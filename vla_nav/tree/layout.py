"""How the paths of an episode are laid out: which steps a step sees, and in which order.

    history      what step t sees of the steps before it       (frame t itself: at full token count)
      full       every frame, at full token count
      pooled     every frame, at pooled token count
      window     the last `window` frames, t included, at full token count
      uniform    at most `uniform` frames spread evenly over 0..t, both included, at full count
      summary    the newest given summary that leaves at least `summary_keep` frames, then these
    actions      hidden: past actions are nobody's context
                 visible: a seen step's frame is followed by what was executed there
    instruction  first: before the frames
                 last: after them, so that instructions share the frames

Sizes that the history does not use are ignored. What exactly a step sees: `vla_nav.tree.contexts`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import product

from vla_nav.errors import UserError, unknown_name

HISTORIES = ("full", "pooled", "window", "uniform", "summary")
ACTIONS = ("hidden", "visible")
INSTRUCTIONS = ("first", "last")
SUPERVISION = ("own", "all")


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout's names and sizes, as in conf/tree.

    window, uniform: frames seen, the current one included; at least 1 and 2. summary_every: only
    summaries of steps that it divides are used (1: all). summary_keep: frames that a summary must
    leave, the current one included; at least 1. Raises `UserError` for any other value.
    """

    history: str = "full"
    actions: str = "hidden"
    instruction: str = "first"
    window: int = 8
    uniform: int = 8
    summary_every: int = 1
    summary_keep: int = 8

    def __post_init__(self) -> None:
        for name, allowed in (
            ("history", HISTORIES),
            ("actions", ACTIONS),
            ("instruction", INSTRUCTIONS),
        ):
            if getattr(self, name) not in allowed:
                raise unknown_name(f"tree.{name}", str(getattr(self, name)), allowed)
        for name, least in (
            ("window", 1),
            ("uniform", 2),
            ("summary_every", 1),
            ("summary_keep", 1),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise UserError(f"tree.{name}={value}: allowed: whole numbers from {least} on")

    @property
    def name(self) -> str:
        """A short name: `window(8)-hidden-first`."""
        size = {
            "window": f"({self.window})",
            "uniform": f"({self.uniform})",
            "summary": f"({self.summary_every},{self.summary_keep})",
        }.get(self.history, "")
        return f"{self.history}{size}-{self.actions}-{self.instruction}"


LAYOUT_KEYS = tuple(field.name for field in fields(Layout))


def every_layout(
    *, window: int = 8, uniform: int = 8, summary_every: int = 1, summary_keep: int = 8
) -> tuple[Layout, ...]:
    """Every history x actions x instruction, histories slowest."""
    return tuple(
        Layout(history, actions, instruction, window, uniform, summary_every, summary_keep)
        for history, actions, instruction in product(HISTORIES, ACTIONS, INSTRUCTIONS)
    )
