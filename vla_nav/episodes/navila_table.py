"""Decisions of many videos, in any order, brought together on disk.

    file     914-3   7-0   914-0   7-1   914-0          ->   914: 0 (twice), 3     7: 0, 1

A private sqlite file that vanishes when it is closed; a cache of fixed size is in memory. One
episode is the decisions of one video under one instruction (Human's videos have several).
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

from vla_nav.errors import UserError

_CACHE_KIB = 64 * 1024


class Decision(NamedTuple):
    """One record. frames: the pictures up to now; rest: its keys without a field."""

    video: str
    instruction: str
    text: str
    step: int
    frames: list[str]
    rest: dict[str, Any]


class Decided(NamedTuple):
    """One decision of a trajectory: after `num_frames` pictures, the last of them `last_frame`."""

    text: str
    num_frames: int
    last_frame: str
    rest: dict[str, Any]


class Trajectory(NamedTuple):
    """The decisions of an episode in order. repeats: records of each; conflicts: [decision, text]
    of further actions for the same pictures; frames: the longest list of pictures."""

    episode_id: str
    video: str
    instruction: str
    frames: list[str]
    decisions: list[Decided]
    repeats: list[int]
    conflicts: list[list[Any]]


class DecisionTable:
    """Add decisions, then iterate over trajectories, by first appearance. A context manager."""

    def __init__(self) -> None:
        self._base = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for line in (
            "PRAGMA journal_mode = OFF",
            f"PRAGMA cache_size = -{_CACHE_KIB}",
            "CREATE TABLE episode (number INTEGER PRIMARY KEY, video TEXT, instruction TEXT, "
            "frames TEXT, num_frames INTEGER, UNIQUE (video, instruction))",
            "CREATE TABLE decision (episode INTEGER, num_frames INTEGER, step INTEGER, at INTEGER, "
            "text TEXT, last_frame TEXT, rest TEXT, count INTEGER, "
            "PRIMARY KEY (episode, num_frames, step, text)) WITHOUT ROWID",
            "BEGIN",  # one transaction: a statement each would sync each
        ):
            self._base.execute(line)
        self._count = 0

    def __enter__(self) -> DecisionTable:
        return self

    def __exit__(self, *_: object) -> None:
        self._base.close()

    def add(self, decision: Decision) -> None:
        """Raises `UserError` where the temporary file finds no room."""
        # JSON text throughout: it is ASCII, whatever half characters the data holds
        video, instruction, text = map(json.dumps, decision[:3])
        num_frames = len(decision.frames)
        try:
            row = self._base.execute(
                "SELECT number, num_frames FROM episode WHERE video = ? AND instruction = ?",
                (video, instruction),
            ).fetchone()
            if row is None:
                frames = json.dumps(decision.frames)
                number = self._base.execute(
                    "INSERT INTO episode (video, instruction, frames, num_frames) "
                    "VALUES (?, ?, ?, ?)",
                    (video, instruction, frames, num_frames),
                ).lastrowid
            else:
                number, longest = row
                if num_frames > longest:
                    self._base.execute(
                        "UPDATE episode SET frames = ?, num_frames = ? WHERE number = ?",
                        (json.dumps(decision.frames), num_frames, number),
                    )
            self._base.execute(
                "INSERT INTO decision VALUES (?, ?, ?, ?, ?, ?, ?, 1) "
                "ON CONFLICT DO UPDATE SET count = count + 1",
                (
                    *(number, num_frames, decision.step, self._count, text),
                    *(json.dumps(decision.frames[-1]), json.dumps(decision.rest)),
                ),
            )
        except sqlite3.OperationalError as error:
            raise UserError(
                f"{tempfile.gettempdir()}: no room for a temporary file ({error}); free some space "
                "or set TMPDIR to another folder"
            ) from None
        self._count += 1

    def __iter__(self) -> Iterator[Trajectory]:
        episodes = self._base.execute(
            "SELECT number, video, instruction, frames, (SELECT COUNT(*) FROM episode other "
            "WHERE other.video = episode.video AND other.number < episode.number) "
            "FROM episode ORDER BY number"
        )
        for number, video, instruction, frames, before in episodes:
            rows = self._base.execute(
                "SELECT num_frames, step, text, last_frame, rest, count FROM decision "
                "WHERE episode = ? ORDER BY num_frames, step, at",
                (number,),
            )
            decisions: list[Decided] = []
            repeats: list[int] = []
            conflicts: list[list[Any]] = []
            place = None
            for num_frames, step, text, last_frame, rest, count in rows:
                if place == (num_frames, step):
                    conflicts.append([len(decisions) - 1, json.loads(text)])
                    continue
                place = (num_frames, step)
                text, last_frame, rest = map(json.loads, (text, last_frame, rest))
                decisions.append(Decided(text, num_frames, last_frame, rest))
                repeats.append(count)
            video = json.loads(video)
            yield Trajectory(
                f"{video}_{before}" if before else video,
                video,
                json.loads(instruction),
                json.loads(frames),
                decisions,
                repeats,
                conflicts,
            )
