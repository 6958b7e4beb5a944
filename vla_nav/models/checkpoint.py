"""A policy on disk: weights and everything that must agree with them, in one folder.

    <folder>/
      weights.safetensors   the model, its encoder included
      policy.json           shapes, action space, prompt, layout, embodiment, fingerprints,
                            and the digests of the weights and of itself; written last
      tokenizer/            only for tokenizers that no package ships

`policy.json` names kinds and numbers, never code: loading builds known classes from them and
reads tensors alone. Both files are replaced atomically, and a half-replaced pair is noticed by the
digest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
import xxhash
from torch import Tensor

from vla_nav.actions import build_space
from vla_nav.actions.decisions import DecisionRule
from vla_nav.episodes.bodies import embodiment_differences
from vla_nav.episodes.types import Camera, Embodiment
from vla_nav.errors import UserError
from vla_nav.files import atomic_path, file_digest, read_json, require_free_space, write_json
from vla_nav.models.assembly import Assembled, ModelConfig, assemble
from vla_nav.models.lora import merged
from vla_nav.models.policy import VLAPolicy
from vla_nav.models.prompt import Layout, PromptBuilder
from vla_nav.models.vla import VLA
from vla_nav.vision.encoder import TimmEncoder

FORMAT = 1
_SEAL = "xxh3_128"  # of policy.json, in policy.json
WEIGHTS, DESCRIPTION, TOKENIZER = "weights.safetensors", "policy.json", "tokenizer"


@dataclass(frozen=True)
class LoadedPolicy:
    """A bundle read back. `description` is policy.json; `data` its free entry about the data."""

    model: VLA
    prompt: PromptBuilder
    embodiment: Embodiment
    decision: DecisionRule
    data: Mapping[str, Any]
    description: Mapping[str, Any]

    def policy(
        self, *, temperature: float = 0.0, is_constrained: bool = True, seed: int = 0
    ) -> VLAPolicy:
        """A policy over the model."""
        return VLAPolicy(
            self.model,
            self.prompt,
            temperature=temperature,
            is_constrained=is_constrained,
            seed=seed,
        )


def save_policy(
    folder: str | Path,
    assembled: Assembled,
    config: ModelConfig,
    *,
    encoder: Mapping[str, Any],
    data: Mapping[str, Any],
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a bundle, replacing an older one in `folder`.

    encoder: the keywords of the model's `TimmEncoder`. data: plain values about the training data
    (its fingerprint, names, ...), kept as they are. weights: instead of the model's own (averaged
    ones), by parameter name; missing names are the model's.
    """
    folder = Path(folder)
    model, prompt = assembled
    assert model.encoder is not None, "a policy needs its encoder"
    is_frozen = model.encoder.is_frozen  # a trained encoder has no fingerprint before it is saved
    state = {**model.state_dict(), **(weights or {})}
    described = config.describe()
    kept = described
    if config.lora is not None and config.lora.merge:
        state, kept = merged(state, config.lora), {**described, "lora": None}
    tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in state.items()}
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    require_free_space(folder, size, what="the policy")
    architecture = model.backbone.architecture()
    prompt.tokenizer.save(folder / TOKENIZER)
    with atomic_path(folder / WEIGHTS) as temporary:
        safetensors.torch.save_file(tensors, str(temporary))
        digest = file_digest(temporary)
    description = _plain(
        {
            "format": FORMAT,
            "model": {**kept, "backbone": architecture},
            "trained_from": {**described["backbone"], "lora": described["lora"]},
            "action_space": prompt.action_space.describe(),
            "decision": str(prompt.action_space.decision),
            "layout": asdict(prompt.layout),
            "embodiment": asdict(prompt.embodiment),
            "encoder": {**_plain(encoder), "weights": None},
            "encoder_preprocessing": model.encoder.describe(),
            "encoder_fingerprint": model.encoder.fingerprint() if is_frozen else None,
            "tokenizer": prompt.tokenizer.fingerprint(),
            "data": _plain(data),
            "weights": {"file": WEIGHTS, "xxh3_128": digest},
        }
    )
    write_json(folder / DESCRIPTION, {**description, _SEAL: _digest(description)})


def load_policy(
    folder: str | Path, *, attention: str = "sdpa", device: torch.device | str = "cpu"
) -> LoadedPolicy:
    """Read a bundle and build its model on `device`, in evaluation mode.

    Raises `UserError` for missing or damaged files, and for a tokenizer or a frozen encoder that
    is another one now.
    """
    folder = Path(folder)
    source = folder / DESCRIPTION
    if not source.is_file():
        raise UserError(
            f"{source}: no such file; train writes a policy folder, or name another one"
        )
    described = read_json(source)
    try:
        if described["format"] != FORMAT:
            raise UserError(
                f"{source}: format {described['format']}, this version reads {FORMAT}; train again"
            )
        _require_unchanged(described, source)
        state = _read_weights(folder, described["weights"])
        config = _config(described["model"], folder)
        embodiment = _embodiment(described["embodiment"])
        encoder = TimmEncoder(**described["encoder"])
        model, prompt = assemble(
            config,
            action_space=build_space(described["action_space"]),
            embodiment=embodiment,
            layout=Layout(**described["layout"]),
            encoder=encoder,
            attention=attention,
        )
        decision = DecisionRule.parse(described["decision"])
    except (KeyError, TypeError) as error:
        raise UserError(f"{source}: damaged ({error!r}); train again or restore it") from None
    if prompt.tokenizer.fingerprint() != described["tokenizer"]:
        raise UserError(
            f"{source}: trained with tokenizer {described['tokenizer']}, installed is "
            f"{prompt.tokenizer.fingerprint()}; install the version it was trained with"
        )
    _load_state(model, state, folder / WEIGHTS)
    fingerprint = described.get("encoder_fingerprint")
    if fingerprint is not None and encoder.fingerprint() != fingerprint:
        raise UserError(
            f"{source}: trained on features of encoder {fingerprint}, rebuilt as "
            f"{encoder.fingerprint()}; install the timm version it was trained with"
        )
    model.to(device).eval()
    return LoadedPolicy(model, prompt, embodiment, decision, described["data"], described)


def require_same_conditions(
    loaded: LoadedPolicy,
    *,
    embodiment: Embodiment,
    decision: DecisionRule | None = None,
    is_override: bool = False,
) -> list[str]:
    """Refuse an embodiment or decision rule that is not the trained one.

    Returns the differences (to be reported) where `is_override` allows them.
    """
    found = embodiment_differences(loaded.embodiment, embodiment)
    if decision is not None and decision != loaded.decision:
        found.append(f"decision {loaded.decision} != {decision}")
    if found and not is_override:
        raise UserError(
            f"the policy was trained under other conditions (trained != now): {'; '.join(found)}; "
            "evaluate with the trained ones, or set evaluation.allow_mismatch=true"
        )
    return found


def _digest(description: Mapping[str, Any]) -> str:
    """The digest of a description's content, whatever the order and spacing of its file."""
    content = {key: value for key, value in description.items() if key != _SEAL}
    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True).encode())


def _require_unchanged(described: Mapping[str, Any], source: Path) -> None:
    """What the weights mean is in the description: an edited one would be believed silently."""
    if described.get(_SEAL, found := _digest(described)) != found:
        raise UserError(
            f"{source}: changed since it was written ({_SEAL} is {described[_SEAL]}, its content "
            f"gives {found}); restore it or train again"
        )


def _read_weights(folder: Path, entry: Mapping[str, str]) -> dict[str, Tensor]:
    path = folder / WEIGHTS
    if not path.is_file():
        raise UserError(f"{path}: no such file; the policy folder is incomplete, train again")
    if file_digest(path) != entry["xxh3_128"]:
        raise UserError(f"{path}: not what {DESCRIPTION} describes; restore it or train again")
    try:
        return safetensors.torch.load_file(str(path))
    except safetensors.SafetensorError as error:
        raise UserError(f"{path}: not a safetensors file ({error})") from None


def _load_state(model: VLA, state: dict[str, Tensor], path: Path) -> None:
    own = model.state_dict()
    missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    shapes = [k for k in own if k in state and own[k].shape != state[k].shape]
    if missing or unknown or shapes:
        raise UserError(
            f"{path}: does not fit its {DESCRIPTION}: missing {missing[:3]}, "
            f"unknown {unknown[:3]}, of another shape {shapes[:3]}"
        )
    for name, parameter in state.items():
        own[name].copy_(parameter)


def _config(described: Mapping[str, Any], folder: Path) -> ModelConfig:
    options = dict(described)
    if options["tokenizer"] in ("folder", "gguf"):
        options.update(tokenizer="folder", tokenizer_path=str(folder / TOKENIZER))
    return ModelConfig(**options)


def _embodiment(described: Mapping[str, Any]) -> Embodiment:
    cameras = tuple(Camera(**camera) for camera in described["cameras"])
    return Embodiment(**{**described, "cameras": cameras})


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """`value` as JSON gives it back; keys of configuration machinery (`_target_`) left out."""
    kept = {key: item for key, item in value.items() if not key.startswith("_")}
    return dict(json.loads(json.dumps(kept)))
