"""What is verified: recorded or generated episodes as flat samples, and bushy random trees.

    recorded episodes   the last `max_steps` steps of some, STOP among them; a trajectory's episodes
                        together where the layout groups them
    generated ones      a walk without walls: relabelled states, summaries, a second instruction
    random trees        the model's own action tokens and frames, depth 0-6

Frames are what training would read: pixels for an encoder that trains in the step, else features.

Axis legend: F frames, P patches, D features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path as FilePath

import numpy as np
import torch
from torch import Tensor

from vla_nav.actions.types import ActionSpace
from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.episodes.types import Embodiment, Episode
from vla_nav.errors import UserError
from vla_nav.models.prompt import PromptBuilder
from vla_nav.training.grouping import grouped
from vla_nav.verification.generated import (
    INSTRUCTIONS,
    parting_walk,
    plain_embodiment,
    random_paths,
    walked_episode,
)
from vla_nav.verification.oracle import Sample
from vla_nav.vision.encoder import TimmEncoder
from vla_nav.vision.frames import as_rgb, resize_frames


@dataclass(frozen=True, eq=False)
class EpisodeSample:
    """The episodes of one tree, its flat paths and frames, and the keys (F,) of its frame rows."""

    episodes: tuple[Episode, ...]
    sample: Sample
    frame_keys: tuple[str, ...]


def episode_samples(
    builder: PromptBuilder,
    encoder: TimmEncoder,
    recorded: LeRobotDataset | None,
    *,
    num_episodes: int,
    max_steps: int,
    supervise: str,
    group: str,
    seed: int,
) -> list[EpisodeSample]:
    """`num_episodes` trees of the last `max_steps` steps of episodes: recorded ones, evenly spread
    over their split, or generated ones.

    group: episode | trajectory | rollouts, what one tree is made of (training/grouping.py).
    Raises `UserError` for a recorded episode without a label.
    """
    if recorded is None:
        chosen = _generated(builder, num_episodes, max_steps, group=group, seed=seed)
    else:
        chosen = _recorded(recorded, num_episodes, max_steps, group=group)
    samples = []
    for number, episodes in enumerate(chosen):
        paths, keys = builder.paths(*episodes, supervise=supervise)
        if not paths:
            name = "/".join(episodes[0].key)
            raise UserError(f"episode {name} has no step with an expert label; record it again")
        if recorded is None:
            frames = _random_frames(len(keys), encoder, seed + number)
        else:
            frames = _recorded_frames(recorded, keys, encoder)
        samples.append(EpisodeSample(tuple(episodes), Sample(paths, frames), keys))
    return samples


def random_samples(
    builder: PromptBuilder, encoder: TimmEncoder, *, num_trees: int, seed: int
) -> list[Sample]:
    """Random trees over the model's own tokens; targets are action tokens, as the head has them."""
    vocabulary = builder.vocabulary
    ids = list(range(min(vocabulary.num_actions, 12)))
    samples = []
    for number in range(num_trees):
        paths = random_paths(
            seed + number,
            text_ids=ids,
            placeholder_id=vocabulary.special(f"<{builder.streams[0]}>"),
            num_frames=3,
            num_patches=encoder.num_full,
        )
        samples.append(Sample(paths, _random_frames(3, encoder, seed + number)))
    return samples


def open_recorded_split(data_path: str, split: str) -> LeRobotDataset:
    """The recorded split of a data set; `UserError` where it has no episode."""
    recorded = LeRobotDataset(FilePath(data_path) / "recorded" / split)
    if len(recorded) == 0:
        raise UserError(f"{recorded.root}: no episode; record some first (vla-nav record)")
    return recorded


def generated_embodiment(space: ActionSpace, *, has_depth: bool) -> Embodiment:
    """An embodiment that the action space was made for."""
    described = space.describe()
    turn, step = described.get("turn_deg", 15.0), described.get("step_m", 0.25)
    return plain_embodiment(float(str(turn)), float(str(step)), has_depth=has_depth)


def _generated(
    builder: PromptBuilder, num_episodes: int, max_steps: int, *, group: str, seed: int
) -> Iterator[list[Episode]]:
    """Walks, each a step shorter than the one before; a trajectory is one walk, told twice, and
    rollouts are two walks that part halfway."""
    for number in range(num_episodes):
        episode = walked_episode(
            number,
            num_steps=max(1, max_steps - number),
            embodiment=builder.embodiment,
            seed=seed,
        )
        episodes = [episode]
        if group == "trajectory":
            other = INSTRUCTIONS[(number + 1) % len(INSTRUCTIONS)]
            episodes.append(replace(episode, episode_id=f"{number}b", instruction=other))
        elif group == "rollouts":
            half = len(episode.steps) // 2
            another = number + num_episodes  # the number of no other walk
            episodes.append(parting_walk(episode, another, parts_at=half, seed=seed))
        yield episodes


def _recorded(
    recorded: LeRobotDataset, num_episodes: int, max_steps: int, *, group: str
) -> Iterator[list[Episode]]:
    """Recorded episodes, or the trajectories that they belong to."""
    groups = grouped(recorded, group)
    chosen = np.linspace(0, len(groups) - 1, min(num_episodes, len(groups))).astype(int)
    for number in chosen.tolist():
        yield [_last_steps(recorded[index], max_steps) for index in groups[number]]


def _last_steps(episode: Episode, max_steps: int) -> Episode:
    """The end of an episode; a summary of what is cut off stands for the first step instead."""
    dropped = max(0, len(episode.steps) - max_steps)
    metadata = dict(episode.metadata)
    given = metadata.get("summaries")
    if dropped and isinstance(given, Mapping) and all(str(step).isdecimal() for step in given):
        metadata["summaries"] = {
            str(max(1, int(step) - dropped)): given[step] for step in sorted(given, key=int)
        }
    return replace(episode, steps=episode.steps[dropped:], metadata=metadata)


def _recorded_frames(recorded: LeRobotDataset, keys: Sequence[str], encoder: TimmEncoder) -> Tensor:
    """Pixels (F, H, W, 3) uint8 for a trainable encoder, else float64 features (F, P, D)."""
    pixels = torch.cat(
        [
            resize_frames(
                torch.from_numpy(as_rgb(recorded.frames.read(key)))[None], encoder.image_size
            )
            for key in keys
        ]
    )
    if not encoder.is_frozen:
        return pixels
    with torch.no_grad():
        return encoder.encode(pixels).double()


def _random_frames(num_frames: int, encoder: TimmEncoder, seed: int) -> Tensor:
    """The same of noise, coarse enough to survive an encoder's first pooling."""
    draw = torch.Generator().manual_seed(seed)
    if encoder.is_frozen:
        shape = (num_frames, *encoder.row_shape)
        return torch.randn(shape, dtype=torch.float64, generator=draw)
    coarse = torch.randint(0, 256, (num_frames, 12, 12, 3), generator=draw, dtype=torch.uint8)
    return resize_frames(coarse, encoder.image_size)
