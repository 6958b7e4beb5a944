"""Loss curves of tree and of flat training, from the same weights on the same episodes.

    step i   episode i mod n   tree            one pack
                               flat            its paths, packed to a budget
                               flat, smaller   its paths, packed to another budget
    gradient -> clip -> AdamW

There is something to learn: a frame's features show one of a few classes, the first action token
of a step is that class (another one in a fifth of the steps, so that the loss stays above 0), and
every further one follows from the one before. Rounding differs with
the batch shape, and training multiplies it, so the largest difference between tree and flat is
held beside that of the two flat runs.

Axis legend: F frames, P tokens of a frame, D feature width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vla_nav.attention.parity import require_parity
from vla_nav.attention.registry import backend
from vla_nav.profiling.flat import flat_packs
from vla_nav.profiling.step_sides import StepSides
from vla_nav.profiling.synthetic import (
    FEATURE_WIDTH,
    VOCABULARY,
    TreeShape,
    episode_tree,
    synthetic_model,
)
from vla_nav.seeding import generator
from vla_nav.tree import PrefixTree, pack, text_segment

SIDES = ("tree", "flat", "flat, smaller")
_NUM_CLASSES = 64
_WRONG = 0.2  # of the labels
_NOISE = 0.5  # of a feature, beside the class's pattern of size 1
_CLIP_NORM = 1.0


@dataclass(frozen=True, slots=True)
class CurveSettings:
    """What all sides share. budget, smaller_budget: tokens of a pack of the two flat sides."""

    size: str
    shape: TreeShape
    device: str
    attention: str
    dtype: torch.dtype
    compile_layers: str | bool = False
    num_episodes: int = 16
    steps: int = 200
    warmup_steps: int = 20
    learning_rate: float = 3e-4
    weight_decay: float = 0.01
    budget: int = 24576
    smaller_budget: int = 12288


class Episode(NamedTuple):
    """A tree and its features (F, P, D) float32."""

    tree: PrefixTree
    features: Tensor


class Differences(NamedTuple):
    """The largest and the mean |difference| of two curves, step by step."""

    largest: float
    mean: float


def train_curve(side: str, settings: CurveSettings) -> Iterator[Tensor]:
    """The loss of every step, before its update, as a scalar on the device."""
    device = settings.device
    torch.manual_seed(0)  # the same weights on every side
    model = synthetic_model(
        settings.size,
        settings.attention,
        device=device,
        dtype=torch.float32,
        num_patches=settings.shape.frame + settings.shape.history,
        compile_layers=settings.compile_layers,
    )
    require_parity(
        settings.attention,
        device,
        dtype=settings.dtype,
        **model.backbone.attention_shape._asdict(),
    )
    kind = torch.device(device).type
    attention = backend(settings.attention, device=kind)
    budget = settings.smaller_budget if side == "flat, smaller" else settings.budget
    steps = []
    for episode in learnable_episodes(settings.shape, settings.num_episodes):
        packed = pack([episode.tree], pad_to=attention.padded_length(episode.tree.num_tokens))
        steps.append(
            StepSides(
                model,
                attention,
                packed.to(device),
                attention.plan(packed).to(device),
                [part.to(device) for part in flat_packs([episode.tree], budget)],
                episode.features.to(device, settings.dtype),
                autocast=lambda: torch.autocast(
                    kind, dtype=settings.dtype, enabled=settings.dtype != torch.float32
                ),
            )
        )
    optimiser = torch.optim.AdamW(
        model.parameters(),
        lr=settings.learning_rate,
        betas=(0.9, 0.95),
        weight_decay=settings.weight_decay,
        fused=kind == "cuda",
    )
    for number in range(settings.steps):
        step = steps[number % len(steps)]
        loss = step.tree() if side == "tree" else step.flat()
        torch.nn.utils.clip_grad_norm_(model.parameters(), _CLIP_NORM, foreach=True)
        for group in optimiser.param_groups:
            group["lr"] = settings.learning_rate * min(1.0, (number + 1) / settings.warmup_steps)
        optimiser.step()
        yield loss


def learnable_episodes(shape: TreeShape, count: int) -> list[Episode]:
    """Episodes whose actions follow from their frames; the same at every call."""
    rng = generator(0, "learnable episodes")
    num_rows = shape.frame + shape.history
    patterns = rng.standard_normal((_NUM_CLASSES, FEATURE_WIDTH))
    episodes = []
    for _ in range(count):
        classes = rng.integers(0, _NUM_CLASSES, shape.steps)
        noise = rng.standard_normal((shape.steps, num_rows, FEATURE_WIDTH))
        features = patterns[classes][:, None] + _NOISE * noise
        prompt = rng.integers(VOCABULARY.num_own, VOCABULARY.num_tokens, shape.prompt)
        other = rng.integers(0, _NUM_CLASSES, shape.steps)
        labels = np.where(rng.random(shape.steps) < _WRONG, other, classes)
        actions = [
            text_segment(action_tokens(int(label), shape.action), is_supervised=True)
            for label in labels
        ]
        tree = episode_tree(shape, text_segment(prompt), actions)
        episodes.append(Episode(tree, torch.from_numpy(features.astype(np.float32))))
    return episodes


def action_tokens(label: int, num_tokens: int) -> list[int]:
    """The label's class, then each token from the one before."""
    tokens = [label]
    while len(tokens) < num_tokens:
        tokens.append((31 * tokens[-1] + 17) % VOCABULARY.num_actions)
    return tokens


def differences(a: Sequence[float], b: Sequence[float]) -> Differences:
    """Of two curves of the same length."""
    gaps = np.abs(np.asarray(a) - np.asarray(b))
    return Differences(float(gaps.max()), float(gaps.mean()))


def draw_curves(curves: Mapping[str, Sequence[float]], title: str, targets: Sequence[str]) -> None:
    """The curves above, their differences from `flat` below; one file per target."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    figure, (above, below) = plt.subplots(
        2, 1, figsize=(8, 6), sharex=True, height_ratios=(2, 1), layout="constrained"
    )
    styles = {"tree": "-", "flat": "--", "flat, smaller": ":"}
    for name, curve in curves.items():
        above.plot(curve, styles[name], label=name, linewidth=1.4)
    above.set_ylabel("loss")
    above.set_title(title)
    above.legend()
    for name in ("tree", "flat, smaller"):
        if name in curves and "flat" in curves:
            gaps = np.abs(np.asarray(curves[name]) - np.asarray(curves["flat"]))
            below.semilogy(np.maximum(gaps, 1e-8), styles[name], label=f"|{name} - flat|")
    if below.lines:
        below.legend()
    below.set_ylabel("difference")
    below.set_xlabel("optimiser step")
    for target in targets:
        figure.savefig(target, dpi=120)
    plt.close(figure)
