"""Small episodes, encoders and models for the tests here: random frames, known actions."""

from __future__ import annotations

import math

import numpy as np
import torch

from vla_nav.actions.decisions import DecisionRule, cut
from vla_nav.actions.manoeuvre import dead_reckon
from vla_nav.actions.types import ActionSpace
from vla_nav.episodes.types import (
    MOVE_FORWARD,
    STOP,
    TURN_LEFT,
    TURN_RIGHT,
    Camera,
    Embodiment,
    Episode,
    ExpertLabel,
    Goal,
    PixelTarget,
    Pose,
    Step,
)
from vla_nav.models.assembly import Assembled, ModelConfig, assemble
from vla_nav.models.backbone import BackboneConfig
from vla_nav.models.lora import LoraConfig
from vla_nav.models.prompt import Layout, PromptConfig
from vla_nav.vision.encoder import TimmEncoder
from vla_nav.vision.frames import as_rgb

TURN_DEG, STEP_M = 30.0, 0.25
ENCODER = {
    "name": "test_resnet",
    "weights": None,
    "image_size": 32,
    "num_tokens": 4,
    "num_pooled": 1,
    "feature_index": 1,
    "dtype": "float32",
    "freeze": False,
    "seed": 0,
}


HYBRIDS = {  # options of families with recurrent layers
    "qwen3_5_text": {
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 6,
    },
    "bamba": {
        "attn_layer_indices": [1],
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
        "mamba_n_groups": 2,
        "mamba_d_state": 6,
    },
}


class Frames:
    """A frame source over a dictionary."""

    def __init__(self) -> None:
        self.images: dict[str, np.ndarray] = {}

    def read(self, frame_key: str) -> np.ndarray:
        return self.images[frame_key]


def pixels(source: Frames, keys: tuple[str, ...]) -> torch.Tensor:
    """The frames of `keys` as an encoder takes them: (F, 32, 32, 3) uint8."""
    return torch.from_numpy(np.stack([as_rgb(source.read(key)) for key in keys]))


def embodiment(*, num_cameras: int = 1, has_depth: bool = False) -> Embodiment:
    cameras = tuple(
        Camera(name, 32, 32, 90.0, 1.25, 0.0, has_depth)
        for name in ("front", "left", "right")[:num_cameras]
    )
    return Embodiment(cameras, 0.2, 1.5, TURN_DEG, STEP_M, True)


def move(pose: Pose, primitives: tuple[int, ...]) -> Pose:
    """Where primitives lead without obstacles."""
    forward, left, yaw = dead_reckon(primitives, turn_deg=TURN_DEG, step_m=STEP_M)
    heading = pose.yaw_rad
    x, y, z = pose.position
    return Pose.from_yaw(
        (
            x - forward * math.sin(heading) - left * math.cos(heading),
            y,
            z - forward * math.cos(heading) + left * math.sin(heading),
        ),
        heading + yaw,
    )


def expert_label(
    rng: np.random.Generator, pose: Pose, rule: DecisionRule, *, is_last: bool, has_pixel: bool
) -> ExpertLabel:
    if is_last:
        return ExpertLabel((STOP,), (pose,))
    turn = TURN_LEFT if rng.random() < 0.5 else TURN_RIGHT
    plan = (turn,) * int(rng.integers(0, 4)) + (MOVE_FORWARD,) * int(rng.integers(1, 5))
    primitives = (*plan, turn, MOVE_FORWARD, MOVE_FORWARD, STOP)
    poses = tuple(move(pose, primitives[: i + 1]) for i in range(len(primitives)))
    pixel = PixelTarget("front", *rng.random(2), float(rng.uniform(-3, 3))) if has_pixel else None
    return ExpertLabel(primitives, poses, pixel)


def episode(
    seed: int,
    space: ActionSpace,
    *,
    body: Embodiment | None = None,
    num_steps: int = 6,
    max_labels: int = 2,
) -> tuple[Episode, Frames]:
    """A perturbed-expert episode: some executed decisions differ from the label."""
    rng = np.random.default_rng(seed)
    body = body or embodiment()
    rule = space.decision
    frames = Frames()
    pose = start = Pose.from_yaw((1.0, 0.0, 2.0), math.radians(60))
    steps = []
    for t in range(num_steps):
        keys = {}
        for camera in body.cameras:
            keys[camera.name] = f"{t}-{camera.name}"
            shape = (camera.height_px, camera.width_px)
            frames.images[keys[camera.name]] = rng.integers(0, 256, (*shape, 3), dtype=np.uint8)
            if camera.has_depth:
                keys[f"{camera.name}.depth"] = f"{t}-{camera.name}.depth"
                frames.images[f"{t}-{camera.name}.depth"] = rng.uniform(0.2, 9, shape).astype(
                    np.float32
                )
        is_last = t == num_steps - 1
        labels = tuple(
            expert_label(rng, pose, rule, is_last=is_last, has_pixel=bool(rng.random() < 0.5))
            for _ in range(1 if is_last else int(rng.integers(1, max_labels + 1)))
        )
        executed = cut(labels[0].primitives, rule)
        if not is_last and rng.random() < 0.3:
            executed = cut((TURN_RIGHT, MOVE_FORWARD, MOVE_FORWARD, MOVE_FORWARD), rule)
        steps.append(Step(pose, keys, executed, labels))
        pose = move(pose, executed)
    goal = Goal(pose.position, 3.0)
    found = Episode(
        "tests",
        "train",
        "guide",
        str(seed),
        "house",
        "walk past the red sofa, then stop at the door",
        start,
        (goal,),
        np.zeros((0, 3)),
        body,
        tuple(steps),
    )
    return found, frames


def small(
    space: ActionSpace,
    *,
    layout: Layout | None = None,
    body: Embodiment | None = None,
    prompt: PromptConfig | None = None,
    family: str = "qwen3",
    head: str = "actions",
    tie_head: bool = False,
    attention: str = "reference",
    encoder: dict[str, object] | None = None,
    num_kv_heads: int = 2,
    lora: LoraConfig | None = None,
    is_tied: bool = False,
) -> tuple[Assembled, ModelConfig]:
    """A two-layer model over `space` with weights large enough to matter."""
    options: dict[str, object] = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": num_kv_heads,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "tie_word_embeddings": is_tied,
        **HYBRIDS.get(family, {}),
    }
    if family == "bamba":
        del options["head_dim"]
    config = ModelConfig(
        backbone=BackboneConfig(family=family, options=options, seed=1),
        head=head,
        tie_head=tie_head,
        lora=lora,
        prompt=prompt or PromptConfig(),
        seed=2,
    )
    assembled = assemble(
        config,
        action_space=space,
        embodiment=body or embodiment(),
        layout=layout or Layout(),
        encoder=TimmEncoder(**(encoder or ENCODER)),
        attention=attention,
    )
    return assembled, config
