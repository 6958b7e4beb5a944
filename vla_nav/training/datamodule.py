"""The data of a run: recorded splits, their frame caches, held-out episodes, and the loaders.

training   step s -> StepDataset[s], from the trainer's own step number on: the position in the
           data needs no state of its own, whatever the number of workers
validation another recorded split, or scenes of the training split that no step ever takes
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader

from vla_nav.attention.registry import backend
from vla_nav.errors import UserError
from vla_nav.models.prompt import PromptBuilder
from vla_nav.training.batch import Batch, Pack, PackMaker
from vla_nav.training.cost_model import CostModel, PackCosts
from vla_nav.training.dataset import PackDataset, RecordedTrees, StepDataset, StepSampler
from vla_nav.training.held_out import held_out
from vla_nav.training.loader_faults import FaultsAsItems, require_item
from vla_nav.training.mixed_trees import MixedTrees
from vla_nav.training.mixture import EpochDraws, Source, require_same_body
from vla_nav.training.packing import PackOrder, require_fitting
from vla_nav.training.path_lengths import require_positions
from vla_nav.training.recorded_split import open_frames, open_recorded, require_conventions
from vla_nav.training.run_folder import is_first_of_machine
from vla_nav.training.settings import TrainingSettings
from vla_nav.training.signals import ignore_in_worker
from vla_nav.training.tree_counts import estimate_counts
from vla_nav.vision.encoder import TimmEncoder


class RecordedData(LightningDataModule):
    """Loaders over recorded splits. Everything is opened and checked by the constructor.

    sources: what is trained on; None: `split` of `data_path` alone, which is also what a
    validation split belongs to. cost: makes what packs are balanced by, where they are.
    """

    def __init__(
        self,
        data_path: str | Path,
        split: str,
        *,
        builder: PromptBuilder,
        encoder: TimmEncoder,
        attention: str,
        settings: TrainingSettings,
        supervise: str = "own",
        group: str = "episode",
        seed: int = 0,
        num_workers: int = 0,
        sources: Sequence[Source] | None = None,
        cost: Callable[[], CostModel] = CostModel,
    ) -> None:
        super().__init__()
        self._settings, self._seed, self._num_workers = settings, seed, num_workers
        self._make_pack = PackMaker(backend(attention), settings.partition)
        self._supervise, self._group = supervise, group
        self._open = lambda path, name: self._trees(path, name, builder, encoder)
        self._sources = tuple(sources or (Source(str(data_path), split),))
        parts = [self._open(source.path, source.split) for source in self._sources]
        stated = [part.episodes.conventions for part in parts]
        require_same_body(list(zip(self._sources, stated, strict=True)))
        self._train = MixedTrees(parts)
        self.fingerprint = self._train.fingerprint()
        self._lengths = self._train.lengths()
        require_fitting(self._lengths, settings.pack_tokens, self._train.names())
        self._split_off_validation(data_path)
        self._cost = cost
        self.num_steps: int | None = None

    @property
    def num_episodes(self) -> int:
        """Episodes trained on."""
        return sum(len(self._train.members[index]) for index in self._train_indices.tolist())

    @property
    def num_validation(self) -> int:
        """Episodes validated on."""
        return sum(len(self._val.members[index]) for index in self._val_indices)

    def require_positions(self, limit: int) -> str | None:
        """Hold all trees, those of the validation too, to the positions of the backbone: see
        `vla_nav.training.path_lengths`."""
        validated = self._val.parts if isinstance(self._val, MixedTrees) else (self._val,)
        return require_positions([*dict.fromkeys((*self._train.parts, *validated))], limit)

    def text_ids(self) -> set[int]:
        """Rows of the text table that the training episodes use."""
        return self._train.text_ids(self._train_indices.tolist())

    def steps_of_epochs(self, num_epochs: float, num_ranks: int) -> int:
        """Optimiser steps of a number of epochs."""
        return self._order(0, num_ranks).steps_of_epochs(int(num_epochs))

    def extreme_pack(self, is_longest: bool) -> Pack:
        """The longest training tree with the longest ones that fit beside it: no pack of the run
        needs more memory. Or the shortest tree alone."""
        lengths = self._lengths[self._train_indices]
        order = np.argsort(-lengths, kind="stable").tolist()
        places, room = [], self._settings.pack_tokens
        for place in order if is_longest else order[-1:]:
            if lengths[place] <= room:
                places.append(int(self._train_indices[place]))
                room -= int(lengths[place])
        return self._train.pack(places, self._make_pack)

    def episodes_of_step(self, step: int, num_ranks: int) -> list[list[list[str]]]:
        """The names of the trees in every rank's packs of the step that ends as number `step`."""
        names, taken = self._train.names(), self._train_indices.tolist()
        return [
            [[names[taken[place]] for place in places] for places in packs]
            for packs in self._order(0, num_ranks).ranks(step - 1)
        ]

    def train_dataloader(self) -> DataLoader[Batch]:
        """Batches from the trainer's current step on."""
        trainer = self.trainer
        assert trainer is not None
        dataset = StepDataset(
            self._train,
            self._train_indices,
            self._order(trainer.global_rank, trainer.world_size),
            self._make_pack,
        )
        return self._loader(dataset, sampler=StepSampler(trainer.global_step, self.num_steps))

    def val_dataloader(self) -> DataLoader[Batch]:
        """The validation episodes in their own order."""
        trainer = self.trainer
        assert trainer is not None
        dataset = PackDataset(
            self._val,
            self._val_indices,
            self._val_lengths,
            pack_tokens=self._settings.pack_tokens,
            make_pack=self._make_pack,
            rank=trainer.global_rank,
            num_ranks=trainer.world_size,
        )
        return self._loader(dataset, is_validation=True)

    def on_before_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Raises the fault of the data that a loader worker met in the place of this batch."""
        return require_item(batch)

    def transfer_batch_to_device(
        self, batch: Batch, device: torch.device, dataloader_idx: int
    ) -> Batch:
        """Copies out of page-locked memory, queued behind the step before: this process goes on."""
        return batch.to(device, non_blocking=device.type == "cuda")

    def _loader(
        self, dataset: Any, *, sampler: Any = None, is_validation: bool = False
    ) -> DataLoader[Batch]:
        num_workers = min(self._num_workers, 1) if is_validation else self._num_workers
        return DataLoader(
            FaultsAsItems(dataset),
            batch_size=None,
            sampler=sampler,
            num_workers=num_workers,
            collate_fn=_unchanged,
            worker_init_fn=ignore_in_worker,
            generator=torch.Generator(),  # else it draws from the generator that steps draw from
            persistent_workers=num_workers > 0,
            prefetch_factor=4 if num_workers else None,
            pin_memory=self.trainer is not None
            and self.trainer.strategy.root_device.type == "cuda",
        )

    @cached_property
    def costs(self) -> PackCosts:
        """Predicted costs of the packs of training trees, counted among those that take part."""
        taken = self._train_indices
        counts = estimate_counts(self._train, self._lengths).counts.take(taken)
        return PackCosts(
            self._cost(), counts, self._settings.partition, bounds=self._lengths[taken]
        )

    def _order(self, rank: int, num_ranks: int) -> PackOrder:
        settings = self._settings
        is_shared = settings.accumulate * num_ranks > 1
        return PackOrder(
            self._lengths[self._train_indices],
            pack_tokens=settings.pack_tokens,
            accumulate=settings.accumulate,
            seed=self._seed,
            rank=rank,
            num_ranks=num_ranks,
            draws=EpochDraws(
                self._train.sizes,
                [source.weight for source in self._sources],
                seed=self._seed,
                members=self._train_indices,
            ),
            costs=self.costs if settings.balance == "cost" and is_shared else None,
        )

    def _trees(
        self, data_path: str | Path, split: str, builder: PromptBuilder, encoder: TimmEncoder
    ) -> RecordedTrees:
        episodes = open_recorded(data_path, split)
        require_conventions(episodes, builder)
        verify = self._settings.verify_frames if is_first_of_machine() else "sizes"
        frames = open_frames(data_path, split, encoder, verify=verify)
        return RecordedTrees(
            episodes, builder, frames, supervise=self._supervise, group=self._group
        )

    def _split_off_validation(self, data_path: str | Path) -> None:
        validation = self._settings.validation
        if validation.split is not None:
            if str(Source(str(data_path), validation.split)) in map(str, self._sources):
                raise UserError(
                    f"training.validation.split={validation.split} is the training split; choose "
                    "another one, or null with a holdout_share"
                )
            trees = self._open(data_path, validation.split)
            self._val: RecordedTrees | MixedTrees = trees
            self._val_lengths = trees.lengths()
            self._train_indices = np.arange(len(self._train))
            candidates = np.arange(len(trees))
        else:
            is_held_out = held_out(self._train.scene_ids(), validation.holdout_share, self._seed)
            self._val, self._val_lengths = self._train, self._lengths
            self._train_indices = np.flatnonzero(~is_held_out)
            candidates = np.flatnonzero(is_held_out)
        wanted = validation.max_episodes
        if wanted is not None and len(candidates) > wanted:
            candidates = candidates[np.linspace(0, len(candidates) - 1, wanted).astype(int)]
        self._val_indices = candidates.tolist()


def _unchanged(batch: Batch) -> Batch:
    return batch
