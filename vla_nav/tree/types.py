"""Segments and paths: the flat training samples that a prefix tree computes at once.

A path is the definition; a tree is only a cheaper way to compute the same thing.

    path     = segment | segment | ...                  root to leaf, one flat training sample
    segment  = token_ids   [ 5  9  7  7  7  3 ]         vocabulary ids (vision: the placeholder id)
               frame_index [-1 -1  0  0  0 -1 ]         -1 = text, else the frame the token shows
               patch_index [-1 -1  0  1  2 -1 ]         which token of that frame

               log_probs   [ .  .  .  .  . -.4]        . = absent, else log pi(token) when sampled

Two text tokens are equal when their ids are, and their behaviour log-probabilities (both absent, or
equal to the bit: a token sampled twice is one token only if one policy call gave both). Two vision
tokens are equal when frame and patch are (their placeholder ids say nothing). One int64 key per
token says all of it, see `token_keys`.

Axis legend: n tokens of a segment or path.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
Float32Array = npt.NDArray[np.float32]


class MergeKeys(NamedTuple):
    """keys (n,) int64, the first of them (0 where n = 0), and n: Python numbers, as merging reads
    them once per segment and path."""

    keys: IntArray
    first: int
    length: int


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A run of tokens, all supervised or none: the unit that prompt builders cache and share.

    token_ids (n,) int64; frame_index (n,) int32, -1 = text; patch_index (n,) int32, ignored at
    text. log_probs (n,) float32, <= 0: log-probability of each text token under the policy that
    sampled it (NaN = absent, as everywhere without the array). Segments compare by identity, so
    sharing the object makes merging cheap; equal tokens in different objects merge all the same.
    Never change the arrays of a segment in use. Raises `ValueError` for arrays of unequal shape,
    or log-probabilities that are positive, infinite or given for vision tokens.
    """

    token_ids: IntArray
    frame_index: Int32Array
    patch_index: Int32Array
    is_supervised: bool = False
    log_probs: Float32Array | None = None
    _merge: list[MergeKeys] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        shape = self.token_ids.shape
        if len(shape) != 1 or self.frame_index.shape != shape or self.patch_index.shape != shape:
            raise ValueError(
                "a segment needs three arrays of one shape (n,), got "
                f"{shape}, {self.frame_index.shape}, {self.patch_index.shape}"
            )
        if self.log_probs is not None:
            _check_log_probs(self.log_probs, self.token_ids, self.frame_index)

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def keys(self) -> IntArray:
        """(n,) int64 merge keys."""
        return self.merge_keys.keys

    @property
    def merge_keys(self) -> MergeKeys:
        """What merging reads of this segment, computed once."""
        if not self._merge:
            keys = token_keys(self.token_ids, self.frame_index, self.patch_index, self.log_probs)
            self._merge.append(MergeKeys(keys, int(keys[0]) if len(keys) else 0, len(keys)))
        return self._merge[0]


def text_segment(
    token_ids: npt.ArrayLike,
    *,
    is_supervised: bool = False,
    log_probs: npt.ArrayLike | None = None,
) -> Segment:
    """A segment of text (or action, pose, special) tokens; log_probs where they were sampled."""
    ids = np.ascontiguousarray(token_ids, dtype=np.int64)
    minus_one = np.full(len(ids), -1, dtype=np.int32)
    sampled = None if log_probs is None else np.ascontiguousarray(log_probs, dtype=np.float32)
    return Segment(ids, minus_one, minus_one, is_supervised, sampled)


def frame_segment(placeholder_id: int, frame: int, num_tokens: int, *, first: int = 0) -> Segment:
    """A segment of one frame's tokens: patches first .. first + num_tokens - 1 of frame `frame`."""
    return Segment(
        np.full(num_tokens, placeholder_id, dtype=np.int64),
        np.full(num_tokens, frame, dtype=np.int32),
        np.arange(first, first + num_tokens, dtype=np.int32),
    )


def concatenate(*segments: Segment) -> Segment:
    """One segment of all tokens; every part must carry the same supervision."""
    if len({segment.is_supervised for segment in segments}) != 1:
        raise ValueError("only segments of one supervision can be concatenated")
    return Segment(
        np.concatenate([segment.token_ids for segment in segments]),
        np.concatenate([segment.frame_index for segment in segments]),
        np.concatenate([segment.patch_index for segment in segments]),
        segments[0].is_supervised,
        joined_log_probs(segments),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Trunk:
    """A beginning that several paths share, as a linked list: `parent` first, then `segment`.

    Equal to writing the segments into every path, but the paths of an episode of S steps then
    take O(S) instead of O(S^2) segments. Sharing is by object identity.
    """

    parent: Trunk | None
    segment: Segment


@dataclass(frozen=True, slots=True, eq=False)
class Path:
    """One flat training sample: the trunk's segments (if any), then `segments`.

    `coefficient` multiplies the loss of every token that this path supervises: the plain weight of
    supervised learning, KL and entropy. `advantage` is A of policy-gradient training, whose terms
    are weighted by coefficient * A. Use `all_segments` or `tokens` to read a path; `segments` alone
    leaves the trunk out. Raises `ValueError` unless both are finite.
    """

    segments: tuple[Segment, ...]
    coefficient: float = 1.0
    trunk: Trunk | None = None
    advantage: float | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.coefficient):
            raise ValueError(f"path coefficient must be finite, got {self.coefficient}")
        if self.advantage is not None and not math.isfinite(self.advantage):
            raise ValueError(f"path advantage must be finite, got {self.advantage}")

    @property
    def all_segments(self) -> tuple[Segment, ...]:
        """Every segment from the root to the leaf."""
        return (*reversed([trunk.segment for trunk in trunks_of(self)]), *self.segments)

    def tokens(self) -> PathTokens:
        """The path as flat arrays."""
        segments = self.all_segments
        if not segments:
            empty = np.empty(0, dtype=np.int32)
            return PathTokens(np.empty(0, dtype=np.int64), empty, empty, empty.astype(bool), None)
        return PathTokens(
            np.concatenate([segment.token_ids for segment in segments]),
            np.concatenate([segment.frame_index for segment in segments]),
            np.concatenate([segment.patch_index for segment in segments]),
            np.repeat([segment.is_supervised for segment in segments], list(map(len, segments))),
            joined_log_probs(segments),
        )


class PathTokens(NamedTuple):
    """A flat path: token_ids (n,) int64, frame_index and patch_index (n,) int32, is_supervised (n,)
    bool, log_probs (n,) float32 (NaN where absent) or None where no token has one."""

    token_ids: IntArray
    frame_index: Int32Array
    patch_index: Int32Array
    is_supervised: BoolArray
    log_probs: Float32Array | None


def trunks_of(path: Path) -> Iterator[Trunk]:
    """The links of a path's trunk, last first."""
    trunk = path.trunk
    while trunk is not None:
        yield trunk
        trunk = trunk.parent


def token_keys(
    token_ids: IntArray,
    frame_index: Int32Array,
    patch_index: Int32Array,
    log_probs: Float32Array | None = None,
) -> IntArray:
    """One int64 per token, equal exactly when two tokens are. Shapes (n,) -> (n,).

        vision                    -1 - (frame * 2^32 + patch)       < 0
        text                      id                                0 .. 2^31 - 1
        text with log-probability (bits + 1) * 2^32 + id            >= 2^32

    bits: the 31 low bits of the float32 (its sign says nothing: log-probabilities are <= 0).
    Raises `ValueError` for a negative id or a frame_index below -1: other tokens have these keys.
    """
    if len(token_ids) and (token_ids.min() < 0 or frame_index.min() < -1):
        raise ValueError(
            f"token ids are >= 0 and frame_index >= -1, got {token_ids.min()}, {frame_index.min()}"
        )
    keys = token_ids
    if log_probs is not None:
        bits = (np.abs(log_probs).view(np.int32)).astype(np.int64)
        keys = np.where(np.isnan(log_probs), keys, ((bits + 1) << 32) | keys)
    if len(frame_index) == 0 or frame_index.max() < 0:
        return keys
    vision = -1 - ((frame_index.astype(np.int64) << 32) + patch_index)
    return np.where(frame_index < 0, keys, vision)


def _check_log_probs(log_probs: Float32Array, token_ids: IntArray, frame_index: Int32Array) -> None:
    """Raise `ValueError` unless they can be part of a token's merge key."""
    if log_probs.shape != token_ids.shape or log_probs.dtype != np.float32:
        raise ValueError(
            f"log_probs must be float32 {token_ids.shape}, got {log_probs.dtype} {log_probs.shape}"
        )
    is_given = ~np.isnan(log_probs)
    wrong = is_given & ((log_probs > 0) | np.isinf(log_probs))
    if wrong.any():
        raise ValueError(
            f"a log-probability must be finite and at most 0, got {log_probs[wrong][0]}"
        )
    if (is_given & (frame_index >= 0)).any():
        raise ValueError("a vision token was not sampled: it has no log-probability (give NaN)")
    if is_given.any() and int(token_ids[is_given].max()) >= 2**31:
        raise ValueError(f"a sampled token id must be below 2^31, got {token_ids.max()}")


def joined_log_probs(segments: Sequence[Segment]) -> Float32Array | None:
    """(n,) log-probabilities of the segments one behind the other; None where none has any."""
    if all(segment.log_probs is None for segment in segments):
        return None
    return np.concatenate(
        [
            np.full(len(segment), np.nan, np.float32)
            if segment.log_probs is None
            else segment.log_probs
            for segment in segments
        ]
    )
