"""What `vla-nav verify` is given: the same parts as training, and how much of them to check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from torch import Tensor

from vla_nav.actions.types import ActionSpace
from vla_nav.episodes.types import Embodiment
from vla_nav.errors import require_count, unknown_name
from vla_nav.losses import Normalisation
from vla_nav.models.assembly import ModelConfig
from vla_nav.training.grouping import GROUPS
from vla_nav.tree.layout import SUPERVISION, Layout

_STEPS = 8  # of a generated or recorded episode, where the layout does not ask for more
_BEYOND = 4  # steps after a window, a resampling or a summary begins to bind


@dataclass(frozen=True)
class VerifySettings:
    """How much is verified: `conf/verification/*.yaml` is this class.

    num_episodes, num_trees: how many of each. max_steps: the last steps of an episode; None: 8, or
    so many that the layout's window binds. max_layers, max_width: of the backbone in the float64
    part; None for all. num_probes: leakage probes. max_parts: partitions. drift_episodes: of the
    bfloat16 part at full size; 0 leaves it out.
    """

    num_episodes: int = 2
    max_steps: int | None = None
    num_trees: int = 2
    max_layers: int | None = 2
    max_width: int | None = 512
    num_probes: int = 12
    max_parts: int = 5
    drift_episodes: int = 1

    def __post_init__(self) -> None:
        for name, least, or_null in (
            ("num_episodes", 1, False),
            ("max_steps", 1, True),
            ("num_trees", 0, False),
            ("max_layers", 1, True),
            ("max_width", 8, True),
            ("num_probes", 0, False),
            ("max_parts", 0, False),
            ("drift_episodes", 0, False),
        ):
            value = getattr(self, name)
            require_count(f"verification.{name}", value, least=least, or_null=or_null)

    def steps(self, layout: Layout) -> int:
        """Steps of an episode under `layout`."""
        if self.max_steps is not None:
            return self.max_steps
        size = {
            "window": layout.window,
            "uniform": layout.uniform,
            "summary": layout.summary_keep + layout.summary_every,
        }.get(layout.history, 0)
        return max(_STEPS, size + _BEYOND)


@dataclass(frozen=True)
class VerifyRecipe:
    """What is verified.

    encoder: keywords of `TimmEncoder`. attention: the backend of training. data_path None:
    generated episodes. group: episode | trajectory, what one tree is made of. precision: the
    trainer's; `bf16-true` has bfloat16 weights, anything else float32 weights under autocast.
    embodiment, trained: body and weights of a trained policy; None: the data's, and random ones.
    """

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
    group: str = "episode"
    precision: str = "bf16-mixed"
    seed: int = 0
    embodiment: Embodiment | None = None
    trained: Mapping[str, Tensor] | None = None

    def __post_init__(self) -> None:
        for key, value, allowed in (
            ("tree.group", self.group, GROUPS),
            ("tree.supervise", self.supervise, SUPERVISION),
            ("losses.normalisation", self.normalisation, get_args(Normalisation)),
        ):
            if value not in allowed:
                raise unknown_name(key, str(value), allowed)
