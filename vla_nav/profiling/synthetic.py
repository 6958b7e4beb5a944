"""Trees and models of the shapes that benchmarks quote, with random data and weights.

    caterpillar  steps x frame + action    root - frame_0 - frame_1 - ...     full history, actions
                                                     |         |              hidden
                                                  action    action
    pooled       steps x (history + leaf)  root - hist_0 - hist_1 - ...       a leaf holds the full
                                             |       |                        frame and the action
                                           leaf    leaf
    branching    factor^depth x frame + action; every frame has `factor` next ones and an action
                 leaf (2^3x64+12: 2 + 4 + 8 frames, 14 actions); a caterpillar has factor 1

    forest       3*44x196+12: three of them, with different tokens, for one pack

Axis legend: T tokens, F frames, P tokens of a frame, D feature width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vla_nav.errors import UserError, unknown_name
from vla_nav.models.backbone import BackboneConfig, build_backbone
from vla_nav.models.vla import VLA
from vla_nav.models.vocabulary import Vocabulary
from vla_nav.seeding import generator
from vla_nav.tree import (
    EpisodeTokens,
    Label,
    Layout,
    Path,
    PrefixTree,
    Segment,
    StepTokens,
    Trunk,
    paths_of,
)
from vla_nav.tree.types import concatenate, frame_segment, text_segment
from vla_nav.vision.projector import Projector

# hidden, intermediate, layers, query heads, key heads; head dim 128 (Qwen3's public shapes)
MODEL_SHAPES = {
    "tiny": (256, 512, 2, 2, 1),
    "0.6b": (1024, 3072, 28, 16, 8),
    "1.7b": (2048, 6144, 28, 16, 8),
    "4b": (2560, 9728, 36, 32, 8),
    "8b": (4096, 12288, 36, 32, 8),
}
# the same with three recurrent layers for every layer of attention: family, its own options
HYBRID_SHAPES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "hybrid-tiny": (
        "qwen3_5_text",
        "tiny",
        {
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
        },
    ),
    "hybrid-1.7b": (
        "qwen3_5_text",
        "1.7b",
        {
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 16,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
        },
    ),
    "mamba-tiny": ("bamba", "tiny", {"mamba_n_heads": 8, "mamba_d_head": 64, "mamba_d_state": 16}),
    "mamba-1.7b": (
        "bamba",
        "1.7b",
        {"mamba_n_heads": 64, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1},
    ),
}
HEAD_DIM = 128
FEATURE_WIDTH = 768
VOCABULARY = Vocabulary(64, ("<frame>",), 0, 1000)
FULL_VOCABULARY = Vocabulary(64, ("<frame>",), 0, 151_936)  # Qwen3's text table behind own tokens
UNTIED = ("8b",)  # the others' text head is their text table


@dataclass(frozen=True, slots=True)
class TreeShape:
    """steps x frame + action tokens behind `prompt` tokens; history: pooled tokens of a frame, 0
    for a caterpillar."""

    steps: int
    frame: int
    action: int
    prompt: int = 128
    history: int = 0

    @staticmethod
    def parse(text: str) -> TreeShape:
        """`44x196+12`, `60x(68+204)` (history + leaf, 12 of the leaf are its action); `@256` behind
        it sets the prompt."""
        body, _, prompt = text.partition("@")
        steps, _, rest = body.partition("x")
        first, _, second = rest.strip("()").partition("+")
        try:
            numbers = int(steps), int(first), int(second), int(prompt or 128)
        except ValueError:
            numbers = (0, 0, 0, 0)
        shape = TreeShape(*numbers)
        if "(" in rest:
            shape = TreeShape(numbers[0], numbers[2] - 12, 12, numbers[3], history=numbers[1])
        if min(shape.steps, shape.frame, shape.action, shape.prompt) < 1 or shape.history < 0:
            raise UserError(
                f"tree shape '{text}'; allowed: 44x196+12, 60x(68+204) or 2^6x64+12, every number "
                "1 or more (leaves of 13 tokens or more)"
            )
        return shape

    @property
    def num_frames(self) -> int:
        """Frames of one tree."""
        return self.steps

    @property
    def depth(self) -> int:
        """Frames on the longest path."""
        return self.steps

    @property
    def factor(self) -> int:
        """Next frames of a frame."""
        return 1

    def __str__(self) -> str:
        if self.history:
            return f"{self.steps}x({self.history}+{self.frame + self.action})"
        return f"{self.steps}x{self.frame}+{self.action}"

    @property
    def layout(self) -> Layout:
        """The layout that gives this shape."""
        return Layout("pooled" if self.history else "full", "hidden")


@dataclass(frozen=True, slots=True)
class BranchShape:
    """`factor` next frames at each of `depth` levels, an action leaf at every frame."""

    depth: int
    factor: int
    frame: int
    action: int
    prompt: int = 128

    @staticmethod
    def parse(text: str) -> BranchShape:
        """`2^6x64+12`: factor 2, depth 6; `@256` behind it sets the prompt."""
        factor, _, rest = text.partition("^")
        shape = TreeShape.parse(rest)
        if not factor.isdecimal() or int(factor) < 1 or shape.history:
            raise UserError(
                f"tree shape '{text}'; allowed: factor^depth x frame + action, 2^6x64+12"
            )
        return BranchShape(shape.steps, int(factor), shape.frame, shape.action, shape.prompt)

    def __str__(self) -> str:
        return f"{self.factor}^{self.depth}x{self.frame}+{self.action}"

    @property
    def num_frames(self) -> int:
        """Frames of one tree."""
        return sum(self.factor**level for level in range(1, self.depth + 1))

    @property
    def history(self) -> int:
        """Pooled tokens of a frame: there are none."""
        return 0


Shape = TreeShape | BranchShape


@dataclass(frozen=True, slots=True)
class Forest:
    """`count` trees of one shape for one pack; None: as many as a token budget holds."""

    shape: Shape
    count: int | None = None

    @staticmethod
    def parse(text: str) -> Forest:
        """`44x196+12`, `3*44x196+12`, `2^6x64+12`."""
        count, star, rest = text.rpartition("*")
        if star and not (count.isdecimal() and int(count)):
            raise UserError(f"forest '{text}'; allowed: count*shape, as in 3*44x196+12")
        shape = (BranchShape if "^" in rest else TreeShape).parse(rest)
        return Forest(shape, int(count) if star else None)

    def __str__(self) -> str:
        prompt = "" if self.shape.prompt == 128 else f"@{self.shape.prompt}"
        return f"{f'{self.count}*' if self.count else ''}{self.shape}{prompt}"

    def trees(self, budget: int = 0) -> list[PrefixTree]:
        """The trees; without a count, as many as fit into `budget` tokens, at least one."""
        first = synthetic_tree(self.shape)
        count = self.count or max(1, budget // first.num_tokens)
        return [first, *(synthetic_tree(self.shape, seed=seed) for seed in range(1, count))]


def synthetic_tree(shape: Shape, *, seed: int = 0) -> PrefixTree:
    """The prefix tree of one made episode: random text and action ids, every frame its own."""
    rng = generator(seed, "synthetic tree")
    prompt = text_segment(rng.integers(VOCABULARY.num_own, VOCABULARY.num_tokens, shape.prompt))
    actions = [
        text_segment(rng.integers(0, VOCABULARY.num_actions, shape.action), is_supervised=True)
        for _ in range(shape.num_frames)
    ]
    if isinstance(shape, BranchShape):
        paths = list(_branching_paths(shape, prompt, actions))
        return PrefixTree.from_paths(paths, num_frames=shape.num_frames)
    return episode_tree(shape, prompt, actions)


def episode_tree(shape: TreeShape, prompt: Segment, actions: list[Segment]) -> PrefixTree:
    """The tree of an episode of this shape that is taught actions[t] at step t."""
    placeholder = VOCABULARY.special("<frame>")
    none = text_segment(())
    steps = []
    for t, action in enumerate(actions):
        full = frame_segment(placeholder, t, shape.frame)
        pooled = frame_segment(placeholder, t, shape.history, first=shape.frame)
        steps.append(StepTokens(full, pooled, none, (Label(action),)))
    tokens = EpisodeTokens(concatenate(prompt), (none,), tuple(steps))
    return PrefixTree.from_paths(paths_of(tokens, shape.layout), num_frames=shape.steps)


def _branching_paths(shape: BranchShape, prompt: Segment, actions: list[Segment]) -> Iterator[Path]:
    """One path per frame, its action; frames level by level."""
    placeholder, frame = VOCABULARY.special("<frame>"), 0
    level = [Trunk(None, prompt)]
    for _ in range(shape.depth):
        following = []
        for parent in level:
            for _ in range(shape.factor):
                trunk = Trunk(parent, frame_segment(placeholder, frame, shape.frame))
                yield Path((actions[frame],), trunk=trunk)
                following.append(trunk)
                frame += 1
        level = following


def synthetic_features(
    shape: Shape, num_trees: int, device: str, dtype: torch.dtype, *, width: int = FEATURE_WIDTH
) -> Tensor:
    """Random cached features (F, P, D) of all frames."""
    num_rows = shape.frame + shape.history
    draw = np.random.default_rng(0).standard_normal((1, num_rows, width), np.float32)
    noise = torch.randn(shape.num_frames * num_trees, 1, width, device=device)
    return (torch.from_numpy(draw).to(device) + noise).to(dtype)


def synthetic_model(
    size: str,
    attention: str,
    *,
    device: str,
    dtype: torch.dtype,
    num_patches: int,
    num_layers: int | None = None,
    feature_width: int = FEATURE_WIDTH,
    max_positions: int = 2**20,
    compile_layers: str | bool = False,
    head: str = "actions",
) -> VLA:
    """A randomly initialised VLA of a named size, made on the device. compile_layers: False,
    `layers` (True) or `joined`, as `models.backbone.compile`. head: as `models.head`; `full` comes
    with a text table of Qwen3's size."""
    if size not in MODEL_SHAPES and size not in HYBRID_SHAPES:
        raise unknown_name("model shape", size, (*MODEL_SHAPES, *HYBRID_SHAPES))
    family, of, more = HYBRID_SHAPES.get(size, ("qwen3", size, {}))
    hidden, intermediate, layers, heads, kv_heads = MODEL_SHAPES[of]
    options = {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": num_layers or layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": max_positions,
        "tie_word_embeddings": size not in UNTIED,
        **more,
    }
    if family == "qwen3_5_text":
        options["layer_types"] = _layer_types(num_layers or layers)
    if family == "bamba":
        options.pop("head_dim")
        kinds = enumerate(_layer_types(num_layers or layers))
        options["attn_layer_indices"] = [n for n, kind in kinds if kind == "full_attention"]
    vocabulary = FULL_VOCABULARY if head == "full" else VOCABULARY
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            config = BackboneConfig(
                family=family,
                options=options,
                norms="fused",
                compile="layers" if compile_layers is True else compile_layers,
            )
            backbone = build_backbone(config, num_text=vocabulary.num_text)
            model = VLA(
                backbone,
                Projector(feature_width, hidden, hidden),
                vocabulary,
                num_patches=num_patches,
                head=head,
                attention=attention,
            )
    finally:
        torch.set_default_dtype(default)
    return model.to(dtype).train()


def _layer_types(num_layers: int) -> list[str]:
    """Every fourth layer is attention, and the last one."""
    return [
        "full_attention" if n % 4 == 3 or n == num_layers - 1 else "linear_attention"
        for n in range(num_layers)
    ]
