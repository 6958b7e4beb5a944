"""NaVILA's data: one record a decision, the action as text, the pictures seen so far.

    annotations.json  [{"video_id": "914-23", "q": "Turn and walk away ...",
                        "a": "The next action is move forward 75 cm.",
                        "frames": ["914/frame_0.jpg", ..., "914/frame_51.jpg"]}, ...]
    train/914/frame_0.jpg ...              R2R, RxR (Human: raw_frames/<video>/0001.jpg ...)
    videos/914.mp4                         or the same pictures as frames of a video

    record        914-0       914-1          914-2
    pictures      0           0 1            0 1 2 3 4      the last one is the current view
    action        left 15     forward 75 cm  stop

The records of a video are brought together, in any order of the file, through a temporary table on
disk. A step is a decision; its action is what its text says (`text_actions.py`). Records repeated
to weigh them (R2R: stops three times) are one step; how often, is `metadata["repeats"]`. EnvDrop's
records have an instruction and a video but no actions: one step a picture, nothing is taught.

Facts from AnjieCheng/NaVILA at 76b98f2: README.md (files), llava/data/dataset.py (keys; `.mp4` of
the video_id), llava/data/datasets_mixture.py (folders, repeated records), evaluation/
habitat_extensions/config/vlnce_task.yaml and rxr_vlnce_english_task.yaml (turn 15, step 0.25).
There are no poses and no scenes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vla_nav.episodes.annotations import (
    ResumedEpisodes,
    annotations_file,
    as_episode_error,
    fault,
    first_record,
    found_annotations,
    read_records,
)
from vla_nav.episodes.frame_folders import MAX_FRAMES, FolderFrames
from vla_nav.episodes.navila_frames import Pictures, num_video_frames
from vla_nav.episodes.navila_table import Decision, DecisionTable, Trajectory
from vla_nav.episodes.source import EpisodeError, SourceFacts
from vla_nav.episodes.text_actions import decode_action_text
from vla_nav.episodes.types import Episode, Step
from vla_nav.episodes.walked import ORIGIN, Walked, walked_steps
from vla_nav.errors import UserError

TURN_DEG, STEP_M = 15.0, 0.25
_OWN_KEYS = ("video_id", "q", "a", "frames")


def detect(path: Path, split: str) -> bool:
    """Whether the first record of the annotations is a decision or a video of NaVILA."""
    file = annotations_file(Path(path), split)
    keys = first_record(file).keys() if file is not None else set()
    is_decision = {"video_id", "q", "a", "frames"} <= keys
    return is_decision or ("video_id" in keys and "instruction" in keys and "actions" not in keys)


def open_source(path: str | Path, *, split: str, role: str = "") -> NavilaSource:
    """The videos in `path/annotations.json`, or in `path/<split>/annotations.json`."""
    facts = SourceFacts(
        format="navila",
        turn_deg=TURN_DEG,
        step_m=STEP_M,
        is_pose_measured=False,
        notes=(
            "Turn and step are the units of the action texts (15 degrees, 25 cm).",
            "Scenes, cameras and poses are not stated.",
        ),
    )
    return NavilaSource(found_annotations(Path(path), split), split, role, facts)


@dataclass(frozen=True)
class NavilaSource:
    """Episodes with one step a decision; poses are dead-reckoned."""

    file: Path
    split: str
    role: str
    facts: SourceFacts

    @property
    def root(self) -> Path:
        """The folder that the annotations are in; frame keys are relative to it."""
        return self.file.parent

    @property
    def frames(self) -> FolderFrames:
        """The pictures and videos below `root`."""
        return FolderFrames(self.root)

    def __iter__(self) -> Iterator[Episode]:
        return ResumedEpisodes(self._found())

    def _found(self) -> Iterator[Episode | EpisodeError]:
        pictures = Pictures(self.root, self.split)
        with DecisionTable() as table:
            for number, record in enumerate(read_records(self.file)):
                try:
                    if "a" not in record and "frames" not in record:
                        yield self._video_only(number, record, pictures)
                        continue
                    decision = _decision(self.file, number, record)
                except UserError as error:
                    yield as_episode_error(error)
                    continue
                table.add(decision)
            for trajectory in table:
                try:
                    yield self._episode(trajectory, pictures)
                except UserError as error:
                    yield as_episode_error(error)

    def _episode(self, trajectory: Trajectory, pictures: Pictures) -> Episode:
        decisions, unparsed, gaps = [], [], []
        found = pictures.of(trajectory.frames)
        following = [decision.num_frames for decision in trajectory.decisions[1:]]
        for at, decision in enumerate(trajectory.decisions):
            action = decode_action_text(decision.text, turn_deg=TURN_DEG, step_m=STEP_M)
            key = found.get(decision.last_frame)
            frames = {} if key is None else {"front": key}
            if action.is_parsed:
                decisions.append(Walked(frames, action.primitives, action.primitives))
            else:
                unparsed.append([at, decision.text[:200]])
                decisions.append(Walked(frames, (), None))
            if at < len(following):
                num_pictures = following[at] - decision.num_frames
                if action.is_parsed and num_pictures != len(action.primitives):
                    gaps.append([at, num_pictures, len(action.primitives)])
        steps = walked_steps(ORIGIN, decisions, turn_deg=TURN_DEG, step_m=STEP_M)
        rests = [decision.rest for decision in trajectory.decisions]
        about = {
            "unparsed": unparsed,
            "picture_gaps": gaps,
            "records": rests if any(rests) else [],
            "repeats": trajectory.repeats if max(trajectory.repeats) > 1 else [],
            "conflicts": trajectory.conflicts,
            "missing_frames": sum(not decision.frames for decision in decisions),
        }
        metadata = {
            "poses": "dead_reckoned",
            "video": trajectory.video,
            "num_pictures": len(trajectory.frames),
            **{key: value for key, value in about.items() if value},
        }
        return self._made(trajectory.episode_id, trajectory.instruction, steps, metadata)

    def _video_only(self, number: int, record: dict[str, Any], pictures: Pictures) -> Episode:
        video_id = record.get("video_id")
        if type(video_id) not in (int, str) or video_id == "":
            raise fault(self.file, f"record number {number}", "video_id", video_id, "text")
        who = f"episode {video_id}"
        instruction = record.get("instruction")
        if not isinstance(instruction, str):
            raise fault(self.file, who, "instruction", instruction, "text")
        name = record.get("video_path") or record.get("video") or f"{video_id}.mp4"
        if not isinstance(name, str):
            raise fault(self.file, who, "video_path", name, "the path of an mp4")
        key = pictures.video(name)
        num_frames = 0 if key is None else num_video_frames(self.root / key)
        steps = tuple(Step(ORIGIN, {"front": f"{key}#{at}"}, (), ()) for at in range(num_frames))
        metadata = {
            **{k: v for k, v in record.items() if k not in ("video_id", "instruction")},
            "poses": "unknown",
            "video": name,
            **({} if key else {"missing_video": name}),
        }
        return self._made(str(video_id), instruction, steps, metadata)

    def _made(
        self, episode_id: str, instruction: str, steps: tuple[Step, ...], metadata: dict[str, Any]
    ) -> Episode:
        return Episode(
            dataset="navila",
            split=self.split,
            role=self.role,
            episode_id=episode_id,
            scene_id="",
            instruction=instruction,
            start_pose=ORIGIN,
            goals=(),
            reference_path=np.zeros((0, 3)),
            embodiment=None,
            steps=steps,
            metadata=metadata,
        )


def _decision(file: Path, number: int, record: dict[str, Any]) -> Decision:
    video_id = record.get("video_id")
    if not isinstance(video_id, str) or not video_id:
        raise fault(file, f"record number {number}", "video_id", video_id, "text")
    who = f"episode {video_id}"
    texts = {key: record.get(key) for key in ("q", "a")}
    for key, text in texts.items():
        if not isinstance(text, str):
            raise fault(file, who, key, text, "text")
    frames = record.get("frames")
    if not isinstance(frames, list) or set(map(type, frames)) - {str}:
        raise fault(file, who, "frames", frames, "a list of paths")
    if not 1 <= len(frames) <= MAX_FRAMES:
        raise fault(file, who, "frames", f"{len(frames)} paths", f"1 to {MAX_FRAMES}")
    video = frames[-1].rpartition("/")[0]
    step = video_id.removeprefix(f"{video}-")
    rest = {key: value for key, value in record.items() if key not in _OWN_KEYS}
    is_numbered = step.isascii() and step.isdigit() and len(step) < 10
    at = int(step) if is_numbered else len(frames)
    return Decision(video, texts["q"], texts["a"], at, frames, rest)
