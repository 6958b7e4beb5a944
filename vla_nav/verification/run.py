"""`vla-nav verify`: the proof on a user's model, layout and data, or on generated episodes.

    recorded episodes (data.path)  or  generated ones  --prompt builder--> paths --> trees
                                                                             |
    float64, CPU   the model, shrunk        tree against flat paths, norms in float64 and stock
                                            partitions and accumulation against the whole pack
                                            leakage probes, labels counted
    bf16           the model at full size   drift of the tree beside drift of flat against flat,
                   GPU where there is one   the configured attention against its reference

What differs from the configuration asked for (layers, width, attention) stands in the report.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vla_nav.attention.registry import backend
from vla_nav.models.assembly import Assembled, assemble
from vla_nav.models.vla import VLA
from vla_nav.training.recorded_split import require_conventions
from vla_nav.tree import pack, tree_stats
from vla_nav.verification.equivalence import (
    FLOAT64_HYBRID,
    FLOAT64_NORMS,
    STOCK,
    STOCK_HYBRID,
    Bounds,
    check_equivalence,
    trees_of,
)
from vla_nav.verification.float64_norms import float64_norms
from vla_nav.verification.full_size import check_full_size, describe_model, full_model, versions
from vla_nav.verification.leakage import check_leakage
from vla_nav.verification.oracle import FlatForward, Sample
from vla_nav.verification.progress import Paced, Progress
from vla_nav.verification.recipe import VerifyRecipe, VerifySettings
from vla_nav.verification.report import Finding, as_values, largest, num_violated
from vla_nav.verification.samples import (
    EpisodeSample,
    episode_samples,
    generated_embodiment,
    open_recorded_split,
    random_samples,
)
from vla_nav.verification.shrink import compact_text, shrink
from vla_nav.verification.splits import check_accumulation, check_partitions
from vla_nav.verification.supervision import check_supervision
from vla_nav.verification.trained_weights import encoder_of, give_weights, require_body
from vla_nav.verification.vla_forwards import (
    defined_forward,
    flat_copy,
    flat_forward,
    packed_forward,
)
from vla_nav.vision.encoder import TimmEncoder

__all__ = ["Verified", "VerifyRecipe", "VerifySettings", "verify"]


class Verified(NamedTuple):
    """All findings, and what they are of: configuration, versions, what was shrunk."""

    findings: list[Finding]
    summary: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """One JSON report: the summary and the rows of the table."""
        violated = num_violated(self.findings)
        return {**self.summary, "violated": violated, "findings": as_values(self.findings)}


def verify(recipe: VerifyRecipe, *, progress: Progress = lambda line: None) -> Verified:
    """All findings; the caller prints them and decides about the exit code.

    progress: told what begins, one line each.
    """
    settings = recipe.settings
    encoder = encoder_of(recipe)
    small = shrink(recipe.model, max_layers=settings.max_layers, max_width=settings.max_width)
    recorded = None
    if recipe.data_path is not None:
        recorded = open_recorded_split(recipe.data_path, recipe.split)
    if recorded is None and recipe.embodiment is not None:
        embodiment = recipe.embodiment
    elif recorded is None:
        embodiment = generated_embodiment(recipe.action_space, has_depth=recipe.model.prompt.depth)
    else:
        embodiment = recorded.embodiment
        require_body(recipe, embodiment)
    large = None
    if settings.drift_episodes:
        progress("building the model at full size")
        large = full_model(recipe, encoder, embodiment)
    assembled = assemble(
        small.model,
        action_space=recipe.action_space,
        embodiment=embodiment,
        layout=recipe.layout,
        encoder=encoder,
        attention=_exact_attention(recipe.attention),
    )
    give_weights(assembled.model, recipe, is_whole=not small.changes)
    if recorded is not None:
        require_conventions(recorded, assembled.prompt)
    samples = episode_samples(
        assembled.prompt,
        encoder,
        recorded,
        num_episodes=settings.num_episodes,
        max_steps=settings.steps(recipe.layout),
        supervise=recipe.supervise,
        group=recipe.group,
        seed=recipe.seed,
    )
    num_text = assembled.prompt.vocabulary.num_text
    findings = _exact(recipe, assembled, encoder, samples, progress)
    used = assembled.model.vocabulary.num_text
    changes = list(small.changes)
    if changes and recipe.trained is not None:
        changes.append("trained weights -> random")
    shrunk = [*changes, f"text table {num_text} -> {used} rows (those that occur)"]
    if recipe.attention != assembled.model.attention_name:
        shrunk.append(f"attention {recipe.attention} -> {assembled.model.attention_name}")
    full = None
    if large is not None:
        full = check_full_size(
            large,
            [item.sample for item in samples[: settings.drift_episodes]],
            normalisation=recipe.normalisation,
            precision=recipe.precision,
            progress=progress,
        )
        findings += full.findings
    summary = {
        "subject": _subject(recipe, samples),
        "float64": {"device": "cpu", "shrunk": shrunk, "model": describe_model(assembled.model)},
        "bf16": None if full is None else full.summary,
        "versions": versions(),
    }
    return Verified(findings, summary)


def _exact(
    recipe: VerifyRecipe,
    assembled: Assembled,
    encoder: TimmEncoder,
    samples: Sequence[EpisodeSample],
    progress: Progress,
) -> list[Finding]:
    """The float64 part. The model gets a compact text table, and no encoder where it is frozen."""
    settings, normalisation = recipe.settings, recipe.normalisation
    random = random_samples(
        assembled.prompt, encoder, num_trees=settings.num_trees, seed=recipe.seed
    )
    model = assembled.model
    if encoder.is_frozen:
        model.encoder = None
    # Activation checkpointing hooks the inputs, and a copy of a copy of a hook's handle fails.
    model.backbone.model.disable_input_require_grads()
    model, both = compact_text(model, [*(item.sample for item in samples), *random])
    episodes, random = both[: len(samples)], both[len(samples) :]
    model.double()
    exact = float64_norms(model)
    findings = []

    def equal(
        subject: Any, some: list[Sample], bounds: Bounds, section: str, forward: FlatForward
    ) -> None:
        num_paths = sum(len(sample.paths) for sample in some)
        progress(f"float64: {section}: {num_paths} flat paths")
        rows = check_equivalence(
            subject,
            some,
            packed_forward=packed_forward,
            flat_forward=_paced(forward, Paced(progress, "flat path", num_paths)),
            flat_model=flat_copy(subject),
            normalisation=normalisation,
            bounds=bounds,
        )
        findings.extend(_in(section, rows))

    is_hybrid = model.backbone.num_recurrent > 0
    how = "norms and recurrences" if is_hybrid else "norms"
    in_float64 = FLOAT64_HYBRID if is_hybrid else FLOAT64_NORMS
    section = f"tree against flat paths, {how} in float64"
    equal(exact, episodes, in_float64, section, defined_forward)
    if random:
        section = f"random trees against flat paths, {how} in float64"
        equal(exact, random, in_float64, section, defined_forward)
    section = f"all of them, unmodified backbone (its {how} compute in float32)"
    equal(model, both, STOCK_HYBRID if is_hybrid else STOCK, section, flat_forward)
    if settings.max_parts:
        progress(f"float64: up to {settings.max_parts} partitions, two modes")
        rows = check_partitions(
            exact,
            both,
            normalisation=normalisation,
            max_parts=settings.max_parts,
            bounds=in_float64,
        )
        findings += _in("partitions against the whole pack", rows)
    progress("float64: accumulation, leakage probes, labels")
    findings += _in(
        "accumulation against one pack", check_accumulation(exact, both, bounds=in_float64)
    )
    num_passes = 2 + settings.num_probes + len(episodes[0].frames)
    rows = check_leakage(
        model,
        episodes,
        packed_forward=_paced(packed_forward, Paced(progress, "forward pass", num_passes)),
        num_probes=settings.num_probes,
        seed=recipe.seed,
    )
    if not encoder.is_frozen:
        rows.append(_encoder_gradient(model, episodes))
    findings += _in("who moves whom", rows)
    rows = check_supervision(
        samples,
        trees_of([item.sample for item in samples]),
        assembled.prompt,
        supervise=recipe.supervise,
    )
    return findings + _in("labels of the episodes", rows)


def _encoder_gradient(model: VLA, samples: Sequence[Sample]) -> Finding:
    """The largest gradient of a trainable encoder: above zero, or its equality says nothing."""
    trained = copy.deepcopy(model)
    logits = packed_forward(
        trained, pack(trees_of(samples)), torch.cat([sample.frames for sample in samples])
    )
    torch.autograd.backward(logits.square().sum())
    assert trained.encoder is not None
    size = largest(
        float(value.grad.abs().max())
        for value in trained.encoder.parameters()
        if value.grad is not None
    )
    return Finding("gradient reaches the encoder", size, None, 0.0, must_differ=True)


def _paced(forward: Callable[..., Tensor], paced: Paced) -> Callable[..., Tensor]:
    """`forward`, counted."""

    def counted(*arguments: Any) -> Tensor:
        paced.step()
        return forward(*arguments)

    return counted


def _in(section: str, findings: Sequence[Finding]) -> list[Finding]:
    return [replace(finding, section=section) for finding in findings]


def _exact_attention(name: str) -> str:
    """The backend of the float64 part: the configured one where it has a backward on the CPU."""
    return name if "cpu" in backend(name).device_types else "sdpa"


def _subject(recipe: VerifyRecipe, samples: Sequence[EpisodeSample]) -> dict[str, Any]:
    trees = trees_of([item.sample for item in samples])
    return {
        "data": recipe.data_path or "generated",
        "split": recipe.split if recipe.data_path else None,
        "episodes": ["/".join(episode.key) for item in samples for episode in item.episodes],
        "layout": asdict(recipe.layout),
        "supervise": recipe.supervise,
        "group": recipe.group,
        "actions": recipe.action_space.describe(),
        "normalisation": recipe.normalisation,
        "attention": recipe.attention,
        "encoder": recipe.encoder,
        "model": recipe.model.describe(),
        "paths": sum(tree.num_paths for tree in trees),
        "flat_tokens": sum(tree_stats(tree).num_flat_tokens for tree in trees),
        "tree_tokens": sum(tree.num_tokens for tree in trees),
        "settings": asdict(recipe.settings),
        "seed": recipe.seed,
    }
