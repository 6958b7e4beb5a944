"""What the page shows of an episode, as plain JSON values.

    episode     key, instruction, goals, reference path, metadata
      track     one walk through it: recorded steps, the ground truth, or a row of an evaluation
        step    where (x, y, z, yaw), what was done, what the expert would do, frames by camera

A track has one step per decision (recorded sets) or per primitive (ground truth, evaluation).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vla_nav.episodes.ground_truth import ground_truth_poses
from vla_nav.episodes.types import STOP, Episode, Pose
from vla_nav.viewing.outcomes import Outcome, outcome_of_walk

RECORDED, GROUND_TRUTH, EXPERT = "recorded", "ground truth", "expert"
_DIGITS = 4  # a tenth of a millimetre
_METADATA_CHARACTERS = 2000  # of one metadata value on the page
_SHOWN_ELSEWHERE = {"ground_truth", "file"}

Spot = tuple[float, float, float, float]


@dataclass
class Track:
    """One walk. spots: x y z yaw before every step and, where known, after the last; actions:
    what each step executed; labels: per step what experts would do; frames: per step camera ->
    frame key (of a data set) or file (once written)."""

    name: str
    spots: list[Spot]
    actions: list[list[int]]
    labels: list[list[list[int]]] | None = None
    frames: list[dict[str, str]] | None = None
    outcome: Outcome = field(default_factory=Outcome)
    scores: Mapping[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Plain values for the page."""
        return {
            "name": self.name,
            "spots": [[number(value) for value in spot] for spot in self.spots],
            "actions": self.actions,
            "labels": self.labels,
            "frames": self.frames,
            "flags": list(self.outcome.flags),
            "words": list(self.outcome.words),
            "scores": {key: number(value) for key, value in self.scores.items()},
            "notes": self.notes,
        }


def episode_json(episode: Episode) -> dict[str, Any]:
    """Everything but tracks, floors and the tree."""
    return {
        "key": "/".join(episode.key),
        "id": episode.episode_id,
        "scene": episode.scene_id,
        "instruction": episode.instruction,
        "start": [number(value) for value in spot_of(episode.start_pose)],
        "goals": [[*map(number, goal.position), number(goal.radius_m)] for goal in episode.goals],
        "reference": [[number(value) for value in point] for point in episode.reference_path],
        "metadata": {
            str(key): _short(value)
            for key, value in episode.metadata.items()
            if key not in _SHOWN_ELSEWHERE
        },
    }


def data_track(episode: Episode, *, turn_deg: float | None) -> Track | None:
    """The recorded walk of an episode, else that of its ground truth, else None.

    turn_deg: of the data; the headings of a ground truth follow from it.
    """
    if episode.steps:
        return _recorded(episode, turn_deg)
    truth = episode.metadata.get("ground_truth")
    if not truth or not turn_deg:
        return None
    poses = ground_truth_poses(episode, turn_deg=turn_deg)
    primitives = [int(action) for action in truth["actions"]]
    return Track(
        name=GROUND_TRUTH,
        spots=[spot_of(pose) for pose in poses],
        actions=[[primitive] for primitive in primitives],
        outcome=outcome_of_walk(
            [pose.position for pose in poses], primitives, episode.goals, turn_deg=turn_deg
        ),
    )


def spot_of(pose: Pose) -> Spot:
    """x, y, z, yaw."""
    return (*pose.position, pose.yaw_rad)


def number(value: Any) -> Any:
    """A float rounded for the page; what JSON has no number for becomes text."""
    if isinstance(value, bool) or not isinstance(value, float):
        return value if isinstance(value, int | str | None) else float(value)
    return round(value, _DIGITS) if math.isfinite(value) else str(value)


def _recorded(episode: Episode, turn_deg: float | None) -> Track:
    steps = episode.steps
    poses = [step.pose for step in steps]
    last = next((label for label in steps[-1].labels if label.poses), None)
    if last is not None and steps[-1].executed == last.primitives[: len(steps[-1].executed)]:
        poses.append(last.poses[len(steps[-1].executed) - 1] if steps[-1].executed else poses[-1])
    primitives = [primitive for step in steps for primitive in step.executed]
    notes = []
    if (how := episode.metadata.get("poses")) is not None:
        notes.append(f"poses: {_short(how)}")
    return Track(
        name=RECORDED,
        spots=[spot_of(pose) for pose in poses],
        actions=[list(step.executed) for step in steps],
        labels=[[list(label.primitives) for label in step.labels] for step in steps],
        frames=[dict(step.frames) for step in steps],
        outcome=outcome_of_walk(
            [pose.position for pose in poses],
            primitives,
            episode.goals,
            turn_deg=turn_deg,
            num_unparsed=num_unparsed(episode.metadata),
        ),
        notes=notes,
    )


def num_unparsed(values: Mapping[str, Any]) -> int:
    """How many actions were outside the grammar, as a result or an episode's metadata says."""
    found = values.get("num_unparsed", values.get("unparsed", 0))
    if isinstance(found, Sequence | Mapping) and not isinstance(found, str):
        return len(found)
    return int(found) if isinstance(found, int | float) and math.isfinite(found) else 0


def has_stop(primitives: Sequence[int]) -> bool:
    """Whether the walk ends with STOP."""
    return primitives[-1:] == [STOP]


def _short(value: Any) -> str:
    """A metadata value as text, cut where it would fill the page."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    if len(text) <= _METADATA_CHARACTERS:
        return text
    return f"{text[:_METADATA_CHARACTERS]} … ({len(text):,} characters)"
