"""The values of a training run, checked when they are read: `conf/training/*.yaml` is this class.

Every fault is a `UserError` that names the key, the value got and the values allowed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from vla_nav.errors import UserError, require_count, unknown_name
from vla_nav.training.optimiser import OptimiserSettings
from vla_nav.training.schedule import Budget
from vla_nav.tree.partition_types import PartitionMode

_NORMALISATIONS = ("path_mean", "token_mean", "step_sum")
BALANCES = ("cost", "none")


@dataclass(frozen=True, slots=True)
class ValidationSettings:
    """Offline validation: teacher-forced loss and accuracies, every `every_steps` steps.

    split: a recorded split of the same data set, or None to hold out scenes of the training split.
    holdout_share: share of the training scenes held out when `split` is None (0: no validation).
    max_episodes: at most so many episodes, evenly spread; None for all.
    """

    split: str | None = None
    holdout_share: float = 0.0
    every_steps: int = 500
    max_episodes: int | None = 256

    def __post_init__(self) -> None:
        if not 0.0 <= self.holdout_share < 1.0:
            raise UserError(
                f"training.validation.holdout_share={self.holdout_share}; allowed: 0 <= share < 1"
            )
        if self.every_steps < 1:
            raise UserError(f"training.validation.every_steps={self.every_steps}; 1 or more")


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """Packs that do not fit in memory: computed in partitions of at most `tokens` tokens.

    tokens: None never cuts. mode: recompute (memory of one partition and the tree's keys and
    values; one more forward of what other partitions read) or keep (no token twice; memory of a
    chain of partitions: for bushy trees).
    """

    tokens: int | None = None
    mode: PartitionMode = "recompute"

    def __post_init__(self) -> None:
        require_count("training.partition.tokens", self.tokens, or_null=True)
        if self.mode not in get_args(PartitionMode):
            raise unknown_name("training.partition.mode", self.mode, get_args(PartitionMode))


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """A run: its budget, packs, optimiser, schedule, loss normalisation and validation.

    pack_tokens: token budget of one pack (several whole trees). accumulate: packs per optimiser
    step and rank. partition: packs of more tokens than it says are computed in partitions, so that
    pack_tokens may be larger than what fits in memory. parallel_packs: packs of a step that are
    computed at once, each by one thread of its own (CPU only; set num_threads to 1 with it).
    balance: cost (the trees of a step are divided into packs and ranks of equal predicted cost) or
    none (packs as they were filled). cost_profile: a profile of this model on this machine that
    costs are fitted to; None: its FLOPs.
    dry_run: the costliest pack is taken forward and backward before the first step, and a run that
    does not fit in memory is refused.
    verify_frames: what is compared when a frame cache is opened, digests (of every byte) or sizes.
    warmup_share and final_share: see `vla_nav.training.schedule`.
    """

    pack_tokens: int = 8192
    accumulate: int = 1
    parallel_packs: int = 1
    balance: str = "cost"
    cost_profile: str | None = None
    budget: Budget = field(default_factory=lambda: Budget(max_steps=1000))
    warmup_share: float = 0.03
    final_share: float = 0.02
    optimiser: OptimiserSettings = field(default_factory=OptimiserSettings)
    normalisation: str = "path_mean"
    validation: ValidationSettings = field(default_factory=ValidationSettings)
    partition: PartitionSettings = field(default_factory=PartitionSettings)
    dry_run: bool = True
    verify_frames: str = "digests"
    log_every_steps: int = 20

    def __post_init__(self) -> None:
        for name in ("pack_tokens", "accumulate", "parallel_packs", "log_every_steps"):
            require_count(f"training.{name}", getattr(self, name))
        if self.normalisation not in _NORMALISATIONS:
            raise unknown_name("losses.normalisation", self.normalisation, _NORMALISATIONS)
        if self.balance not in BALANCES:
            raise unknown_name("training.balance", str(self.balance), BALANCES)
        if self.verify_frames not in ("digests", "sizes"):
            raise unknown_name(
                "training.verify_frames", str(self.verify_frames), ("digests", "sizes")
            )
        if self.parallel_packs > 1 and self.partition.tokens is not None:
            raise UserError(
                f"training.parallel_packs={self.parallel_packs} computes whole packs at once; with "
                "training.partition.tokens set it to 1"
            )
        if not 0.0 <= self.warmup_share < 1.0:
            raise UserError(f"training.warmup_share={self.warmup_share}; allowed: 0 <= share < 1")
