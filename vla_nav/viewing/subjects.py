"""What a page shows: a data set, or an evaluation run with the episodes that it played.

subject.episodes()   in a fixed order; the page takes the first `view.max_episodes`
subject.tracks(e)    every walk to show: recorded, ground truth, one per row of a run
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from vla_nav.episodes.source import EpisodeSource
from vla_nav.episodes.types import Episode
from vla_nav.viewing.content import Track, data_track
from vla_nav.viewing.evaluation_run import EvaluationRun


class Subject(Protocol):
    """What is shown: episodes and their tracks."""

    title: str
    identity: Mapping[str, Any]
    facts: Mapping[str, Any]
    turn_deg: float | None

    def episodes(self) -> Iterator[Episode]:
        """In a fixed order."""
        ...

    def tracks(self, episode: Episode) -> list[Track]:
        """Every walk to show."""
        ...

    def remark(self, episode: Episode) -> str:
        """What there is to say where there are no walks."""
        ...


@dataclass(frozen=True)
class DataSubject:
    """A data set. turn_deg: of the configuration, where the data do not state one."""

    source: EpisodeSource
    given_turn_deg: float | None

    @property
    def title(self) -> str:
        """Where it is, and which split."""
        parts = [name for name in self.source.root.resolve().parts if name != "/"]
        if parts[-2:] == ["recorded", self.source.split]:
            parts = parts[:-2]
        return f"{'/'.join(parts[-2:])} {self.source.split}"

    @property
    def turn_deg(self) -> float | None:
        """As configured, else as the data say."""
        return self.given_turn_deg or self.source.facts.turn_deg

    @property
    def identity(self) -> Mapping[str, Any]:
        """Which data set."""
        root = str(self.source.root.resolve())
        return {"kind": "data", "source": root, "split": self.source.split}

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the data say about themselves."""
        facts = self.source.facts
        body = facts.embodiment
        return {
            "format": facts.format,
            "turn angle": f"{self.turn_deg:g} degrees" if self.turn_deg else "not stated",
            "step": f"{facts.step_m:g} m" if facts.step_m else "not stated",
            "expert": facts.expert or "not stated",
            "poses": "measured" if facts.is_pose_measured else "dead-reckoned from the actions",
            "cameras": ", ".join(
                f"{c.name} {c.width_px}x{c.height_px}, HFOV {c.hfov_deg:g}" for c in body.cameras
            )
            if body
            else "not stated",
            "notes": " ".join(facts.notes),
        }

    def episodes(self) -> Iterator[Episode]:
        """Every episode of the split."""
        return iter(self.source)

    def tracks(self, episode: Episode) -> list[Track]:
        """The recorded walk or the ground truth; none where there is neither."""
        track = data_track(episode, turn_deg=self.turn_deg)
        return [] if track is None else [track]

    def remark(self, episode: Episode) -> str:
        """Why there is no walk to show, "" where there is one."""
        if episode.steps or (episode.metadata.get("ground_truth") and self.turn_deg):
            return ""
        if episode.metadata.get("ground_truth"):
            return "the data do not state their turn angle: give data.turn_deg (15 in R2R-CE)"
        return "no recorded steps and no ground truth"


@dataclass(frozen=True)
class RunSubject:
    """An evaluation run: its rows, and the ground truth where the episodes have one."""

    run: EvaluationRun

    @property
    def title(self) -> str:
        """What was evaluated."""
        facts = self.run.facts
        return f"{facts['dataset']} {facts['split']}: evaluation {self.run.folder.resolve().name}"

    @property
    def turn_deg(self) -> float:
        """Of the body that was evaluated."""
        return self.run.body.turn_deg

    @property
    def identity(self) -> Mapping[str, Any]:
        """Which run."""
        return {"kind": "run", "source": str(self.run.folder.resolve())}

    @property
    def facts(self) -> Mapping[str, Any]:
        """Conditions of the run."""
        facts = self.run.facts
        return {
            "success": f"STOP within {self.run.success_m:g} m",
            "decision": facts.get("decision"),
            "turn angle": f"{self.turn_deg:g} degrees",
            "backend": facts.get("backend"),
            "checkpoint": facts.get("checkpoint"),
            "other than trained": "; ".join(facts.get("differs_from_training", ())),
        }

    def episodes(self) -> Iterator[Episode]:
        """Those with a result."""
        return self.run.episodes()

    def tracks(self, episode: Episode) -> list[Track]:
        """One per row, then the ground truth."""
        truth = data_track(episode, turn_deg=self.turn_deg)
        return [*self.run.tracks(episode), *([] if truth is None else [truth])]

    def remark(self, episode: Episode) -> str:
        """Nothing: every episode has a result."""
        return ""
