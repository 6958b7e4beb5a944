"""Unrecorded episodes of a VLN-CE file as if an expert had walked them: lengths without frames.

    <path>/<split>/<split>[_<role>].json.gz       episodes        <path>/episodes/<split>/ as well
    <path>/<split>/<split>[_<role>]_gt.json.gz    ground-truth actions and locations

    actions    L L F F F F F R STOP      decision turn_then_forward(4)
    steps      [L L F F F F][F][R][STOP] one frame, one label and one executed decision each

Nothing is rendered: a frame is a name that says which trajectory and step it would show, so that
episodes of one trajectory share their frames. Enough for counting and drawing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vla_nav.actions.decisions import DecisionRule
from vla_nav.actions.ground_truth_steps import walked
from vla_nav.actions.types import ActionSpace
from vla_nav.episodes.formats import open_source
from vla_nav.episodes.lerobot_layout import Conventions
from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.episodes.types import Episode
from vla_nav.episodes.vlnce import read_vlnce
from vla_nav.errors import UserError
from vla_nav.files import file_digest
from vla_nav.models.prompt import PromptConfig
from vla_nav.training.recorded_split import open_recorded
from vla_nav.training.source_episodes import SourceEpisodes, counted_body, with_frame_names

_STEP_M = 0.25  # of every VLN-CE data set


class EpisodeFile:
    """The episodes of a VLN-CE file with steps made from its ground truth; read like a recorded
    data set.

    turn_deg: of the data (R2R-CE 15, RxR-CE 30). prompt: names the cameras. Raises `UserError`
    where episodes or ground truth are missing.
    """

    def __init__(
        self,
        data_path: str | Path,
        split: str,
        *,
        action_space: ActionSpace,
        prompt: PromptConfig,
        role: str = "",
        turn_deg: float = 15.0,
    ) -> None:
        file = find_episode_file(data_path, split, role)
        assert file is not None, "asked for after `find_episode_file`"
        self.root = file
        self._truth = _truth_of(file)
        if not self._truth.is_file():
            raise UserError(
                f"{self._truth}: no ground-truth actions for {file.name}, so the lengths of its "
                "episodes are unknown; take a split that has them, or record it (vla-nav record)"
            )
        self.embodiment = counted_body(action_space, prompt, turn_deg, _STEP_M)
        self._rule = DecisionRule.parse(action_space.decision)
        self.conventions = Conventions("vlnce", split, self.embodiment, str(self._rule))
        read = read_vlnce(
            file, dataset="vlnce", split=split, role=role, gt=self._truth, default_radius_m=3.0
        )
        self._episodes = [self._walked(episode) for episode in read]

    def __len__(self) -> int:
        return len(self._episodes)

    def __getitem__(self, index: int) -> Episode:
        return self._episodes[index]

    def __iter__(self) -> Iterator[Episode]:
        return iter(self._episodes)

    @property
    def num_steps(self) -> np.ndarray:
        """(episodes,) int64: steps of every episode."""
        return np.array([len(episode.steps) for episode in self._episodes], dtype=np.int64)

    def keys(self) -> list[tuple[str, str, str, str]]:
        """(dataset, split, role, episode_id) of every episode, in order."""
        return [episode.key for episode in self._episodes]

    def scene_ids(self) -> list[str]:
        """The scene of every episode."""
        return [episode.scene_id for episode in self._episodes]

    def metadata(self, key: str) -> list[Any]:
        """What every episode's metadata has under `key`; None where it has nothing."""
        return [episode.metadata.get(key) for episode in self._episodes]

    def fingerprint(self) -> str:
        """Digests of both files."""
        return self._digests

    @cached_property
    def _digests(self) -> str:
        return f"{file_digest(self.root)}-{file_digest(self._truth)}"

    def _walked(self, episode: Episode) -> Episode:
        """The episode with one step per decision, each labelled with what was done."""
        made = walked(episode, self._rule, turn_deg=self.embodiment.turn_deg)
        kept = {k: v for k, v in episode.metadata.items() if k == "trajectory_id"}
        return replace(with_frame_names(made, self.embodiment), metadata=kept)


def open_episodes(
    data_path: str | Path,
    split: str,
    *,
    action_space: ActionSpace,
    prompt: PromptConfig,
    role: str = "",
    turn_deg: float = 15.0,
    format: str | None = None,
) -> LeRobotDataset | EpisodeFile | SourceEpisodes:
    """The recorded split, or where there is none the episode file of that split, or else whatever
    format `data_path` has.

    format: by name (`vla_nav.episodes.formats`); None: found. Raises `UserError` naming the places
    where nothing is.
    """
    recorded = Path(data_path) / "recorded" / split
    is_file = find_episode_file(data_path, split, role) is not None
    if recorded.is_dir() and format in (None, "recorded"):
        return open_recorded(data_path, split)
    if is_file and format in (None, "r2r_ce", "rxr_ce"):
        return EpisodeFile(
            data_path, split, action_space=action_space, prompt=prompt, role=role, turn_deg=turn_deg
        )
    source = open_source(data_path, split=split, format=format, role=role)
    return SourceEpisodes(source, action_space=action_space, prompt=prompt, turn_deg=turn_deg)


def find_episode_file(data_path: str | Path, split: str, role: str = "") -> Path | None:
    """The episode file of a split, or None where `data_path` has none."""
    name = f"{split}_{role}" if role else split
    folders = (Path(data_path) / split, Path(data_path) / "episodes" / split, Path(data_path))
    for folder in folders:
        for ending in (".json.gz", ".json"):
            if (file := folder / f"{name}{ending}").is_file():
                return file
    return None


def _truth_of(file: Path) -> Path:
    """`val_unseen.json.gz` -> `val_unseen_gt.json.gz`, in the same folder."""
    stem, dot, ending = file.name.partition(".json")
    return file.with_name(f"{stem}_gt{dot}{ending}")
