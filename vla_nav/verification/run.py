"""`vla-nav verify`: the proof on a user's model, layout and data, or on generated episodes.

    recorded episodes (data.path)  or  generated ones  --prompt builder--> paths --+
    frames --encoder--> features (or random ones)                                  |
                                                                                   v
    float64 copy of the model, at most `max_layers` layers:  equivalence + leakage + random trees

Layers are cut (random backbones only) because every layer is the same code; widths stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vla_nav.actions.types import ActionSpace
from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.episodes.types import Embodiment, Episode
from vla_nav.errors import UserError
from vla_nav.losses.cross_entropy import Normalisation
from vla_nav.models.assembly import Assembled, ModelConfig, assemble
from vla_nav.models.prompt import Layout, PromptBuilder
from vla_nav.verification.equivalence import Bounds, check_equivalence
from vla_nav.verification.generated import plain_embodiment, random_paths, walked_episode
from vla_nav.verification.leakage import check_leakage
from vla_nav.verification.oracle import Sample
from vla_nav.verification.report import Finding
from vla_nav.verification.vla_forwards import flat_copy, flat_forward, packed_forward
from vla_nav.vision.encoder import TimmEncoder
from vla_nav.vision.frames import as_rgb, resize_frames


@dataclass(frozen=True)
class VerifySettings:
    """num_episodes and num_trees: how many of each; max_steps: of an episode, evenly cut off;
    max_layers: of a randomly initialised backbone, null for all; num_probes: leakage probes."""

    num_episodes: int = 2
    max_steps: int = 8
    num_trees: int = 2
    max_layers: int | None = 2
    num_probes: int = 12

    def __post_init__(self) -> None:
        for name in ("num_episodes", "max_steps"):
            if getattr(self, name) < 1:
                raise UserError(f"verification.{name}={getattr(self, name)}; 1 or more is needed")


@dataclass(frozen=True)
class VerifyRecipe:
    """What is verified: the same parts that training is given. data_path None: generated."""

    model: ModelConfig
    encoder: dict[str, Any]
    action_space: ActionSpace
    layout: Layout
    supervise: str
    attention: str
    normalisation: Normalisation
    data_path: str | None
    split: str
    settings: VerifySettings
    seed: int = 0


def verify(recipe: VerifyRecipe) -> list[Finding]:
    """All findings; the caller prints them and decides about the exit code."""
    if recipe.attention == "flex":
        raise UserError(
            "attention=flex: the float64 proof runs on the CPU, where flex has no backward; "
            "use attention=sdpa or attention=reference"
        )
    encoder = TimmEncoder(**recipe.encoder)
    recorded = None if recipe.data_path is None else _open(recipe.data_path, recipe.split)
    embodiment = _plain(recipe) if recorded is None else recorded.embodiment
    assembled = assemble(
        _cut(recipe.model, recipe.settings.max_layers),
        action_space=recipe.action_space,
        embodiment=embodiment,
        layout=recipe.layout,
        encoder=encoder,
        attention=recipe.attention,
    )
    samples = _samples(recipe, assembled.prompt, encoder, recorded, embodiment)
    model = assembled.model.double()
    findings = check_equivalence(
        model,
        samples,
        packed_forward=packed_forward,
        flat_forward=flat_forward,
        flat_model=flat_copy(model),
        normalisation=recipe.normalisation,
    )
    findings += check_leakage(
        model,
        samples,
        packed_forward=packed_forward,
        num_probes=recipe.settings.num_probes,
        seed=recipe.seed,
    )
    if recipe.settings.num_trees:
        trees = _random_samples(recipe, assembled, encoder)
        findings += [
            replace(finding, check=f"random trees: {finding.check}")
            for finding in check_equivalence(
                model,
                trees,
                packed_forward=packed_forward,
                flat_forward=flat_forward,
                flat_model=flat_copy(model),
                normalisation=recipe.normalisation,
                bounds=Bounds(),
            )
        ]
    return findings


def _samples(
    recipe: VerifyRecipe,
    builder: PromptBuilder,
    encoder: TimmEncoder,
    recorded: LeRobotDataset | None,
    embodiment: Embodiment,
) -> list[Sample]:
    settings = recipe.settings
    if recorded is None:
        episodes: Sequence[Episode] = [
            walked_episode(
                number,
                num_steps=max(1, settings.max_steps - number),
                embodiment=embodiment,
                seed=recipe.seed,
            )
            for number in range(settings.num_episodes)
        ]
    else:
        chosen = np.linspace(0, len(recorded) - 1, min(settings.num_episodes, len(recorded)))
        episodes = [recorded[int(index)] for index in chosen]
    samples = []
    for number, episode in enumerate(episodes):
        # The last steps, so that STOP is among them.
        short = replace(episode, steps=episode.steps[-settings.max_steps :])
        paths, keys = builder.paths(short, supervise=recipe.supervise)
        if not paths:
            raise UserError(f"episode {'/'.join(episode.key)} has no step with an expert label")
        if recorded is None:
            features = _random_features(len(keys), encoder, recipe.seed + number)
        else:
            features = _encoded(recorded, keys, encoder)
        samples.append(Sample(paths, features))
    return samples


def _random_samples(
    recipe: VerifyRecipe, assembled: Assembled, encoder: TimmEncoder
) -> list[Sample]:
    """Random trees over the model's own tokens; targets are action tokens, as the head has them."""
    vocabulary = assembled.prompt.vocabulary
    streams = assembled.prompt.streams
    ids = list(range(min(vocabulary.num_actions, 12)))
    samples = []
    for number in range(recipe.settings.num_trees):
        paths = random_paths(
            recipe.seed + number,
            text_ids=ids,
            placeholder_id=vocabulary.special(f"<{streams[0]}>"),
            num_frames=3,
            num_patches=encoder.num_full,
        )
        samples.append(Sample(paths, _random_features(3, encoder, recipe.seed + number)))
    return samples


def _encoded(recorded: LeRobotDataset, keys: Sequence[str], encoder: TimmEncoder) -> Tensor:
    """(F, P, D) float64 features of recorded frames."""
    pixels = [
        resize_frames(torch.from_numpy(as_rgb(recorded.frames.read(key)))[None], encoder.image_size)
        for key in keys
    ]
    with torch.no_grad():
        return encoder.encode(torch.cat(pixels)).double()


def _random_features(num_frames: int, encoder: TimmEncoder, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    shape = (num_frames, *encoder.row_shape)
    return torch.randn(shape, dtype=torch.float64, generator=draw)


def _open(data_path: str, split: str) -> LeRobotDataset:
    recorded = LeRobotDataset(FilePath(data_path) / "recorded" / split)
    if len(recorded) == 0:
        raise UserError(f"{recorded.root}: no episode; record some first (vla-nav record)")
    return recorded


def _plain(recipe: VerifyRecipe) -> Embodiment:
    """An embodiment that the action space was made for."""
    described = recipe.action_space.describe()
    turn, step = described.get("turn_deg", 15.0), described.get("step_m", 0.25)
    has_depth = recipe.model.prompt.depth
    return plain_embodiment(float(str(turn)), float(str(step)), has_depth=has_depth)


def _cut(model: ModelConfig, max_layers: int | None) -> ModelConfig:
    """The configuration with fewer layers, where the backbone is random."""
    layers = model.backbone.options.get("num_hidden_layers")
    if max_layers is None or layers is None or model.backbone.source != "config":
        return model
    options = {**model.backbone.options, "num_hidden_layers": min(int(layers), max_layers)}
    options.pop("layer_types", None)
    return replace(model, backbone=replace(model.backbone, options=options))
