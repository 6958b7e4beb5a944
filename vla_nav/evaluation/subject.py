"""Who is evaluated: a checkpoint's policy, under the body and decision rule of its training.

Turn angle, step, cameras and the decision rule are part of the data. A policy evaluated under
others scores low and nobody understands why, so that is refused unless it is allowed explicitly,
and then written into the results.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vla_nav.actions.decisions import DecisionRule
from vla_nav.actions.targets import SPACES_WITH_TARGETS
from vla_nav.episodes.types import Embodiment
from vla_nav.errors import UserError
from vla_nav.evaluation.conditions import Actor, Condition
from vla_nav.evaluation.deciding import Network
from vla_nav.evaluation.setup import embodiment_of


@dataclass(frozen=True)
class Subject:
    """The policy (None where no row needs one), body, rule, digest of the weights, and in what
    body and rule differ from training (empty unless a mismatch is allowed)."""

    network: Network | None
    embodiment: Embodiment
    decision: DecisionRule
    checkpoint: str | None
    differences: tuple[str, ...]


def load_subject(config: Mapping[str, Any], rows: Sequence[Condition]) -> Subject:
    """Load the policy where a row needs it; refuse another body or decision rule than its own."""
    options = config["evaluation"]
    configured = embodiment_of(config["simulators"])
    decision = DecisionRule.parse(options["decision"])
    network_rows = [row.name for row in rows if row.actor is Actor.NETWORK]
    if options["embodiment"] not in ("config", "checkpoint"):
        raise UserError(
            f"evaluation.embodiment={options['embodiment']}: allowed: config, checkpoint"
        )
    if not network_rows:
        if options["embodiment"] == "checkpoint":
            raise UserError(
                "evaluation.embodiment=checkpoint: none of the rows "
                f"{', '.join(row.name for row in rows)} loads a checkpoint; add the row policy, or "
                "set evaluation.embodiment=config"
            )
        return Subject(None, configured, decision, None, ())
    if config["checkpoint"] is None:
        raise UserError(
            f"checkpoint: has no value, and the rows {', '.join(network_rows)} need a policy; give "
            "checkpoint=<policy folder>, or evaluation.rows=[random,expert]"
        )
    import torch

    from vla_nav.models.checkpoint import load_policy, require_same_conditions

    torch.set_num_threads(
        _num_threads(
            options["num_threads"],
            config["num_workers"],
            is_deterministic=options["deterministic"],
        )
    )
    device = options["device"]
    if device not in ("auto", "cpu", "cuda"):
        raise UserError(f"evaluation.device={device}: allowed: auto, cpu, cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("evaluation.device=cuda: there is no CUDA device here; use auto or cpu")
    if device != "cpu" and torch.cuda.is_available():  # shards of one machine share its GPUs
        device = f"cuda:{options['shard'] % torch.cuda.device_count()}"
        torch.cuda.set_device(device)  # kernels that are launched by name go to the current one
    elif device == "auto":
        device = "cpu"
    loaded = load_policy(config["checkpoint"], device=device)
    if loaded.prompt.layout.history == "summary":
        raise UserError(
            f"checkpoint={config['checkpoint']}: trained with tree.history=summary, and an "
            "evaluation has no source of summaries; use VLAPolicy.note_summary from Python, or "
            "train another history"
        )
    body = loaded.embodiment if options["embodiment"] == "checkpoint" else configured
    differences = require_same_conditions(
        loaded, embodiment=body, decision=decision, is_override=options["allow_mismatch"]
    )
    return Subject(
        loaded.policy(seed=config["seed"], temperature=options["temperature"]),
        body,
        decision,
        loaded.digest,
        tuple(differences),
    )


def require_execution(execution: str, network: Network | None) -> str:
    """`execution`, if the policy's actions name places where it needs them."""
    name = None if network is None else network.space.name
    if execution == "geodesic" and name is not None and name not in SPACES_WITH_TARGETS:
        raise UserError(
            f"evaluation.execution=geodesic: the policy's actions={name} are primitive actions, "
            f"which name no place to go to; use evaluation.execution=discrete, or a policy of "
            f"actions={' or '.join(SPACES_WITH_TARGETS)}"
        )
    return execution


def _num_threads(configured: int | None, num_workers: int, *, is_deterministic: bool) -> int:
    """Threads for the policy: by default the cores that the simulator workers leave. Threads that
    compete with workers for cores wait for each other at every operation: ten times slower.

    One where results must not depend on the machine's cores: a sum over threads is rounded by how
    it is cut.
    """
    if configured is None:
        left = max(1, len(os.sched_getaffinity(0)) - num_workers)
        return 1 if is_deterministic else left
    if configured < 1:
        raise UserError(f"evaluation.num_threads={configured}: allowed: 1 and more, or null")
    return configured
