"""A recorded episode through the policy: the logits that live inference has at every label.

The policy must compute what training computed. `replay` feeds it the recorded frames, poses,
executed actions and summaries, forces each label's tokens in turn, and returns the logits;
`training_logits` picks the same ones out of a packed forward. Both are lists over the episode's
paths (step by step, label by label) of (tokens of the label, V_out).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from vla_nav.attention.registry import backend
from vla_nav.episodes.types import Episode, FrameSource, Pose
from vla_nav.models.policy import VLAPolicy
from vla_nav.models.prompt import PromptBuilder
from vla_nav.models.summaries import summaries_of
from vla_nav.models.vla import VLA
from vla_nav.simulators.protocol import Observation
from vla_nav.tree import Path, PrefixTree, pack, path_token_index
from vla_nav.vision.frames import as_rgb, resize_frames


def replay(policy: VLAPolicy, episode: Episode, source: FrameSource) -> list[Tensor]:
    """Logits at every label, by the policy's cache."""
    found = []
    summaries = summaries_of(episode, policy.prompt.layout)
    for number in range(max(len(step.labels) for step in episode.steps)):
        policy.reset("replay", episode.instruction)
        logits = []
        for t, step in enumerate(episode.steps):
            if t > 0 and policy.prompt.layout.history == "summary":
                policy.note_summary("replay", t, summaries.get(t))
            label = step.labels[min(number, len(step.labels) - 1)]
            action = policy.space.label(step.pose, label)
            observation = recorded_observation(step.frames, step.pose, source)
            policy.act({"replay": observation}, forced={"replay": policy.space.encode(action)})
            policy.note_executed("replay", step.executed)
            logits.append(policy.last_logits["replay"])
        found.append(logits)
    return [
        found[number][index]
        for index, step in enumerate(episode.steps)
        for number in range(len(step.labels))
    ]


def recorded_observation(frames: Mapping[str, str], pose: Pose, source: FrameSource) -> Observation:
    """A recorded step as the observation that the policy was given."""
    rgb: dict[str, np.ndarray] = {}
    depth: dict[str, np.ndarray] = {}
    for stream, key in frames.items():
        name, _, kind = stream.rpartition(".")
        image = source.read(key)
        if kind == "depth" and name:
            depth[name] = image
        else:
            rgb[stream] = image
    return Observation(pose, rgb, depth, {})


@torch.no_grad()
def training_logits(
    model: VLA, prompt: PromptBuilder, episode: Episode, source: FrameSource
) -> list[Tensor]:
    """Logits at every label, by one packed forward of the episode's tree."""
    paths, keys = prompt.paths(episode)
    tree = PrefixTree.from_paths(paths)
    packed = pack([tree])
    assert model.encoder is not None
    size = model.encoder.image_size
    pixels = torch.cat(
        [resize_frames(torch.from_numpy(as_rgb(source.read(key)))[None], size) for key in keys]
    )
    plan = backend(model.attention_name).plan(packed)
    logits = model(packed, pixels, plan)  # (M, V)
    return [logits[rows].float() for rows in label_rows(tree, paths)]


def label_rows(tree: PrefixTree, paths: Sequence[Path]) -> list[list[int]]:
    """For each path, the targets (rows of the logits) of its last segment, the label's tokens."""
    row_of = {int(token): row for row, token in enumerate(tree.target_index)}
    found: list[list[int]] = [[] for _ in paths]
    for number, source in enumerate(tree.path_source.tolist()):
        num_label = len(paths[source].segments[-1])
        tokens = path_token_index(tree, number)[-num_label:]
        found[source] = [row_of[int(token)] for token in tokens]
    return found
