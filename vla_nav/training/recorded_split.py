"""A recorded split on disk, its frames, and whether it teaches what a policy is about to learn.

    <path>/recorded/<split>  stated: decision, turn, step   action space: the same, or refused

Turn angle, step length and decision rule are part of the data; no number of theirs is guessed.
"""

from __future__ import annotations

from pathlib import Path

from vla_nav.actions.decisions import DecisionRule
from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.errors import UserError
from vla_nav.models.prompt import PromptBuilder
from vla_nav.vision.cache import FeatureCache, cache_folder
from vla_nav.vision.encoder import TimmEncoder
from vla_nav.vision.pixels import PixelResizer


def open_recorded(data_path: str | Path, split: str) -> LeRobotDataset:
    """The recorded split of a data set, for random access."""
    return LeRobotDataset(Path(data_path) / "recorded" / split, cached_groups=4096)


def require_conventions(episodes: LeRobotDataset, builder: PromptBuilder) -> None:
    """Raise `UserError` unless the data's decision rule, turn and step are the action space's."""
    space, stated = builder.action_space, episodes.conventions
    recorded, wanted = str(DecisionRule.parse(stated.decision)), str(space.decision)
    if recorded != wanted:
        raise UserError(
            f"{episodes.root}: recorded with decision {recorded}, actions={space.name} teaches "
            f"{wanted}; set actions.decision, or record with decision {wanted}"
        )
    body = stated.embodiment
    for key, value in (("turn_deg", body.turn_deg), ("step_m", body.step_m)):
        own = getattr(space, key, value)
        if abs(own - value) > 1e-6:
            raise UserError(
                f"{episodes.root}: recorded with {key}={value}, asked for is actions.{key}={own}; "
                f"set actions.{key}={value}"
            )


def open_frames(
    data_path: str | Path, split: str, encoder: TimmEncoder, *, verify: str = "sizes"
) -> FeatureCache:
    """What the encoder reads in training: its own features when it is frozen, else pixels.

    verify: sizes | digests, see `FeatureCache.open`.
    """
    if encoder.is_frozen:
        fingerprint = encoder.fingerprint()
    else:
        fingerprint = PixelResizer(encoder.image_size).fingerprint()
    folder = cache_folder(data_path, fingerprint, split)
    if not folder.is_dir() and not encoder.is_frozen:
        height, width = encoder.image_size
        size = height if height == width else f"[{height},{width}]"
        raise UserError(
            f"{folder}: no pixel cache for an encoder that trains in the step; run `vla-nav encode "
            f"data.path={data_path} data.split={split} vision=pixels vision.image_size={size}`"
        )
    return FeatureCache.open(folder, fingerprint, verify=verify)
