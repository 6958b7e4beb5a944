"""A run of `vla-nav encode`: size estimate, free space, progress bar, result, in this order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn

from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.errors import UserError
from vla_nav.vision.cache import FeatureCache, cache_folder
from vla_nav.vision.encoding import EncodingPlan, FrameEncoder, encode_frames, unique_frame_keys


def encode_split(
    data_path: str | Path,
    split: str,
    encoder: FrameEncoder,
    *,
    batch_size: int,
    shard_mib: int,
    cameras: Sequence[str] | None,
    device: str,
    verify: str,
    num_workers: int,
) -> FeatureCache:
    """Encode the recorded split of a data set into its cache; print what is done.

    device: `auto` takes the first CUDA device where there is one.
    """
    for key, value in (("batch_size", batch_size), ("shard_mib", shard_mib)):
        if value < 1:
            raise UserError(f"encode.{key}={value}: allowed: 1 or more")
    dataset = LeRobotDataset(Path(data_path) / "recorded" / split)
    keys = unique_frame_keys(dataset, cameras)
    if not keys:
        raise UserError(
            f"{dataset.root}: no frames of cameras {list(cameras or [])}; "
            "set encode.cameras to names as in the data set, or null for all"
        )
    place = pick_device(device)
    if isinstance(encoder, nn.Module):
        encoder.to(place)
    columns = (
        TextColumn("encode"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as progress:
        task = progress.add_task("encode", total=None, speed="")

        def announce(plan: EncodingPlan) -> None:
            progress.console.print(describe_plan(plan), soft_wrap=True, highlight=False)
            progress.update(task, total=plan.num_missing)

        def advance(num_frames: int) -> None:
            speed = progress.tasks[task].speed
            progress.update(
                task, advance=num_frames, speed=f"{speed:.0f} frames/s" if speed else ""
            )

        cache = encode_frames(
            dataset.frames,
            keys,
            encoder,
            cache_folder(data_path, encoder.fingerprint(), split),
            batch_size=batch_size,
            shard_bytes=shard_mib * 2**20,
            device=place,
            num_workers=num_workers,
            announce=announce,
            advance=advance,
        )
    if verify != "sizes":
        cache = FeatureCache.open(cache.folder, cache.fingerprint, verify=verify)
    return cache


def describe_plan(plan: EncodingPlan) -> str:
    """One line: where, how many frames are there already, how many bytes will be written."""
    done = plan.num_frames - plan.num_missing
    size = plan.num_bytes / 2**20
    return (
        f"{plan.folder}: {plan.num_frames} unique frames, {done} encoded already, "
        f"{plan.num_missing} to do, {size:.1f} MiB"
    )


def pick_device(name: str) -> torch.device:
    """The device of a name; `auto` is the first CUDA device or the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"encode.device={name}: allowed: auto, cpu, cuda, cuda:<n>") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"encode.device={name}: {torch.cuda.device_count()} CUDA devices here; use auto or cpu"
        )
    return device
