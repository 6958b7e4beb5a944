"""A model of a few thousand parameters and a run of seconds, for tests of the training loop."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, Trainer

from tests.training.recorded import DECISION, write_recorded
from vla_nav.actions.waypoint import WaypointSpace
from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.models.assembly import ModelConfig
from vla_nav.models.backbone import BackboneConfig
from vla_nav.models.prompt import Layout
from vla_nav.training.checkpoint_folder import checkpoint_folders, read_checkpoint
from vla_nav.training.ema import WeightAverage
from vla_nav.training.fit import fit
from vla_nav.training.recipe import Recipe
from vla_nav.training.schedule import Budget
from vla_nav.training.settings import TrainingSettings, ValidationSettings
from vla_nav.vision.encode_run import encode_split
from vla_nav.vision.pixels import PixelResizer

IMAGE_PX = 16
ENCODER = {
    "name": "vit_small_patch16_224",
    "image_size": IMAGE_PX,
    "num_tokens": 4,
    "num_pooled": 1,
    "freeze": False,
    "model_kwargs": {"embed_dim": 16, "depth": 1, "num_heads": 2, "patch_size": 8},
}
OPTIONS = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}


def make_data(root: Path, **recorded: Any) -> Path:
    """Recorded episodes of split `train` and their pixel cache; returns `data.path`."""
    write_recorded(root, **{"image_px": IMAGE_PX, **recorded})
    encode_split(
        root,
        recorded.get("split", "train"),
        PixelResizer(IMAGE_PX),
        num_workers=0,
        batch_size=64,
        shard_mib=1,
        cameras=None,
        device="cpu",
        verify="sizes",
    )
    return root


def settings(**changed: Any) -> TrainingSettings:
    return TrainingSettings(
        **{
            "pack_tokens": 200,
            "budget": Budget(max_steps=12),
            "validation": ValidationSettings(holdout_share=0.2, every_steps=5),
            "log_every_steps": 2,
            **changed,
        }
    )


def recipe(data: Path, **changed: Any) -> Recipe:
    values = {
        "data_path": str(data),
        "split": "train",
        "model": ModelConfig(backbone=BackboneConfig(options=OPTIONS)),
        "encoder": ENCODER,
        "action_space": WaypointSpace(decision=DECISION),
        "layout": Layout("full", "hidden"),
        "settings": settings(),
        "num_threads": 1,
        **changed,
    }
    return Recipe(**values)


def train(
    made: Recipe,
    output_dir: Path,
    *,
    config: dict[str, Any] | None = None,
    extra: tuple[Callback, ...] = (),
    overwrite: bool = False,
    every_steps: int = 3,
    num_ranks: int = 1,
    resume: str = "newest",
    checkpoint: dict[str, Any] | None = None,
    strategy: Any = "ddp",
    closed_loop: dict[str, Any] | None = None,
    trainer: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Run `fit` on the CPU without any logger but the curve."""
    return fit(
        made,
        output_dir=output_dir,
        config={"seed": made.seed} if config is None else config,
        make_trainer=lambda **keywords: cpu_trainer(
            num_ranks=num_ranks, strategy=strategy, **keywords, **(trainer or {})
        ),
        callbacks=[WeightAverage(decay=0.9, every_steps=2), *extra],
        checkpoint={"every_steps": every_steps, "every_minutes": None, **(checkpoint or {})},
        closed_loop=closed_loop,
        overwrite=overwrite,
        resume=resume,
    )


def cpu_trainer(*, num_ranks: int = 1, strategy: Any = "ddp", **keywords: Any) -> Trainer:
    return Trainer(
        accelerator="cpu",
        devices=num_ranks,
        strategy="auto" if num_ranks == 1 and strategy == "ddp" else strategy,
        deterministic=True,
        **keywords,
    )


def in_child(body: Callable[[], Any]) -> int:
    """Run `body` in a forked process; return its exit code (minus the signal that ended it)."""
    process = multiprocessing.get_context("fork").Process(target=body)
    process.start()
    process.join(240)  # a busy machine takes its time
    assert process.exitcode is not None, "the child hangs"
    return process.exitcode


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    """Model, optimiser and averages of the last checkpoint, flat by name."""
    stored = read_checkpoint(checkpoint_folders(run / "checkpoints")[0])
    flat: dict[str, torch.Tensor] = {}

    def visit(node: Any, name: str) -> None:
        if isinstance(node, torch.Tensor):
            flat[name] = node
        elif isinstance(node, dict):
            for key, value in node.items():
                visit(value, f"{name}/{key}")
        elif isinstance(node, list):
            for key, value in enumerate(node):
                visit(value, f"{name}/{key}")

    for key in ("state_dict", "optimizer_states", "callbacks"):
        visit(stored[key], key)
    return flat


def labels_of(data: Path) -> np.ndarray:
    """How many labels each recorded episode has."""
    episodes = LeRobotDataset(data / "recorded" / "train")
    return np.array([sum(len(step.labels) for step in episode.steps) for episode in episodes])
