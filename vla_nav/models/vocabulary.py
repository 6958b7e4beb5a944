"""One id space for everything a sequence holds: the space's action tokens come first.

    id     0 ... A-1 | A ... A+S-1 | ...           | num_own ... num_tokens-1
           actions   | specials    | pose tokens   | text (the tokenizer's id + num_own)
           `-------------- own tokens ------------'

Actions first, because a target id is then the same number under both heads: column k of the
action head is token k, and column k of the full head is token k. Own tokens have their own small
embedding table, so a pretrained text table is never resized.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Vocabulary:
    """Sizes of the blocks; `specials` names the special tokens, in id order."""

    num_actions: int
    specials: tuple[str, ...]
    num_pose: int
    num_text: int
    _special_ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ids = {name: self.num_actions + i for i, name in enumerate(self.specials)}
        assert len(ids) == len(self.specials), "special tokens need distinct names"
        object.__setattr__(self, "_special_ids", ids)

    @property
    def num_own(self) -> int:
        """Action, special and pose tokens."""
        return self.num_actions + len(self.specials) + self.num_pose

    @property
    def num_tokens(self) -> int:
        """All ids."""
        return self.num_own + self.num_text

    def special(self, name: str) -> int:
        """The id of a special token. Raises `KeyError` for an unknown name."""
        return self._special_ids[name]

    def pose(self, index: int) -> int:
        """The id of pose token `index`."""
        assert 0 <= index < self.num_pose, index
        return self.num_actions + len(self.specials) + index

    def text(self, ids: Sequence[int]) -> tuple[int, ...]:
        """The tokenizer's ids as ids of this space."""
        return tuple(self.num_own + i for i in ids)

    def action_of(self, token_id: int) -> int:
        """The local action id of any id; -1 (outside every grammar) for the others."""
        return token_id if 0 <= token_id < self.num_actions else -1
