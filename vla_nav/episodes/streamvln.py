"""StreamVLN's collected trajectories: one picture and one action a step.

    annotations.json   [{"id": 577, "video": "images/17DRP5sb8fy_r2r_000577",
                         "instructions": ["Walk out ..."], "actions": [-1, 3, 1, 1]}]
    images/17DRP5sb8fy_r2r_000577/rgb/001.jpg  002.jpg  003.jpg  004.jpg

    picture    001   002   003   004
    executed   3     1     1     STOP         actions[0] is -1, "nothing yet"; STOP is not stored

Facts from InternRobotics/StreamVLN at e48f6ff: streamvln/streamvln_trajectory_generation.py (files;
pictures from 001), streamvln/streamvln_dagger.py (the same, pictures from 000),
streamvln/dataset/vln_action_dataset.py (the shift by one, the STOP; 15 degrees and 25 cm in its
prompt), config/vln_r2r.yaml (640x480, HFOV 79, turn 15, step 0.25). MIV-XJTU/JanusVLN keeps its
ScaleVLN and DAgger parts like this too (create_data/create_data.py). There are no poses.

A picture belongs to a step by the number in its name, so a missing one leaves a gap and does not
shift the rest. Every further instruction of a trajectory is an episode of its own, `577_1`.
"""

from __future__ import annotations

import contextlib
import re
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
from vla_nav.episodes.frame_folders import FolderFrames, inside, numbered_pictures, picture_size
from vla_nav.episodes.source import EpisodeError, SourceFacts
from vla_nav.episodes.types import LOOK_DOWN, STOP, Camera, Embodiment, Episode, Step
from vla_nav.episodes.walked import ORIGIN, Walked, walked_steps
from vla_nav.errors import UserError

TURN_DEG, STEP_M = 15.0, 0.25
MAX_ACTIONS = 100_000  # of one trajectory; public ones have at most 498
_NUM_LOOKED_AT = 20  # pictures, for their size
_OWN_KEYS = ("id", "video", "instructions", "actions")
_SCENE = re.compile(r"(?P<scene>.+)_(?P<set>[A-Za-z0-9-]+)_[0-9]{6,}")


def detect(path: Path, split: str) -> bool:
    """Whether the first record of the annotations is a trajectory of StreamVLN."""
    file = annotations_file(Path(path), split)
    return file is not None and {"video", "instructions", "actions"} <= first_record(file).keys()


def open_source(path: str | Path, *, split: str, role: str = "") -> StreamVlnSource:
    """The trajectories in `path/annotations.json`, or in `path/<split>/annotations.json`."""
    file = found_annotations(Path(path), split)
    facts = SourceFacts(
        format="streamvln",
        turn_deg=TURN_DEG,
        step_m=STEP_M,
        embodiment=_embodiment(file),
        expert="follower of the reference path",
        is_pose_measured=False,
        notes=(
            "STOP is not stored: it is taken at the last picture.",
            "Turn, step, camera height, HFOV and body are those of StreamVLN's own "
            "configuration; the files state none.",
        ),
    )
    return StreamVlnSource(file, split, role, facts)


@dataclass(frozen=True)
class StreamVlnSource:
    """Episodes with one step a picture, the last one STOP; poses are dead-reckoned."""

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
        """The pictures below `root`."""
        return FolderFrames(self.root)

    def __iter__(self) -> Iterator[Episode]:
        return ResumedEpisodes(self._found())

    def _found(self) -> Iterator[Episode | EpisodeError]:
        for number, record in enumerate(read_records(self.file)):
            try:
                yield from self._episodes(record, number)
            except UserError as error:
                yield as_episode_error(error)

    def _episodes(self, record: dict[str, Any], number: int) -> Iterator[Episode]:
        episode_id = record.get("id", number)
        if type(episode_id) not in (int, str) or episode_id == "":
            who = f"record number {number}"
            raise fault(self.file, who, "id", episode_id, "a number or text")
        who = f"episode {episode_id}"
        video = record.get("video")
        if not isinstance(video, str) or not video:
            raise fault(self.file, who, "video", video, "the path of a folder")
        actions = _actions(record.get("actions"), self.file, who)
        steps, about = self._steps(video, actions)
        scene = _SCENE.fullmatch(Path(video).name)
        metadata = {
            **{key: value for key, value in record.items() if key not in _OWN_KEYS},
            "poses": "dead_reckoned",
            "video": video,
            **about,
        }
        texts = _instructions(record.get("instructions"), self.file, who)
        for at, text in enumerate(texts):
            yield Episode(
                dataset=scene["set"] if scene else "streamvln",
                split=self.split,
                role=self.role,
                episode_id=f"{episode_id}_{at}" if at else str(episode_id),
                scene_id=scene["scene"] if scene else "",
                instruction=text,
                start_pose=ORIGIN,
                goals=(),
                reference_path=np.zeros((0, 3)),
                embodiment=self.facts.embodiment,
                steps=steps,
                metadata=metadata,
            )

    def _steps(self, video: str, actions: list[int]) -> tuple[tuple[Step, ...], dict[str, Any]]:
        pictures = numbered_pictures(inside(self.root, video, what="video") / "rgb")
        first = 0 if 0 in pictures else 1
        executed = [*actions[1:], STOP]
        decisions = []
        num_missing = 0
        for at, action in enumerate(executed):
            name = pictures.pop(first + at, None)
            num_missing += name is None
            frames = {} if name is None else {"front": f"{video}/rgb/{name}"}
            decisions.append(Walked(frames, (action,), (action,)))
        about = {"missing_frames": num_missing, "surplus_frames": len(pictures)}
        steps = walked_steps(ORIGIN, decisions, turn_deg=TURN_DEG, step_m=STEP_M)
        return steps, {key: value for key, value in about.items() if value}


def _embodiment(file: Path) -> Embodiment:
    """StreamVLN's body, its camera of the size that the first sound picture has, else 640x480."""
    camera = Camera("front", *_first_size(file), hfov_deg=79.0, height_m=1.25)
    return Embodiment((camera,), 0.1, 1.5, TURN_DEG, STEP_M, is_sliding=True)


def _first_size(file: Path) -> tuple[int, int]:
    """(width, height) of a picture of the first trajectory."""
    video = first_record(file).get("video")
    if isinstance(video, str):
        with contextlib.suppress(UserError):  # told of the episode, when it is read
            folder = inside(file.parent, video, what="video") / "rgb"
            for name in list(numbered_pictures(folder).values())[:_NUM_LOOKED_AT]:
                with contextlib.suppress(UserError):  # told when the picture is read
                    return picture_size(folder / name)
    return 640, 480


def _actions(actions: Any, file: Path, who: str) -> list[int]:
    if not isinstance(actions, list) or not actions:
        raise fault(file, who, "actions", actions, "a list that begins with -1")
    if len(actions) > MAX_ACTIONS:
        raise fault(file, who, "actions", f"{len(actions)} entries", f"at most {MAX_ACTIONS}")
    if actions[0] != -1 or type(actions[0]) is not int:
        raise fault(file, who, "actions[0]", actions[0], "-1, the first picture follows no action")
    for at, action in enumerate(actions[1:], 1):
        if type(action) is not int or not STOP <= action <= LOOK_DOWN:
            raise fault(file, who, f"actions[{at}]", action, f"an id {STOP} .. {LOOK_DOWN}")
    return actions


def _instructions(texts: Any, file: Path, who: str) -> list[str]:
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
        raise fault(file, who, "instructions", texts, "a text or a list of texts")
    return texts
