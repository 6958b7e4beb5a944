"""The policy of a run that still trains, played in closed loop: the row `policy`, nothing else.

    policy folder --load--> network --Table--> records --aggregate--> n, sr, spl, ne_m, ndtw, ...
                                         `--> a JSON line per episode

The same episodes by the same rules as `vla-nav evaluate` with these values, under the body and
decision rule of the policy. Nothing is printed and nothing continued: an evaluation that was
interrupted is played again.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from vla_nav.actions.targets import SPACES_WITH_TARGETS
from vla_nav.actions.types import ActionSpace
from vla_nav.episodes.types import Embodiment, Episode
from vla_nav.errors import UserError, require_count, unknown_name
from vla_nav.evaluation.aggregate import FLAG_POLICIES, aggregate
from vla_nav.evaluation.approach import EXECUTIONS
from vla_nav.evaluation.conditions import Instructions, conditions_named
from vla_nav.evaluation.metrics import SuccessRule
from vla_nav.evaluation.play import PlaySettings, Unit
from vla_nav.evaluation.results import key_of
from vla_nav.evaluation.selection import select
from vla_nav.evaluation.setup import BACKENDS, read_episodes, scene_files
from vla_nav.evaluation.slots import Crashed, Table
from vla_nav.evaluation.tasks import refuse_other_conditions
from vla_nav.files import atomic_path
from vla_nav.models.checkpoint import load_policy
from vla_nav.simulators.pool import SimulatorPool

_KEY = "callbacks.closed_loop"
_COUNTS = ("num_slots", "max_primitives")


@dataclass(eq=False)
class TrainingEvaluator:
    """Plays policies on one selection of episodes, read and checked when it is made.

    data: path of the episodes and scenes, as in conf/evaluate.yaml. simulators: as in
    conf/simulators; its body is not read. deterministic: one slot per forward, so that a batch
    cannot round otherwise. num_workers: simulator processes; 0: this one. The others: see
    conf/evaluation. Raises `UserError` for a value that does not fit and a selection that is empty.
    """

    data: Mapping[str, Any]
    simulators: Mapping[str, Any]
    seed: int = 0
    num_episodes: int | None = 50
    selection_seed: int = 0
    success_m: float = 3.0
    is_strict: bool = True
    flag_policy: str = "exclude"
    max_primitives: int = 500
    execution: str = "discrete"
    temperature: float = 0.0
    allow_mismatch: bool = False
    num_slots: int = 50
    deterministic: bool = True
    num_workers: int = 0
    episodes: tuple[Episode, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in _COUNTS:
            require_count(f"{_KEY}.{name}", getattr(self, name))
        require_count(f"{_KEY}.num_workers", self.num_workers, least=0)
        for name, allowed in (("flag_policy", FLAG_POLICIES), ("execution", EXECUTIONS)):
            if getattr(self, name) not in allowed:
                raise unknown_name(f"{_KEY}.{name}", str(getattr(self, name)), allowed)
        if self.simulators["backend"] not in BACKENDS:
            raise unknown_name(f"{_KEY}.simulators.backend", self.simulators["backend"], BACKENDS)
        if self.temperature < 0:
            raise UserError(f"{_KEY}.temperature={self.temperature}: allowed: 0 and more")
        self._rule = SuccessRule(self.success_m, (), self.is_strict)
        everything = read_episodes(self.data)
        self._instructions = Instructions(everything, seed=self.seed)
        self.episodes = select(
            everything,
            source=self.data["episodes"],
            seed=self.selection_seed,
            num_episodes=self.num_episodes,
        )
        self._scenes = scene_files(self.episodes, self.data["scenes"])

    def check(self, body: Embodiment, space: ActionSpace, history: str) -> None:
        """Raise `UserError` for a policy that cannot be played, or only under other conditions than
        those of the episodes."""
        if history == "summary":
            raise UserError(
                f"{_KEY}: tree.history=summary, and an evaluation has no source of summaries; "
                "train without callbacks.closed_loop, or another history"
            )
        if self.execution == "geodesic" and space.name not in SPACES_WITH_TARGETS:
            raise UserError(
                f"{_KEY}.execution=geodesic: actions={space.name} name no place to go to; use "
                f"discrete, or actions={' or '.join(SPACES_WITH_TARGETS)}"
            )
        options = {"allow_mismatch": self.allow_mismatch}
        config = {"evaluation": options, "data": self.data}
        refuse_other_conditions(config, self.episodes, body, self._rule)

    def __call__(
        self,
        policy: Path,
        *,
        records: Path,
        device: torch.device,
        is_given_up: Callable[[], bool] = lambda: False,
    ) -> dict[str, Any] | None:
        """The row of a policy folder, with num_missing; one line per episode in `records`.

        is_given_up: asked after every episode; the row is None once it says so.
        """
        loaded = load_policy(policy, device=device)
        (row,) = conditions_named(["policy"])
        settings = PlaySettings(
            embodiment=loaded.embodiment,
            decision=loaded.decision,
            success=self._rule,
            seed=self.seed,
            max_primitives=self.max_primitives,
            expert_stop_radius_m=0.5,
            chance_stop_probability=0.0,
            execution=self.execution,
        )
        pool = SimulatorPool(
            self.simulators["backend"],
            loaded.embodiment,
            self.simulators["options"],
            num_workers=self.num_workers,
            python=self.simulators["python"],
            timeout_s=self.simulators["timeout_s"],
        )
        with contextlib.closing(pool):
            table = Table(
                pool,
                settings,
                self._instructions,
                scene_path=lambda episode: self._scenes[episode.scene_id],
                network=loaded.policy(seed=self.seed, temperature=self.temperature),
                num_slots=self.num_slots,
                is_one_by_one=self.deterministic,
            )
            played = []
            for ended in table.play([Unit(row, episode) for episode in self.episodes]):
                if is_given_up():
                    return None
                if not isinstance(ended, Crashed):
                    played.append(ended.record)
        played.sort(key=key_of)  # sums do not depend on the order in which episodes ended
        with atomic_path(records) as temporary:
            temporary.write_text("".join(json.dumps(record) + "\n" for record in played))
        found = aggregate(
            row.name,
            played,
            num_expected=len(self.episodes),
            flag_policy=self.flag_policy,
            seed=self.seed,
        )
        return {**found, "num_missing": len(self.episodes) - len(played)}
