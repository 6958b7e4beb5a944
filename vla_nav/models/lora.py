"""LoRA: a backbone that stays as it was read, and two thin matrices beside each of its layers.

    y = W x + (alpha / rank) B (A x)       W (out, in) frozen
                                           A (rank, in) random, B (out, rank) zero at the start

peft puts its layers in the place of the backbone's linear ones, so that a parameter's name says
what it is: `q_proj.base_layer.weight` is W, `q_proj.lora_A.default.weight` is A. Norms and the
text table stay frozen with W. What is not in the backbone (encoder, projector, own tokens, head)
trains as before.

`merged` adds the product to W: plain weights of the plain model, what a policy is saved as.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vla_nav.errors import UserError, require_count, unknown_name

ADAPTER = "default"  # peft's name of the only adapter
_BASE, _A, _B = ".base_layer.", f".lora_A.{ADAPTER}.weight", f".lora_B.{ADAPTER}.weight"


@dataclass(frozen=True)
class LoraConfig:
    """rank: columns of A and rows of B. alpha: the product counts alpha / rank times. dropout: 0,
    others are refused. targets: names of the backbone's linear layers (`q_proj`), all of them by
    default. merge: a policy is saved as plain weights; false: as W, A and B, which compute bit for
    bit what was trained."""

    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    targets: Sequence[str] | None = None
    merge: bool = True

    def __post_init__(self) -> None:
        require_count("models.lora.rank", self.rank)
        if isinstance(self.alpha, bool) or not isinstance(self.alpha, int | float):
            raise UserError(f"models.lora.alpha={self.alpha!r}; a number above 0 is needed")
        if not self.alpha > 0:
            raise UserError(f"models.lora.alpha={self.alpha}; a number above 0 is needed")
        if self.dropout != 0:
            raise UserError(
                f"models.lora.dropout={self.dropout}: a token that paths share would be dropped in "
                "all of them or in none, so a tree would differ from its paths; set it to 0"
            )
        if not isinstance(self.merge, bool):
            raise UserError(f"models.lora.merge={self.merge!r}; allowed: true, false")
        if self.targets is not None:
            if isinstance(self.targets, str) or not self.targets:
                raise UserError(
                    f"models.lora.targets={self.targets!r}; give a list of layer names such as "
                    "[q_proj, v_proj], or null for all"
                )
            object.__setattr__(self, "targets", tuple(self.targets))

    @property
    def scale(self) -> float:
        """How often the product B A counts."""
        return self.alpha / self.rank

    def describe(self) -> dict[str, Any]:
        """Constructor keywords as plain values."""
        targets = None if self.targets is None else list(self.targets)
        return {**asdict(self), "targets": targets}


def add_lora(model: nn.Module, config: LoraConfig, *, seed: int) -> None:
    """Put adapters into a transformers decoder, in place; all else in it is frozen.

    seed: of A. Raises `UserError` where peft is missing and for targets that do not exist.
    """
    if importlib.util.find_spec("peft") is None:
        raise UserError(
            "models.lora needs the package peft, which is not installed; "
            "pip install 'vla_nav[finetune]', or set models.lora=null"
        )
    import peft

    known = linear_names(model)
    targets = known if config.targets is None else tuple(config.targets)
    for name in targets:
        if name not in known:
            raise unknown_name("layer in models.lora.targets", name, known)
    most = max(
        min(module.in_features, module.out_features)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name.rpartition(".")[2] in targets
    )
    if config.rank > most:
        raise UserError(
            f"models.lora.rank={config.rank}: no layer in models.lora.targets has a rank above "
            f"{most}; allowed: 1 to {most}"
        )
    adapters = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=0.0,
        target_modules=list(targets),
        bias="none",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        peft.inject_adapter_in_model(adapters, model, adapter_name=ADAPTER)
    for module in model.modules():
        if isinstance(module, peft.tuners.lora.LoraLayer):
            module.cast_input_dtype_enabled = False  # autocast decides, as for every other layer


def linear_names(model: nn.Module) -> tuple[str, ...]:
    """The last parts of the names of a model's linear layers, each once."""
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return tuple(dict.fromkeys(name.rpartition(".")[2] for name in names))


@torch.no_grad()
def draw_adapters(model: nn.Module, *, seed: int) -> None:
    """Draw every B, in place: adapters that do nothing yet would prove little."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith(_B):
            drawn = torch.randn(parameter.shape, generator=generator) / parameter.shape[1] ** 0.5
            parameter.copy_(drawn)


def is_adapter(name: str) -> bool:
    """Whether a parameter of this name is an A or a B."""
    return name.endswith((_A, _B))


def merged(state: Mapping[str, Tensor], config: LoraConfig) -> dict[str, Tensor]:
    """The weights of the plain model: W + scale B A in float32 (wider where they are), in W's dtype
    and under W's plain name; everything else as it is."""
    plain: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if is_adapter(name):
            continue
        layer, base, rest = name.partition(_BASE)
        if not base:
            plain[name] = tensor
            continue
        if rest == "weight":
            a, b = state[layer + _A], state[layer + _B]
            wide = torch.promote_types(tensor.dtype, torch.float32)
            product = b.detach().to(wide) @ a.detach().to(wide)  # (out, in)
            tensor = (tensor.detach().to(wide) + product * config.scale).to(tensor.dtype)
        plain[f"{layer}.{rest}"] = tensor
    return plain
