"""Given summaries of an episode's earlier steps, for the history policy `summary`.

    metadata = {"summaries": {"16": "left the kitchen, went down the corridor", "32": ...}}

The text of step s stands for steps 0 .. s-1; `vla_nav.tree.contexts` says at which steps it does.
Who writes summaries (a captioner, the policy itself) is not settled here; they are data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vla_nav.episodes.types import Episode
from vla_nav.errors import UserError
from vla_nav.tree import Layout

KEY = "summaries"


def summaries_of(episode: Episode, layout: Layout) -> dict[int, str]:
    """step -> text of an episode's summaries; empty unless the layout uses them."""
    if layout.history != "summary":
        return {}
    name = "/".join(episode.key)
    return parse_summaries(episode.metadata.get(KEY), len(episode.steps), layout, name)


def parse_summaries(value: Any, num_steps: int, layout: Layout, name: str) -> dict[int, str]:
    """step -> text of the metadata entry `value` of the episode `name`.

    Raises `UserError` where it is no mapping from steps to texts, or where an episode that is long
    enough for a summary has none.
    """
    where = f"episode {name}: metadata '{KEY}'"
    if value is None:
        value = {}
    if not isinstance(value, Mapping):
        raise UserError(f"{where} is {value!r}; give a mapping from steps to texts")
    found: dict[int, str] = {}
    for key, text in value.items():
        step = int(key) if str(key).isdecimal() else 0
        if step < 1 or not isinstance(text, str):
            raise UserError(
                f"{where} has {key!r}: {text!r}; allowed: steps from 1 on, each with a text"
            )
        found[step] = text
    if not found and num_steps - layout.summary_keep >= layout.summary_every:
        raise UserError(
            f"{where} has none for {num_steps} steps and tree.history=summary needs one; write "
            "them into the data, or choose another tree"
        )
    return found
