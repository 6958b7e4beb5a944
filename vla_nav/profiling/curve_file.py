"""The file that curves of several runs come together in, and their pictures beside it.

    {facts..., options, differences: {"tree - flat": ...}, curves: {"tree": [loss, ...], ...}}

Sides may be trained by several calls, and by several machines whose files are read first; all of
them must have trained with the same options, kernels and kind of device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vla_nav.errors import UserError
from vla_nav.files import write_json
from vla_nav.profiling.bench_rows import read_table
from vla_nav.profiling.curves import differences, draw_curves

SAME = ("size", "tree", "steps", "episodes", "learning_rate", "budget", "smaller_budget")
SAME += ("attention", "compile", "device")  # a kernel that rounds otherwise is no other curve
_PAIRS = (("tree", "flat"), ("flat, smaller", "flat"), ("tree", "flat, smaller"))


class CurveFile:
    """Curves by side. facts: with `options`, of which SAME must agree with those of the files that
    are read: `path`, where it exists, and `read`. Raises `UserError` where they do not."""

    def __init__(
        self, path: str | Path, facts: Mapping[str, Any], *, steps: int, read: Sequence[str] = ()
    ) -> None:
        self.path, self.facts, self.steps = Path(path), dict(facts), steps
        self.curves: dict[str, list[float]] = {}
        for name in read:
            if not Path(name).exists():
                raise UserError(f"read={name}: there is no such file; give one that was written")
            self._take(Path(name))
        if self.path.exists():
            self._take(self.path)

    def is_done(self, side: str) -> bool:
        """Whether the side's curve is there whole."""
        return len(self.curves.get(side, ())) == self.steps

    def put(self, side: str, losses: Sequence[float]) -> None:
        """The side's curve as far as it is; the file is whole afterwards. `UserError` for a loss
        that is no number: the curve so far is kept."""
        bad = next((n for n, loss in enumerate(losses) if not math.isfinite(loss)), None)
        if bad is not None:
            raise UserError(
                f"{side}: the loss of step {bad + 1} is {losses[bad]}; give a smaller learning_rate"
            )
        self.curves[side] = list(losses)
        self.write()

    def write(self) -> None:
        """All curves and their differences."""
        value = {**self.facts, "differences": self.compared(), "curves": self.curves}
        write_json(self.path, value)

    def compared(self) -> dict[str, dict[str, float]]:
        """Differences of the sides that are done."""
        return {
            f"{a} - {b}": differences(self.curves[a], self.curves[b])._asdict()
            for a, b in _PAIRS
            if self.is_done(a) and self.is_done(b)
        }

    def draw(self, title: str) -> None:
        """The sides that are done, as .png and .svg beside the file."""
        done = {side: curve for side, curve in self.curves.items() if self.is_done(side)}
        draw_curves(done, title, [str(self.path.with_suffix(end)) for end in (".png", ".svg")])

    def _take(self, path: Path) -> None:
        found = read_table(path, "options", "curves")
        for key, theirs, mine in (
            *((key, found["options"].get(key), self.facts["options"][key]) for key in SAME),
            ("device", found.get("device"), self.facts.get("device")),  # the GPU's name
        ):
            if theirs != mine:
                raise UserError(
                    f"{path}: its {key} is {theirs}, not {mine}; give another output, or the same "
                    "options on the same kind of device"
                )
        self.curves.update(found["curves"])
