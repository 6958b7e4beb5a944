"""policy.json: what the weights of a policy mean, for every layout of a policy folder.

    {"format", "model", "trained_from", "action_space", "decision", "layout", "embodiment",
     "encoder", "encoder_preprocessing", "encoder_fingerprint", "tokenizer", "data",
     "weights": {"xxh3_128", ...},   how the folder keeps them: checkpoint.py, hub_folder.py
     "xxh3_128"}                     a seal: the digest of everything else

It names kinds and numbers, never code: `rebuild` builds known
classes from them. The digest of
the weights says which policy this is, whatever the layout.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from vla_nav.actions import build_space
from vla_nav.actions.decisions import DecisionRule
from vla_nav.actions.types import ActionSpace
from vla_nav.episodes.types import Camera, Embodiment
from vla_nav.errors import UserError
from vla_nav.files import read_json, write_json
from vla_nav.models.assembly import Assembled, ModelConfig, assemble
from vla_nav.models.prompt import Layout
from vla_nav.vision.encoder import TimmEncoder

FORMAT = 1
DIGEST = "xxh3_128"  # of policy.json, in policy.json; of the weights, in its entry `weights`
DESCRIPTION, TOKENIZER = "policy.json", "tokenizer"


class PolicyParts(NamedTuple):
    """What a description names, before any model is built. encoder: keywords of `TimmEncoder`."""

    model: ModelConfig
    encoder: Mapping[str, Any]
    action_space: ActionSpace
    layout: Layout
    embodiment: Embodiment
    decision: DecisionRule
    tokenizer: str


def describe(
    assembled: Assembled,
    config: ModelConfig,
    *,
    encoder: Mapping[str, Any],
    data: Mapping[str, Any],
) -> dict[str, Any]:
    """A description without its entry `weights`; the keywords are those of `save_policy`."""
    model, prompt = assembled
    assert model.encoder is not None, "a policy needs its encoder"
    is_frozen = model.encoder.is_frozen  # a trained encoder has no fingerprint before it is saved
    described = config.describe()
    return plain_values(
        {
            "format": FORMAT,
            "model": {**described, "backbone": model.backbone.architecture()},
            "trained_from": {**described["backbone"], "lora": described["lora"]},
            "action_space": prompt.action_space.describe(),
            "decision": str(prompt.action_space.decision),
            "layout": asdict(prompt.layout),
            "embodiment": asdict(prompt.embodiment),
            "encoder": {**plain_values(encoder), "weights": None},
            "encoder_preprocessing": model.encoder.describe(),
            "encoder_fingerprint": model.encoder.fingerprint() if is_frozen else None,
            "tokenizer": prompt.tokenizer.fingerprint(),
            "data": plain_values(data),
        }
    )


def as_merged(description: Mapping[str, Any]) -> dict[str, Any]:
    """The description of the same policy once its adapters are added to its plain weights."""
    return {**description, "model": {**description["model"], "lora": None}}


def write_description(
    folder: Path, description: Mapping[str, Any], *, weights: Mapping[str, Any]
) -> None:
    """Write policy.json, sealed. To be written last: it makes a policy of the files."""
    content = {key: value for key, value in description.items() if key not in (DIGEST, "weights")}
    content = plain_values({**content, "weights": weights})
    write_json(folder / DESCRIPTION, {**content, DIGEST: _digest(content)})


def read_description(folder: Path) -> dict[str, Any]:
    """policy.json, of this version's format and as it was written; else `UserError`."""
    source = folder / DESCRIPTION
    if not source.is_file():
        raise UserError(
            f"{source}: no such file; train writes a policy folder, or name another one"
        )
    described = read_json(source)
    if not isinstance(described, dict) or "format" not in described:
        raise UserError(f"{source}: describes no policy; train again or restore it")
    if described["format"] != FORMAT:
        raise UserError(
            f"{source}: format {described['format']}, this version reads {FORMAT}; train again"
        )
    # What the weights mean is in the description: an edited one would be believed silently.
    if described.get(DIGEST, found := _digest(described)) != found:
        raise UserError(
            f"{source}: changed since it was written ({DIGEST} is {described[DIGEST]}, its content "
            f"gives {found}); restore it or train again"
        )
    return described


def parts_of(folder: Path, described: Mapping[str, Any], *, tokenizer_path: Path) -> PolicyParts:
    """What policy.json names. tokenizer_path: of a tokenizer that no package ships, or of the
    packaged one's file where the folder has it. Raises `UserError` for a damaged description."""
    try:
        options = dict(described["model"])
        if options["tokenizer"] in ("folder", "gguf"):
            options.update(tokenizer="folder", tokenizer_path=str(tokenizer_path))
        elif tokenizer_path.is_file():
            options.update(tokenizer_path=str(tokenizer_path))
        return PolicyParts(
            ModelConfig(**options),
            described["encoder"],
            build_space(described["action_space"]),
            Layout(**described["layout"]),
            _embodiment(described["embodiment"]),
            DecisionRule.parse(described["decision"]),
            described["tokenizer"],
        )
    except (KeyError, TypeError) as error:
        raise _damaged(folder, error) from None


def rebuild(folder: Path, parts: PolicyParts, *, attention: str) -> Assembled:
    """Build the model of a description; its weights are not read yet.

    Raises `UserError` for a damaged description and for another tokenizer than the trained one.
    """
    try:
        assembled = assemble(
            parts.model,
            action_space=parts.action_space,
            embodiment=parts.embodiment,
            layout=parts.layout,
            encoder=TimmEncoder(**parts.encoder),
            attention=attention,
        )
    except (KeyError, TypeError) as error:
        raise _damaged(folder, error) from None
    installed = assembled.prompt.tokenizer.fingerprint()
    if installed != parts.tokenizer:
        raise UserError(
            f"{folder / DESCRIPTION}: trained with tokenizer {parts.tokenizer}, installed is "
            f"{installed}; install the version it was trained with"
        )
    return assembled


def require_same_encoder(folder: Path, described: Mapping[str, Any], encoder: TimmEncoder) -> None:
    """Raise `UserError` unless a frozen encoder, its weights read, is the one of the training."""
    fingerprint = described.get("encoder_fingerprint")
    if fingerprint is not None and encoder.fingerprint() != fingerprint:
        raise UserError(
            f"{folder / DESCRIPTION}: trained on features of encoder {fingerprint}, rebuilt as "
            f"{encoder.fingerprint()}; install the timm version it was trained with"
        )


def plain_values(value: Mapping[str, Any]) -> dict[str, Any]:
    """`value` as JSON gives it back; keys of configuration machinery (`_target_`) left out."""
    kept = {key: item for key, item in value.items() if not key.startswith("_")}
    return dict(json.loads(json.dumps(kept)))


def _damaged(folder: Path, error: Exception) -> UserError:
    return UserError(f"{folder / DESCRIPTION}: damaged ({error!r}); train again or restore it")


def _digest(description: Mapping[str, Any]) -> str:
    """The digest of a description's content, whatever the order and spacing of its file."""
    content = {key: value for key, value in description.items() if key != DIGEST}
    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True).encode())


def _embodiment(described: Mapping[str, Any]) -> Embodiment:
    cameras = tuple(Camera(**camera) for camera in described["cameras"])
    return Embodiment(**{**described, "cameras": cameras})
