"""A policy as a Hugging Face folder: each part where its own library looks for it.

    <folder>/
      config.json, model*.safetensors    the backbone: transformers' AutoModel.from_pretrained
      tokenizer.json, ...                AutoTokenizer (hub_tokenizer.py)
      preprocessor_config.json           AutoImageProcessor: frames as the encoder takes them
      encoder/                           timm.create_model("local-dir:<folder>/encoder")
      policy.safetensors                 projector, own tokens, patch rows, head
      action_space.json                  what the head's columns mean
      policy.json                        policy_description.py, with the digest of every file
      README.md                          the model card (hub_card.py); may be edited

    of the whole model                   in the folder
      backbone.model.layers.0 ...        model*.safetensors   model.layers.0 ... (layers.0 ...,
                                                              where there is no text head)
      text_head.weight                   model*.safetensors   lm_head.weight
      encoder.model.blocks.0 ...         encoder/             blocks.0 ...
      projector ..., own_embedding ...   policy.safetensors   the same

A text head exists where the table is tied, or under `models.head: full`; otherwise the backbone is
a model without one (`architectures: [Qwen3Model]`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
import xxhash
from torch import Tensor

from vla_nav.errors import UserError
from vla_nav.files import file_digest, write_json
from vla_nav.models.hub_tokenizer import SOURCE_FILES, write_tokenizer
from vla_nav.models.policy_description import DESCRIPTION, DIGEST, TOKENIZER, write_description
from vla_nav.models.prompt import PromptBuilder
from vla_nav.models.vla import VLA
from vla_nav.vision.hub_encoder import preprocessor, save_encoder

LAYOUT = "hugging_face"
PARTS, ENCODER, CARD = "policy.safetensors", "encoder", "README.md"
_BACKBONE, _TEXT_HEAD, _TIMM = "backbone.model.", "text_head.weight", "encoder.model."
_SAFE_NAME = re.compile(r"((encoder|tokenizer)/)?[\w-][\w.-]*")


def is_described(described: Mapping[str, Any]) -> bool:
    """Whether a description is that of a Hugging Face folder."""
    entry = described.get("weights")
    return isinstance(entry, Mapping) and entry.get("layout") == LAYOUT


def write_folder(
    folder: Path,
    model: VLA,
    prompt: PromptBuilder,
    description: Mapping[str, Any],
    *,
    state: Mapping[str, Tensor],
    digest: str | None,
    max_shard_size: str,
) -> None:
    """Fill an empty folder, all but its card.

    state: tensors by their names in the model. digest: of the trained weights, None where `state`
    holds others; then it is made of the files.
    """
    has_head = model.backbone.is_tied or _TEXT_HEAD in state
    _write_config(folder, model, has_head=has_head)
    _write_shards(folder, _backbone_state(state, has_head=has_head), max_shard_size)
    parts = {key: x for key, x in state.items() if not key.startswith((_BACKBONE, _TIMM))}
    parts.pop(_TEXT_HEAD, None)
    safetensors.torch.save_file(parts, str(folder / PARTS), {"format": "pt"})
    save_encoder(
        model.encoder,
        folder / ENCODER,
        {key.removeprefix(_TIMM): x for key, x in state.items() if key.startswith(_TIMM)},
    )
    write_tokenizer(prompt.tokenizer, folder, source_folder=folder / TOKENIZER)
    write_json(folder / "preprocessor_config.json", preprocessor(model.encoder))
    write_json(folder / "action_space.json", _action_space(prompt))
    for path in folder.rglob("*.safetensors"):  # written for their owner alone
        path.chmod((folder / "config.json").stat().st_mode)
    files = {
        str(path.relative_to(folder)): file_digest(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    entry = {"layout": LAYOUT, DIGEST: digest or _digest_of(files), "files": files}
    write_description(folder, description, weights=entry)


def read_weights(folder: Path, described: Mapping[str, Any]) -> Iterator[dict[str, Tensor]]:
    """Tensors by their names in the model, file by file; read when asked for.

    Every file is compared with its digest first. Raises `UserError` for what is missing or changed.
    """
    files = described["weights"].get("files")
    if not isinstance(files, dict) or not all(map(_SAFE_NAME.fullmatch, files)):
        raise UserError(f"{folder / DESCRIPTION}: damaged (its list of files); restore it")
    for name, digest in files.items():
        path = folder / name
        if not path.is_file():
            raise UserError(f"{path}: no such file; the folder is incomplete, export again")
        if file_digest(path) != digest:
            raise UserError(
                f"{path}: not what {DESCRIPTION} describes (changed, cut short, or a pointer to a "
                "file that was not downloaded); restore it or export again"
            )
    return _parts(folder, [name for name in files if name.endswith(".safetensors")])


def tokenizer_path(folder: Path, described: Mapping[str, Any]) -> Path:
    """Where the tokenizer of a description lies in its folder."""
    model = described.get("model")
    kind = model.get("tokenizer") if isinstance(model, Mapping) else None
    return folder / TOKENIZER / SOURCE_FILES[kind] if kind in SOURCE_FILES else folder


def _parts(folder: Path, names: list[str]) -> Iterator[dict[str, Tensor]]:
    for name in names:
        try:
            tensors = safetensors.torch.load_file(str(folder / name))
        except safetensors.SafetensorError as error:
            raise UserError(f"{folder / name}: not a safetensors file ({error})") from None
        if name == PARTS:
            yield tensors
        elif name.startswith(f"{ENCODER}/"):
            yield {f"{_TIMM}{key}": tensor for key, tensor in tensors.items()}
        else:
            yield {_own_name(key): tensor for key, tensor in tensors.items()}


def _own_name(key: str) -> str:
    """The model's name of a tensor that transformers calls `key`."""
    return _TEXT_HEAD if key == "lm_head.weight" else _BACKBONE + key.removeprefix("model.")


def _backbone_state(state: Mapping[str, Tensor], *, has_head: bool) -> dict[str, Tensor]:
    """The backbone's tensors as transformers names them."""
    prefix = "model." if has_head else ""
    found = {
        prefix + key.removeprefix(_BACKBONE): tensor
        for key, tensor in state.items()
        if key.startswith(_BACKBONE)
    }
    if _TEXT_HEAD in state:
        found["lm_head.weight"] = state[_TEXT_HEAD]
    return found


def _write_shards(folder: Path, state: Mapping[str, Tensor], max_shard_size: str) -> None:
    """model.safetensors, or its shards and their index."""
    from huggingface_hub import split_torch_state_dict_into_shards

    split = split_torch_state_dict_into_shards(dict(state), max_shard_size=max_shard_size)
    for name, keys in split.filename_to_tensors.items():
        tensors = {key: state[key] for key in keys}
        safetensors.torch.save_file(tensors, str(folder / name), {"format": "pt"})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        write_json(folder / "model.safetensors.index.json", index)


def _write_config(folder: Path, model: VLA, *, has_head: bool) -> None:
    """transformers' config.json of the backbone, with the class that its weights are of."""
    from transformers import AutoModelForCausalLM

    config = type(model.backbone.model.config).from_dict(model.backbone.model.config.to_dict())
    with torch.device("meta"):
        causal = AutoModelForCausalLM.from_config(config)
    written = causal if has_head else model.backbone.model
    config.architectures = [type(written).__name__]
    config.use_cache = True  # off while training; whoever generates wants it
    config.dtype = next(model.backbone.model.parameters()).dtype
    config.save_pretrained(str(folder))


def _action_space(prompt: PromptBuilder) -> dict[str, Any]:
    """What the columns of the head mean: a copy for readers, policy.json is what is loaded."""
    space, vocabulary = prompt.action_space, prompt.vocabulary
    return {
        **space.describe(),
        "decision": str(space.decision),
        "tokens": list(space.token_names),
        "max_length": space.max_length,
        "vocabulary": {
            "actions": vocabulary.num_actions,
            "specials": list(vocabulary.specials),
            "pose": vocabulary.num_pose,
            "text": vocabulary.num_text,
        },
    }


def _digest_of(files: Mapping[str, str]) -> str:
    """One digest of all weights, for those that were never kept in another layout."""
    weights = sorted((k, v) for k, v in files.items() if k.endswith(".safetensors"))
    return xxhash.xxh3_128_hexdigest(repr(weights).encode())
