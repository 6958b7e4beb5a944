"""Policy-gradient losses on prefix trees, equal to those of the flat paths.

r = exp(log pi(target) - log pi_old(target)); c, A the coefficient and advantage of a path. What a
path adds to the loss of a target that it supervises (`SequenceClip`: once per path):

    Reinforce      -c A log pi                                         (Williams 1992)
    Clip           -c min(r A, clamp(r, 1 - low, 1 + high) A)         (PPO, GRPO)
    Cispo          -c A stopgrad(clamp(r, 1 - low, 1 + high)) log pi   (MiniMax-M1)
    SequenceClip   -c min(s A, clamp(s, 1 - low, 1 + high) A)          (GSPO)
                   s = exp(mean of log r over the targets of the path)

Paths share targets, A differs. min(r A, clamp(r) A) is not linear in A; but for A >= 0 it is
A min(r, 1 + high), and for A <= 0 it is A max(r, 1 - low). So two sums per target are exact:

    sum over paths = -(positive min(r, 1 + high) + negative max(r, 1 - low))
    positive = sum of c max(A, 0)      negative = sum of c min(A, 0)

provided that the paths agree on log pi_old, so it is part of the merge key. s belongs to a path, so
`SequenceClip` gathers log-probabilities along each path first (`PathTargets`).

KL to a reference policy, k3 = exp(d) - d - 1 with d = log pi_ref - log pi (Schulman 2020), and the
entropy of the whole distribution have the plain weights, sums of c. Normalisations and denominators
are those of `vla_nav/losses/normalisation.py`; a sequence counts once under `path_mean` and
`step_sum`, and once per target under `token_mean`.

Axis legend: M targets of a pack, V logits, K paths, G trees.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn.functional import cross_entropy

from vla_nav.errors import UserError
from vla_nav.losses.cross_entropy import target_columns
from vla_nav.losses.normalisation import (
    Normalisation,
    check_normalisation,
    divided,
    numerator_weights,
)
from vla_nav.losses.predictions import Predictions, summed
from vla_nav.tree.packing import PackedPolicy, PackedTree
from vla_nav.tree.path_targets import PathTargets

# exp(80) is finite in float32, so that a term of weight 0 stays 0 and is not 0 * inf = NaN.
_LARGEST_EXPONENT = 80.0


@dataclass(frozen=True)
class Reinforce:
    """No ratio: needs no behaviour log-probabilities."""


@dataclass(frozen=True)
class Clip:
    """The clipped surrogate per token: the ratio counts up to 1 + high where A > 0 and down to
    1 - low where A < 0."""

    low: float = 0.2
    high: float = 0.2

    def __post_init__(self) -> None:
        _check_range(self.low, self.high)


@dataclass(frozen=True)
class Cispo:
    """The clipped ratio as a constant weight of log pi: no target's gradient is cut off."""

    low: float = 1.0
    high: float = 0.28

    def __post_init__(self) -> None:
        _check_range(self.low, self.high)


@dataclass(frozen=True)
class SequenceClip:
    """The clipped surrogate per path, on the geometric mean of its targets' ratios."""

    low: float = 3e-4
    high: float = 4e-4

    def __post_init__(self) -> None:
        _check_range(self.low, self.high)


Objective = Reinforce | Clip | Cispo | SequenceClip


@dataclass(frozen=True)
class Penalties:
    """Terms with plain weights: + kl * k3(reference) - entropy * H. reference (M,): log-probability
    of every target under the reference policy; needed where kl is not 0."""

    kl: float = 0.0
    entropy: float = 0.0
    reference: torch.Tensor | None = None


class PolicyLoss(NamedTuple):
    """value = numerator / denominator. numerator = policy + kl coefficient * kl - entropy
    coefficient * entropy, all scalars, the last three detached and undivided (they add up over
    packs; kl and entropy are 0 where their coefficient is).

    num_clipped: targets (paths for `SequenceClip`) whose ratio the objective clips.
    log_probs: (M,) log pi, detached.
    """

    value: torch.Tensor
    numerator: torch.Tensor
    denominator: torch.Tensor
    policy: torch.Tensor
    kl: torch.Tensor
    entropy: torch.Tensor
    num_clipped: torch.Tensor
    log_probs: torch.Tensor


def policy_gradient(
    logits: torch.Tensor | Predictions,
    packed: PackedTree,
    objective: Objective,
    *,
    paths: PathTargets | None = None,
    penalties: Penalties | None = None,
    normalisation: Normalisation = "path_mean",
    denominator: torch.Tensor | float | None = None,
    first_id: int = 0,
) -> PolicyLoss:
    """The loss of a pack from logits (M, V) at its predictors, in target order.

    paths: the pack's rows, for `SequenceClip` only. logits, first_id, denominator, precision: as in
    `weighted_cross_entropy`. Raises `ValueError` for a pack without advantages, a target without a
    behaviour log-probability where the objective needs it (on the CPU; NaN on a CUDA device), or a
    missing or wrong `paths` or reference.
    """
    check_normalisation(normalisation)
    penalties = Penalties() if penalties is None else penalties
    targets = target_columns(logits, packed, first_id)
    policy = _policy_of(packed, objective)
    _check_reference(penalties, len(targets))
    weights = numerator_weights(packed.loss_weights, packed, normalisation)
    sequence: _Terms | None = None
    terms_of: _TermsOf
    if isinstance(objective, SequenceClip):
        with torch.no_grad():
            log_probs = _log_probs(logits, targets)
            sequence = _sequence_terms(log_probs, packed, objective, paths, normalisation)
        assert paths is not None
        slopes = sequence_gradient(log_probs, packed, objective, paths, normalisation=normalisation)
        terms_of = _LinearTerms(slopes)
    else:
        terms_of = _TokenTerms(packed, policy, objective, normalisation)

    def numerator_of(
        logits: torch.Tensor, rows: slice
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        log_probs = -cross_entropy(logits, targets[rows], reduction="none")  # (m,)
        terms = terms_of(log_probs, rows)
        kl, entropy = torch.zeros_like(log_probs), torch.zeros_like(log_probs)
        share = weights[rows].to(log_probs.dtype)
        if penalties.kl != 0:
            kl = share * _k3(log_probs, penalties.reference, rows)
        if penalties.entropy != 0:
            entropy = share * _entropy(logits)
        # No target: a connected 0.
        gain = terms.loss.sum() if len(log_probs) else logits.sum()
        numerator = gain + penalties.kl * kl.sum() - penalties.entropy * entropy.sum()
        vectors = (terms.loss, terms.is_clipped, kl, entropy, log_probs)
        return numerator, tuple(vector.detach() for vector in vectors)

    numerator, (loss, is_clipped, kl, entropy, log_probs) = summed(logits, numerator_of)
    gain, num_clipped = loss.sum(), is_clipped.sum()
    if sequence is not None:  # the linear terms have its gradient, not its value
        numerator = numerator + (sequence.loss.sum() - gain)
        gain, num_clipped = sequence.loss.sum(), sequence.is_clipped.sum()
    value, total = divided(numerator, packed, normalisation, denominator)
    return PolicyLoss(
        value, numerator, total, gain, kl.sum(), entropy.sum(), num_clipped, log_probs
    )


def sequence_gradient(
    log_probs: torch.Tensor,
    packed: PackedTree,
    objective: SequenceClip,
    paths: PathTargets,
    *,
    normalisation: Normalisation = "path_mean",
) -> torch.Tensor:
    """(M,) the numerator's derivative by every target's log-probability, at log_probs (M,).

    A path's targets may lie in several partitions. Then take log_probs of the whole pack without
    gradients first; the loss sum(sequence_gradient * log pi) has the same gradient, target by
    target, so each partition computes its own part of it.
    """
    check_normalisation(normalisation)
    _policy_of(packed, objective)
    with torch.enable_grad():
        at = log_probs.detach().requires_grad_()
        loss = _sequence_terms(at, packed, objective, paths, normalisation).loss.sum()
        return torch.autograd.grad(loss, at)[0]


class _Terms(NamedTuple):
    """Weighted losses, and which of them are clipped: (M,), or (K,) for sequences."""

    loss: torch.Tensor
    is_clipped: torch.Tensor


_TermsOf = Callable[[torch.Tensor, slice], _Terms]


class _TokenTerms:
    """Terms of some targets from their log-probabilities (m,)."""

    def __init__(
        self,
        packed: PackedTree,
        policy: PackedPolicy,
        objective: Reinforce | Clip | Cispo,
        normalisation: Normalisation,
    ) -> None:
        self._behaviour, self._objective = policy.log_probs, objective
        self._positive, self._negative = (
            numerator_weights(part, packed, normalisation)
            for part in (policy.positive, policy.negative)
        )

    def __call__(self, log_probs: torch.Tensor, rows: slice) -> _Terms:
        objective, dtype = self._objective, log_probs.dtype
        positive, negative = (part[rows].to(dtype) for part in (self._positive, self._negative))
        if isinstance(objective, Reinforce):
            never = torch.zeros_like(log_probs, dtype=torch.bool)
            return _Terms(-(positive + negative) * log_probs, never)
        ratio = _ratio(log_probs - self._behaviour[rows].to(dtype))
        if isinstance(objective, Clip):
            return _clipped(ratio, positive, negative, objective)
        weight = ratio.detach().clamp(1 - objective.low, 1 + objective.high)
        return _Terms(-(positive + negative) * weight * log_probs, weight != ratio)


class _LinearTerms:
    """Terms with given derivatives (M,) by the log-probabilities."""

    def __init__(self, slopes: torch.Tensor) -> None:
        self._slopes = slopes

    def __call__(self, log_probs: torch.Tensor, rows: slice) -> _Terms:
        never = torch.zeros_like(log_probs, dtype=torch.bool)
        return _Terms(self._slopes[rows] * log_probs, never)


def _log_probs(logits: torch.Tensor | Predictions, targets: torch.Tensor) -> torch.Tensor:
    """(M,) of the targets."""

    def numerator_of(
        logits: torch.Tensor, rows: slice
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        log_probs = -cross_entropy(logits, targets[rows], reduction="none")
        return log_probs.sum(), (log_probs,)

    return summed(logits, numerator_of)[1][0]


def _sequence_terms(
    log_probs: torch.Tensor,
    packed: PackedTree,
    objective: SequenceClip,
    paths: PathTargets | None,
    normalisation: Normalisation,
) -> _Terms:
    if paths is None:
        raise ValueError("SequenceClip needs the pack's paths: give paths=path_targets(trees)")
    policy = _policy_of(packed, objective)
    lengths = paths.offsets.diff()  # (K,)
    _check_paths(paths, packed)
    difference = log_probs - policy.log_probs.to(log_probs.dtype)
    sums = torch.zeros(len(lengths), dtype=log_probs.dtype, device=log_probs.device)
    sums = sums.index_add(0, paths.row, difference[paths.targets])
    ratio = _ratio(sums / lengths.clamp(min=1))
    if normalisation == "path_mean":
        share = 1 / packed.num_paths[paths.tree].double()
    elif normalisation == "token_mean":
        share = lengths.double()
    else:
        share = torch.ones_like(lengths, dtype=torch.float64)
    share = torch.where(lengths > 0, share, 0.0) * paths.coefficient  # (K,)
    positive = (share * paths.advantage.clamp(min=0)).to(log_probs.dtype)
    negative = (share * paths.advantage.clamp(max=0)).to(log_probs.dtype)
    return _clipped(ratio, positive, negative, objective)


def _clipped(
    ratio: torch.Tensor,
    positive: torch.Tensor,
    negative: torch.Tensor,
    objective: Clip | SequenceClip,
) -> _Terms:
    low, high = 1 - objective.low, 1 + objective.high
    loss = -(positive * ratio.clamp(max=high) + negative * ratio.clamp(min=low))
    is_clipped = ((positive != 0) & (ratio > high)) | ((negative != 0) & (ratio < low))
    return _Terms(loss, is_clipped)


def _ratio(log_ratio: torch.Tensor) -> torch.Tensor:
    return log_ratio.clamp(max=_LARGEST_EXPONENT).exp()


def _check_reference(penalties: Penalties, num_targets: int) -> None:
    """Raise `ValueError` unless the KL term has its reference log-probabilities."""
    reference = penalties.reference
    if penalties.kl != 0 and (reference is None or reference.shape != (num_targets,)):
        got = None if reference is None else tuple(reference.shape)
        raise ValueError(
            f"the KL term needs reference log-probabilities ({num_targets},), got {got}"
        )


def _k3(log_probs: torch.Tensor, reference: torch.Tensor | None, rows: slice) -> torch.Tensor:
    """(m,) exp(d) - d - 1 >= 0, an unbiased estimate of KL(pi, reference) at sampled targets."""
    assert reference is not None
    difference = reference.detach()[rows].to(log_probs.dtype) - log_probs
    return _ratio(difference) - difference - 1


def _entropy(logits: torch.Tensor) -> torch.Tensor:
    """(M,) -sum p log p in nats; columns masked by -inf count 0."""
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p.masked_fill(log_p == -torch.inf, 0.0)).sum(-1)


def _policy_of(packed: PackedTree, objective: Objective) -> PackedPolicy:
    """The pack's policy terms, with behaviour log-probabilities where they are needed."""
    policy = packed.policy
    if policy is None:
        raise ValueError("a policy gradient needs advantages: give every path Path(advantage=...)")
    if isinstance(objective, Reinforce) or policy.log_probs.device.type != "cpu":
        return policy
    num_absent = int(policy.log_probs.isnan().sum())
    if num_absent:
        raise ValueError(
            f"{num_absent} of {len(policy.log_probs)} targets have no behaviour log-probability, "
            f"which {type(objective).__name__} needs: give the supervised segments log_probs"
        )
    return policy


def _check_paths(paths: PathTargets, packed: PackedTree) -> None:
    """Raise `ValueError` (on the CPU) unless `paths` are those of the pack: as many, and every
    target in one of them."""
    if paths.targets.device.type != "cpu":
        return
    got = (len(paths.tree), int(paths.targets.max()) + 1 if len(paths.targets) else 0)
    expected = (int(packed.num_paths.sum()), len(packed.target_ids))
    if got != expected:
        raise ValueError(
            f"paths are {got[0]} with {got[1]} targets, the pack has {expected[0]} with "
            f"{expected[1]}; for a partition use sequence_gradient of the whole pack"
        )


def _check_range(low: float, high: float) -> None:
    if not 0 <= low <= 1:
        raise UserError(f"clip low is {low}; allowed: 0 .. 1 (the ratio's floor is 1 - low)")
    if not high >= 0:
        raise UserError(f"clip high is {high}; allowed: 0 or more (the ceiling is 1 + high)")
