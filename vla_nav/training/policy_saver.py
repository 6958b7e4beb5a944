"""The policy bundle of a run, written whenever its weights are kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from lightning.pytorch import LightningModule, Trainer

from vla_nav.models.assembly import Assembled
from vla_nav.models.checkpoint import save_policy
from vla_nav.training.ema import WeightAverage
from vla_nav.training.parallel_shards import whole_state
from vla_nav.training.recipe import Recipe


@dataclass(frozen=True)
class PolicySaver:
    """Writes the policy bundle with averaged weights where there are any."""

    recipe: Recipe
    assembled: Assembled
    folder: Path
    fingerprint: str
    ema: WeightAverage | None

    def into(self, trainer: Trainer, pl_module: LightningModule, folder: Path) -> None:
        """The same into another folder."""
        replace(self, folder=folder)(trainer, pl_module)

    def __call__(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A collective call: where weights are sharded, every rank gives its part."""
        model = self.assembled.model
        weights = whole_state(model.state_dict())
        if self.ema is not None:
            weights.update(whole_state(self.ema.average))
        if not trainer.is_global_zero:
            return
        save_policy(
            self.folder,
            self.assembled,
            self.recipe.model,
            encoder=self.recipe.encoder,
            data={
                "path": self.recipe.data_path,
                "split": self.recipe.split,
                "mixture": [source.as_json() for source in self.recipe.mixture] or None,
                "fingerprint": self.fingerprint,
                "steps": trainer.global_step,
            },
            weights=weights,
        )
