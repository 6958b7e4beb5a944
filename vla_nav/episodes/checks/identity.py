"""Checks of who an episode is: D401 to D411. Ids, splits, roles, languages, repeats, leaks.

Keys and contents are remembered as 64-bit digests, at most MAX_KEYS of each, so that memory stays
bounded however long the set is; beyond that D410 says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import xxhash

from vla_nav.episodes.checks.findings import Tally
from vla_nav.episodes.types import Episode

MAX_KEYS = 2_000_000
_MAX_NAMES = 10_000  # scenes, languages and roles remembered
_SCRIPTS = {  # first and last letter of the script that a language is written in
    "en": ("A", "\u024f"),
    "hi": ("\u0900", "\u097f"),
    "te": ("\u0c00", "\u0c7f"),
}


class IdentityCheck:
    """Ids, splits, roles, languages and repeats within one set, leaks into another."""

    def __init__(self, tally: Tally, split: str, *, max_keys: int = MAX_KEYS) -> None:
        self._tally, self._split, self._max_keys = tally, split, max_keys
        self._keys: set[int] = set()
        self._contents: set[int] = set()
        self.scenes: set[str] = set()
        self._languages: Counter[str] = Counter()
        self._roles: Counter[str] = Counter()
        self._num_empty = self._num_episodes = 0
        self._first_empty = ""

    def see(self, episode: Episode) -> None:
        """Look at one episode."""
        self._num_episodes += 1
        self._repeats(episode)
        info = episode.metadata.get("info")
        stated = info if isinstance(info, dict) else {}
        for key, own in (("split", episode.split), ("role", episode.role)):
            value = stated.get(key)
            if isinstance(value, str) and value != own:
                code = "D403" if key == "split" else "D404"
                self._tally.add(code, episode, f"info.{key}", f"'{value}', read as '{own}'")
        if episode.split != self._split:
            text = f"'{episode.split}', asked for was '{self._split}'"
            self._tally.add("D403", episode, "split", text)
        _remember(self._roles, episode.role)
        if len(self.scenes) < _MAX_NAMES:
            self.scenes.add(episode.scene_id)
        if not episode.instruction.strip():
            self._num_empty += 1
            self._first_empty = self._first_empty or episode.episode_id
        self._language(episode)

    def close(self) -> dict[str, Any]:
        """Findings over all episodes; facts for the report."""
        if 0 < self._num_empty < self._num_episodes:
            text = f"empty; the first is episode {self._first_empty}"
            self._tally.add_whole("D407", "instruction", text, count=self._num_empty)
        if len(self._roles) > 1:
            text = ", ".join(f"{n} '{role}'" for role, n in self._roles.most_common(5))
            self._tally.add_whole("D411", "role", text, count=self._num_episodes)
        if len(self._languages) > 1:
            text = ", ".join(f"{n} {tag}" for tag, n in self._languages.most_common(8))
            self._tally.add_whole("D406", "instruction.language", text, count=self._num_episodes)
        if len(self._keys) >= self._max_keys:
            self._tally.add_whole("D410", "episode_id", f"the first {self._max_keys}")
        return {"scenes": len(self.scenes), "languages": dict(self._languages)}

    def compare(self, other_split: str, episodes: Iterable[Episode]) -> None:
        """Look for this set's episodes and scenes in another split."""
        shared: Counter[str] = Counter()
        for episode in episodes:
            self._tally.next_episode()
            if content_digest(episode) in self._contents:
                text = f"the same start, goal and text as in '{self._split}'"
                self._tally.add("D408", episode, f"split {other_split}", text)
            if episode.scene_id and episode.scene_id in self.scenes:
                _remember(shared, episode.scene_id)
        is_unseen = ("unseen" in self._split) != ("unseen" in other_split)
        if shared and is_unseen:
            text = f"{len(shared)} scenes shared with '{other_split}': {sorted(shared)[:3]}"
            self._tally.add_whole("D409", "scene_id", text, count=shared.total())

    def _repeats(self, episode: Episode) -> None:
        if len(self._keys) >= self._max_keys:
            return
        key = xxhash.xxh3_64_intdigest("\x1f".join(episode.key).encode("utf-8", "replace"))
        if key in self._keys:
            self._tally.add("D401", episode, "episode_id", "occurs again")
            return
        self._keys.add(key)
        content = content_digest(episode)
        if content in self._contents:
            text = "the same start, goal, actions and text as an earlier episode"
            self._tally.add("D402", episode, "episode_id", text)
        self._contents.add(content)

    def _language(self, episode: Episode) -> None:
        about = episode.metadata.get("instruction")
        tag = about.get("language") if isinstance(about, dict) else None
        if not isinstance(tag, str) or not tag:
            return
        _remember(self._languages, tag)
        script = _SCRIPTS.get(tag.split("-")[0].lower())
        letters = [c for c in episode.instruction[:400] if c.isalpha()]
        if script is None or not letters:
            return
        inside = sum(script[0] <= c <= script[1] for c in letters)
        if 2 * inside < len(letters):
            text = f"'{tag}', text: {episode.instruction[:40]!r}"
            self._tally.add("D405", episode, "instruction.language", text)


def content_digest(episode: Episode) -> int:
    """64 bits of what an episode is apart from its id: scene, start, goal, text, actions."""
    goal = episode.goals[0].position if episode.goals else ()
    start = episode.start_pose
    parts = (
        episode.scene_id.rsplit("/", 1)[-1],
        [round(value, 3) for value in start.position],
        round(start.yaw_rad, 3) if start.yaw_rad == start.yaw_rad else None,
        [round(value, 3) for value in goal],
        episode.instruction.strip(),
        str(episode.metadata.get("object_category", "")),
        [step.executed for step in episode.steps],
    )
    return xxhash.xxh3_64_intdigest(repr(parts).encode("utf-8", "replace"))


def _remember(counts: Counter[str], name: str) -> None:
    if name in counts or len(counts) < _MAX_NAMES:
        counts[name] += 1
