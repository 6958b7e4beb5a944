"""A policy on disk: weights and everything that must agree with them, in one folder.

    <folder>/                 as `train` writes it
      weights.safetensors     the model, its encoder included
      policy.json             policy_description.py; written last
      tokenizer/              only for tokenizers that no package ships

The other layout of the same description is a Hugging Face folder (hub_folder.py), which `export`
writes. Loading takes both, builds known classes and reads tensors alone. Files are replaced
atomically, and a half-replaced pair is noticed by the digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from vla_nav.actions.decisions import DecisionRule
from vla_nav.episodes.bodies import embodiment_differences
from vla_nav.episodes.types import Embodiment
from vla_nav.errors import UserError
from vla_nav.files import atomic_path, file_digest, require_free_space
from vla_nav.models import hub_folder
from vla_nav.models.assembly import Assembled, ModelConfig
from vla_nav.models.lora import merged
from vla_nav.models.policy import VLAPolicy
from vla_nav.models.policy_description import (
    DESCRIPTION,
    DIGEST,
    TOKENIZER,
    PolicyParts,
    as_merged,
    describe,
    parts_of,
    read_description,
    rebuild,
    require_same_encoder,
    write_description,
)
from vla_nav.models.prompt import PromptBuilder
from vla_nav.models.vla import VLA

WEIGHTS = "weights.safetensors"


@dataclass(frozen=True)
class LoadedPolicy:
    """A policy read back. `description` is policy.json, `parts` what it names, `data` its free
    entry about the data."""

    model: VLA
    prompt: PromptBuilder
    parts: PolicyParts
    data: Mapping[str, Any]
    description: Mapping[str, Any]

    @property
    def embodiment(self) -> Embodiment:
        """The body and cameras of the training."""
        return self.parts.embodiment

    @property
    def decision(self) -> DecisionRule:
        """The decision rule of the training."""
        return self.parts.decision

    @property
    def digest(self) -> str:
        """Names the trained weights, in whichever layout they are kept."""
        return str(self.description["weights"][DIGEST])

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
    description = describe(assembled, config, encoder=encoder, data=data)
    model, prompt = assembled
    state = {**model.state_dict(), **(weights or {})}
    if config.lora is not None and config.lora.merge:
        state, description = merged(state, config.lora), as_merged(description)
    tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in state.items()}
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    require_free_space(folder, size, what="the policy")
    prompt.tokenizer.save(folder / TOKENIZER)
    with atomic_path(folder / WEIGHTS) as temporary:
        safetensors.torch.save_file(tensors, str(temporary))
        digest = file_digest(temporary)
    write_description(folder, description, weights={"file": WEIGHTS, DIGEST: digest})


def load_policy(
    folder: str | Path, *, attention: str = "sdpa", device: torch.device | str = "cpu"
) -> LoadedPolicy:
    """Read a policy folder of either layout and build its model on `device`, in evaluation mode.

    Raises `UserError` for missing or damaged files, and for a tokenizer or a frozen encoder that
    is another one now.
    """
    folder = Path(folder)
    described = read_description(folder)
    # The digests of the files first: a damaged one is told before a large model is built.
    is_hub = hub_folder.is_described(described)
    tensors = hub_folder.read_weights(folder, described) if is_hub else _read(folder, described)
    parts = _parts(folder, described)
    model, prompt = rebuild(folder, parts, attention=attention)
    _load_state(model, tensors, folder)
    require_same_encoder(folder, described, model.encoder)
    model.to(device).eval()
    return LoadedPolicy(model, prompt, parts, described.get("data", {}), described)


def read_parts(folder: str | Path) -> PolicyParts:
    """What a policy folder of either layout is made of, without its weights."""
    return _parts(Path(folder), read_description(Path(folder)))


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


def _parts(folder: Path, described: Mapping[str, Any]) -> PolicyParts:
    is_hub = hub_folder.is_described(described)
    path = hub_folder.tokenizer_path(folder, described) if is_hub else folder / TOKENIZER
    return parts_of(folder, described, tokenizer_path=path)


def _read(folder: Path, described: Mapping[str, Any]) -> Iterable[dict[str, Tensor]]:
    """The tensors of a bundle, checked by their digest."""
    path, entry = folder / WEIGHTS, described.get("weights")
    if not path.is_file():
        raise UserError(f"{path}: no such file; the policy folder is incomplete, train again")
    if not isinstance(entry, dict) or file_digest(path) != entry.get(DIGEST):
        raise UserError(f"{path}: not what {DESCRIPTION} describes; restore it or train again")
    try:
        return [safetensors.torch.load_file(str(path))]
    except safetensors.SafetensorError as error:
        raise UserError(f"{path}: not a safetensors file ({error})") from None


def _load_state(model: VLA, files: Iterable[Mapping[str, Tensor]], folder: Path) -> None:
    """Copy tensors into the model, file by file: a large model's files are never all in memory."""
    own = model.state_dict()
    missing = set(own)
    unknown: list[str] = []
    shapes: list[str] = []
    for tensors in files:
        for name, tensor in tensors.items():
            if name not in own:
                unknown.append(name)
            elif own[name].shape != tensor.shape:
                shapes.append(name)
            else:
                own[name].copy_(tensor)
            missing.discard(name)
    if missing or unknown or shapes:
        raise UserError(
            f"{folder}: its weights do not fit its {DESCRIPTION}: missing {sorted(missing)[:3]}, "
            f"unknown {sorted(unknown)[:3]}, of another shape {sorted(shapes)[:3]}"
        )
