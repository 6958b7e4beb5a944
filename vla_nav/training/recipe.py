"""What is trained, and on what: the beginning that training and its profile share.

Recipe --assembled_data--> model with its prompt (Assembled), recorded episodes as packs
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from vla_nav.actions.types import ActionSpace
from vla_nav.models.assembly import Assembled, ModelConfig, assemble
from vla_nav.models.prompt import Layout
from vla_nav.models.vocabulary import Vocabulary
from vla_nav.training.cost_fit import read_costs
from vla_nav.training.cost_model import CostModel
from vla_nav.training.datamodule import RecordedData
from vla_nav.training.mixture import Source
from vla_nav.training.recorded_split import open_recorded
from vla_nav.training.settings import TrainingSettings
from vla_nav.training.shapes import encoder_flops, flop_model
from vla_nav.vision.encoder import TimmEncoder

Data = TypeVar("Data", bound=RecordedData)


@dataclass(frozen=True)
class Recipe:
    """What is trained, and on what.

    encoder: keywords of `TimmEncoder`. attention: a backend's name. supervise: own | all. group:
    episode | trajectory, what makes one tree.
    num_threads: of torch in this process, None for torch's choice. mixture: what is trained on
    instead of `split` of `data_path` alone.
    """

    data_path: str
    split: str
    model: ModelConfig
    encoder: Mapping[str, Any]
    action_space: ActionSpace
    layout: Layout
    settings: TrainingSettings
    supervise: str = "own"
    group: str = "episode"
    attention: str = "sdpa"
    seed: int = 0
    num_workers: int = 0
    num_threads: int | None = None
    mixture: tuple[Source, ...] = ()

    @property
    def sources(self) -> tuple[Source, ...]:
        """What is trained on."""
        return self.mixture or (Source(self.data_path, self.split),)


def assembled_data(recipe: Recipe, kind: type[Data]) -> tuple[Assembled, Data]:
    """The model, initialised by torch's generator as it stands, and its data. Raises `UserError`
    for data that is not there or does not fit the model."""
    encoder = TimmEncoder(**recipe.encoder)
    first = recipe.sources[0]
    assembled = assemble(
        recipe.model,
        action_space=recipe.action_space,
        embodiment=open_recorded(first.path, first.split).embodiment,
        layout=recipe.layout,
        encoder=encoder,
        attention=recipe.attention,
    )
    data = kind(
        recipe.data_path,
        recipe.split,
        builder=assembled.prompt,
        encoder=encoder,
        attention=recipe.attention,
        settings=recipe.settings,
        supervise=recipe.supervise,
        group=recipe.group,
        seed=recipe.seed,
        num_workers=recipe.num_workers,
        sources=recipe.sources,
        cost=lambda: predicted_costs(recipe, assembled.model.vocabulary),
    )
    return assembled, data


def predicted_costs(recipe: Recipe, vocabulary: Vocabulary) -> CostModel:
    """What packs are balanced by: the FLOPs of the configured model, or seconds that were measured.

    Random state stays as it is.
    """
    with torch.random.fork_rng([]):
        flops, _ = flop_model(recipe.model, vocabulary, frame_flops=encoder_flops(recipe.encoder))
    costs, measured = CostModel.from_flops(flops), recipe.settings.cost_profile
    return costs if measured is None else read_costs(measured, costs, attention=recipe.attention)
