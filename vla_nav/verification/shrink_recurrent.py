"""What is cut of a hybrid backbone: layers of both kinds stay, recurrent heads and states shrink.

    layers   r r r a r r r a ...  -> r a          the first ones; the last becomes attention where
                                                  none of them is
    heads    16 : 48 of 128 x 128 -> 2 : 6 of 32 x 32         groups of value heads as they were

Decoders of attention alone have nothing here.
"""

from __future__ import annotations

from typing import Any

_SIZE = 32  # of keys, values and states


def recurrent_cuts(config: Any, *, num_layers: int, hidden_size: int) -> dict[str, Any]:
    """Options of a smaller config of the same family. config: transformers', of the whole model;
    num_layers, hidden_size: of the smaller one."""
    if config.model_type == "qwen3_5_text":
        return _qwen(config, num_layers, hidden_size)
    if config.model_type == "bamba":
        return _bamba(config, num_layers, hidden_size)
    return {}


def _kinds(config: Any, num_layers: int) -> list[str]:
    kinds = list(config.layer_types)[:num_layers]
    if "full_attention" in config.layer_types and "full_attention" not in kinds:
        kinds[-1] = "full_attention"
    return kinds


def _qwen(config: Any, num_layers: int, hidden_size: int) -> dict[str, Any]:
    cut: dict[str, Any] = {"layer_types": _kinds(config, num_layers)}
    if hidden_size < config.hidden_size:
        group = config.linear_num_value_heads // config.linear_num_key_heads
        num_keys = min(2, config.linear_num_key_heads)
        cut |= {
            "linear_num_key_heads": num_keys,
            "linear_num_value_heads": num_keys * group,
            "linear_key_head_dim": min(_SIZE, config.linear_key_head_dim),
            "linear_value_head_dim": min(_SIZE, config.linear_value_head_dim),
        }
    return cut


def _bamba(config: Any, num_layers: int, hidden_size: int) -> dict[str, Any]:
    kinds = _kinds(config, num_layers)
    cut: dict[str, Any] = {
        "attn_layer_indices": [i for i, kind in enumerate(kinds) if kind == "full_attention"]
    }
    if hidden_size < config.hidden_size:
        inner = config.mamba_expand * hidden_size
        num_groups = min(2, config.mamba_n_groups)
        sizes = range(min(_SIZE, config.mamba_d_head), 0, -1)
        size = next(d for d in sizes if inner % d == 0 and inner // d % num_groups == 0)
        cut |= {
            "mamba_n_groups": num_groups,
            "mamba_n_heads": inner // size,
            "mamba_d_head": size,
            "mamba_d_state": min(_SIZE, config.mamba_d_state),
        }
    return cut
