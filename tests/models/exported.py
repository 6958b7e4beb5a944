"""Policies and their exports for the tests of `export`."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from model_scenario import ENCODER, embodiment, episode, small

from vla_nav.actions import WaypointSpace
from vla_nav.models.assembly import Assembled, assemble
from vla_nav.models.checkpoint import LoadedPolicy, save_policy
from vla_nav.models.export import export_policy
from vla_nav.models.hub_card import Card
from vla_nav.models.policy import VLAPolicy
from vla_nav.models.prompt import Layout
from vla_nav.models.replay import replay
from vla_nav.vision.encoder import TimmEncoder

SPACE = WaypointSpace()
VIT = {
    "name": "vit_small_patch16_224",
    "image_size": 32,
    "fold": (2, 1),
    "model_kwargs": {"patch_size": 16, "embed_dim": 32, "depth": 1, "num_heads": 2},
}
FROZEN = {"name": "resnet10t", "image_size": 32, "num_tokens": 1, "dtype": "bfloat16"}
ENCODERS = {"cut": ENCODER, "vit": {**VIT, "freeze": False}, "frozen": FROZEN}
_WORDS = (
    "turn",
    "left",
    "the",
    " ",
    "  ",
    "\n",
    "\t",
    "sofa,",
    "door.",
    "2.5",
    "m",
    "über",
    "階段",
)
_WORDS += ("🙂", "\u00a0", "A", "-", "<s>", "[INST]", "12345", "don't", "DOOR")


def bundle(
    folder: Path, *, tokenizer: tuple[str, str | None] | None = None, **options: Any
) -> Assembled:
    """Write a policy as `train` does: the small model, its weights made odd by one step."""
    encoder = options.pop("encoder", ENCODER)
    assembled, config = small(SPACE, encoder=encoder, **options)
    if tokenizer is not None:
        config = replace(config, tokenizer=tokenizer[0], tokenizer_path=tokenizer[1])
        assembled = assemble(
            config,
            action_space=SPACE,
            embodiment=embodiment(),
            layout=Layout(),
            encoder=TimmEncoder(**encoder),
        )
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in assembled.model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(0.01 * noise.to(parameter.dtype))
    data = {"path": "/home/somebody/secret/demo", "split": "train", "fingerprint": "abc"}
    data["mixture"] = [{"path": "/home/somebody/secret/other", "split": "train", "weight": 1.0}]
    save_policy(folder, assembled, config, encoder=encoder, data=data)
    return assembled


def export(source: Path, target: Path, **options: Any) -> Path:
    """`vla-nav export`, without the command line."""
    export_policy(source, target, card=options.pop("card", Card("tiny")), **options)
    return target


def logits(loaded: LoadedPolicy) -> list[torch.Tensor]:
    """Logits of a recorded episode, through the live policy."""
    found, source = episode(1, SPACE, num_steps=3)
    policy = loaded.policy()
    assert isinstance(policy, VLAPolicy)
    return replay(policy, found, source)


def texts(num: int) -> list[str]:
    """Instructions and worse: spaces, tabs, control tokens, other scripts."""
    rng = random.Random(0)
    return [
        "".join(rng.choice(_WORDS) + rng.choice(("", "", " ")) for _ in range(rng.randrange(20)))
        for _ in range(num)
    ]
