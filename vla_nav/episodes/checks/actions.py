"""Checks of actions and labels by themselves: D201 to D205, D215 to D221, D308.

Axis legend: A actions.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from vla_nav.episodes.checks.findings import Tally
from vla_nav.episodes.checks.tracks import Track, action_ids
from vla_nav.episodes.rollouts import is_rollout
from vla_nav.episodes.types import (
    LOOK_DOWN,
    MOVE_FORWARD,
    PRIMITIVE_NAMES,
    STOP,
    TURN_LEFT,
    TURN_RIGHT,
    Episode,
)

MAX_ACTIONS = 500  # the usual limit of an evaluation episode
_START_TOLERANCE_M = 0.25
_LONE_SHARE = 0.95  # of one action, beyond which nothing else is learnt
_LOPSIDED = 2.0  # left turns per right turn, or the other way round
_MIN_ACTIONS = 200  # for a prior to say anything


class ActionCheck:
    """Ground truth joined by the right id, STOP, priors, labels."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._counts: Counter[int] = Counter()
        self._num_episodes = self._num_with = self._num_without = self._num_unparsed = 0
        self._first_without = ""

    def see(self, episode: Episode, track: Track | None) -> None:
        """Look at one episode; `track` is its walk."""
        self._num_episodes += 1
        if track is None:
            self._num_without += 1
            self._first_without = self._first_without or episode.episode_id
            return
        self._num_with += 1
        truth = episode.metadata.get("ground_truth")
        if track.key == "ground_truth":
            self._joined(episode, truth, track)
        for number, step in enumerate(episode.steps):
            unknown = [a for a in step.executed if not STOP <= a <= LOOK_DOWN]
            if unknown:
                self._tally.add("D217", episode, f"steps[{number}].executed", unknown)
        actions = track.actions.tolist()
        self._counts.update(actions)
        self._stop(episode, actions, track.key)
        if len(actions) > MAX_ACTIONS:
            self._tally.add("D308", episode, track.key, f"{len(actions)} actions")
        self._labels(episode)

    def close(self) -> dict[str, Any]:
        """Findings over all episodes; facts for the report."""
        if self._num_with == 0 and self._num_episodes:
            self._tally.add_whole("D202", "actions", "none", count=self._num_episodes)
        elif self._num_without:
            text = f"episode {self._first_without} and others have none"
            self._tally.add_whole("D201", "ground_truth", text, count=self._num_without)
        total = self._counts.total()
        if total >= _MIN_ACTIONS:
            self._prior(total)
        names = {_name(action): round(n / total, 4) for action, n in sorted(self._counts.items())}
        mean = round(total / self._num_with, 2) if self._num_with else None
        return {"actions_per_episode": mean, "action_prior": names}

    def _joined(self, episode: Episode, truth: dict[str, Any], track: Track) -> None:
        raw = action_ids(truth)
        unknown = [a for a in raw if not (type(a) is int and STOP <= a <= LOOK_DOWN)]
        if unknown:
            self._tally.add("D217", episode, "ground_truth.actions", unknown[:5])
        stated = truth.get("forward_steps")
        num_forward = int((track.actions == MOVE_FORWARD).sum())
        if stated is not None and stated != num_forward:
            text = f"{stated}, actions have {num_forward} MOVE_FORWARD"
            self._tally.add("D204", episode, "ground_truth.forward_steps", text)
        if track.positions is None:
            locations = truth.get("locations")
            size = len(locations) if isinstance(locations, list) else None
            text = f"{size} locations and {num_forward} MOVE_FORWARD"
            self._tally.add("D204", episode, "ground_truth.locations", text)
            return
        off = math.dist(track.positions[0], episode.start_pose.position)
        if off > _START_TOLERANCE_M:
            self._tally.add("D203", episode, "ground_truth.locations", f"starts {off:.2f} m away")
        end = track.positions[-1]
        far = min(
            (math.dist(end, goal.position) - goal.radius_m for goal in episode.goals), default=0.0
        )
        if far > 0:
            text = f"ends {far:.2f} m outside the radius of the nearest goal"
            self._tally.add("D203", episode, "ground_truth.locations", text)

    def _stop(self, episode: Episode, actions: list[int], key: str) -> None:
        count = actions.count(STOP)
        if count == 0 and is_rollout(episode):
            return  # a policy that never stops: its states are labelled all the same
        if count != 1 or actions[-1] != STOP:
            last = _name(actions[-1]) if actions else "none"
            self._tally.add("D205", episode, key, f"{count} STOP, last action {last}")

    def _labels(self, episode: Episode) -> None:
        unparsed = episode.metadata.get("unparsed")
        if unparsed:
            self._tally.add("D216", episode, "metadata.unparsed", unparsed)
        if conflicts := episode.metadata.get("conflicts"):
            self._tally.add("D221", episode, "metadata.conflicts", conflicts)
        num_empty, has_stop = 0, False
        for number, step in enumerate(episode.steps):
            num_empty += not step.labels
            for label in step.labels:
                has_stop |= label.primitives[:1] == (STOP,)
                if len(label.primitives) != len(label.poses):
                    text = f"{len(label.primitives)} primitives, {len(label.poses)} poses"
                    self._tally.add("D220", episode, f"steps[{number}].labels", text)
        if num_empty:
            text = f"{num_empty} of {len(episode.steps)} steps"
            self._tally.add("D218", episode, "steps.labels", text)
        if num_empty < len(episode.steps) and not has_stop and not is_rollout(episode):
            self._tally.add("D219", episode, "steps.labels", "no label begins with STOP")

    def _prior(self, total: int) -> None:
        shares = {action: n / total for action, n in self._counts.items()}
        for action in (STOP, MOVE_FORWARD, TURN_LEFT, TURN_RIGHT):
            if action not in shares:
                self._tally.add_whole("D215", "actions", f"{_name(action)} never occurs")
        for action, share in shares.items():
            if share > _LONE_SHARE:
                self._tally.add_whole("D215", "actions", f"{share:.1%} are {_name(action)}")
        left, right = shares.get(TURN_LEFT, 0), shares.get(TURN_RIGHT, 0)
        if left and right and max(left, right) > _LOPSIDED * min(left, right):
            text = f"TURN_LEFT {left:.1%}, TURN_RIGHT {right:.1%}"
            self._tally.add_whole("D215", "actions", text)


def _name(action: int) -> str:
    return PRIMITIVE_NAMES[action] if 0 <= action < len(PRIMITIVE_NAMES) else str(action)
