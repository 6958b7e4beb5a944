"""Kernels of recurrent layers on the CPU, by Triton's interpreter: `states`, `stages` or `models`.

    python tests/models/interpreted_kernels.py states      prints relative differences as JSON

A program of its own, as the interpreter is chosen when Triton is first imported.

    states   the kernels that pass states and gradients along, against loops in float64
    stages   a pack through flash-linear-attention's stages and these, against the torch path
    models   whole models in packs and partitions: losses and gradients, against float64
"""

from __future__ import annotations

import json
import math
import os
import sys
from itertools import pairwise

os.environ["TRITON_INTERPRET"] = "1"

import torch
from flat_hybrids import OPTIONS, tiny_hybrid
from torch import Tensor

from tests.verification.random_samples import in_dtype, sample
from vla_nav.models.hybrid import TreeRouting, mixers_of
from vla_nav.models.hybrid import fused as fused_module
from vla_nav.models.hybrid.conv import causal_conv
from vla_nav.models.hybrid.gated_delta import GATED_DELTA
from vla_nav.models.hybrid.mamba2 import MAMBA2
from vla_nav.models.hybrid.mixers import RuleShape
from vla_nav.models.hybrid.parity import kernel_differences
from vla_nav.tree import Path, PrefixTree, pack, text_segment
from vla_nav.tree.heavy_paths import heavy_paths

HEADS, KEY_HEADS = 4, 2


def bushy_pack(padding: int = 3):
    """Chunks of a long node, 1-token nodes, branches inside and at the end of runs, three rounds,
    two trees and padding."""
    long = text_segment(range(70))
    one, two, three = (text_segment([1000 * n, 1000 * n + 1][: 1 + n % 2]) for n in (1, 2, 3))
    paths = [
        Path((long, one)),
        Path((long, two, text_segment(range(400, 420)))),
        Path((long, two, three, text_segment([7]))),
        Path((long, two, three, text_segment([8, 9]))),
        Path((long, text_segment(range(500, 540)), one)),
        Path((long, text_segment(range(500, 540)), two)),
    ]
    trees = [PrefixTree.from_paths(paths), PrefixTree.from_paths(paths[:3])]
    return pack(trees, pad_to=sum(tree.num_tokens for tree in trees) + padding)


def relative(a: Tensor, b: Tensor) -> float:
    return float((a.detach().double() - b.detach()).norm() / b.detach().double().norm())


def log2_sums(table, num_tokens: int) -> Tensor:
    """(T, H) running sums of decays within chunks, as the stages hand them on."""
    decay = -torch.rand(num_tokens, HEADS, dtype=torch.float64) * 0.3
    bounds = table.bounds.tolist()
    return torch.cat([decay[a:b].cumsum(0) for a, b in pairwise(bounds)])


def passed(k, u, w, g, initial, table):
    """By loops: states before and after each chunk, corrected values, branch states."""
    bounds, branch = table.bounds.tolist(), table.branch.tolist()
    groups = HEADS // KEY_HEADS
    rows = [*initial.unbind()] + [None] * table.num_branches
    before, after, corrected = {}, {}, {}
    for first, count, row in table.runs.tolist():
        state = rows[row]
        for chunk in range(first, first + count):
            tokens = slice(bounds[chunk], bounds[chunk + 1])
            before[chunk] = state
            values = u[tokens]
            if w is not None:
                values = values - torch.einsum("thk,hkv->thv", w[tokens], state)
            corrected[chunk] = values
            last = g[tokens][-1]
            keys = k[tokens].repeat_interleave(groups, dim=1) * (last - g[tokens]).exp2()[..., None]
            state = state * last.exp2()[:, None, None] + torch.einsum("thk,thv->hkv", keys, values)
            if state.requires_grad:
                state.retain_grad()
            after[chunk] = state
            if branch[chunk] >= 0:
                rows[len(initial) + branch[chunk]] = state
    order = range(len(branch))
    return (
        torch.stack([before[c] for c in order]),
        [after[c] for c in order],
        torch.cat([corrected[c] for c in order]),
        torch.stack(rows[len(initial) :]),
    )


def check_states() -> dict[str, float]:
    from vla_nav.models.hybrid.state_kernels import (
        initial_gradients,
        pass_gradients_along,
        pass_states_along,
    )

    found = {}
    size, width, scale = 6, 20, 0.7
    whole = bushy_pack().heavy_paths
    gateway = _behind_a_gateway(whole)
    for name, paths, num_initial in (("pack", whole, 1), ("partition", gateway, 3)):
        table, n = paths.table, paths.num_tokens
        for has_reads in (True, False):
            torch.manual_seed(n)
            draw = lambda *shape: torch.randn(*shape, dtype=torch.float64)  # noqa: E731
            k, q, do = draw(n, KEY_HEADS, size), draw(n, KEY_HEADS, size), draw(n, HEADS, width)
            u, w = draw(n, HEADS, width).requires_grad_(), 0.2 * draw(n, HEADS, size)
            g, dv = log2_sums(table, n), draw(n, HEADS, width)
            initial = draw(num_initial, HEADS, size, width)
            initial[0] = 0
            initial.requires_grad_()
            exports = draw(table.num_branches, HEADS, size, width)
            w = w if has_reads else None
            before, after, corrected, branches = passed(k, u, w, g, initial, table)
            chunk_of = torch.repeat_interleave(
                torch.arange(len(table.branch)), table.bounds.diff().long()
            )
            queries = q.repeat_interleave(HEADS // KEY_HEADS, dim=1) * g.exp2()[..., None]
            read = scale * torch.einsum("thk,thkv->thv", queries, before[chunk_of])
            loss = (read * do).sum() + (branches * exports).sum()
            if has_reads:
                loss = loss + (corrected * dv).sum()
            loss.backward()
            narrow = [
                None if x is None else x.detach().float()[None].contiguous()
                for x in (q, k, u, w, g, do, dv)
            ]
            nq, nk, nu, nw, ng, ndo, ndv = narrow
            h, v_new, ends = pass_states_along(
                nk, nu, nw, ng, initial.detach().float(), table, dtype=torch.float32
            )
            dh, dv_new, dh0 = pass_gradients_along(
                nq, nk, nw, ng, ndo, ndv if has_reads else None, exports.float(), table,
                scale=scale, dtype=torch.float32,
            )  # fmt: skip
            label = f"{name}, {'reads' if has_reads else 'no reads'}: "
            zero = torch.zeros_like(before[0])
            gradients = torch.stack([zero if s.grad is None else s.grad for s in after])
            found |= {
                label + "h": relative(h[0], before),
                label + "values": relative(v_new[0], corrected),
                label + "branches": relative(ends, branches),
                label + "dh": relative(dh[0], gradients),
                label + "initial": relative(
                    initial_gradients(dh0, num_initial, table), initial.grad
                ),
            }
            if has_reads:
                found[label + "dv"] = relative(dv_new[0], u.grad)
    return found


def _behind_a_gateway(whole):
    """The tables of the same runs as if the first tree hung from gateway token 1, the other from 0
    (with tokens of the gateway before them)."""
    runs = whole.runs
    parent = runs.parent + 2
    parent[runs.parent < 0] = [1, 0]
    gateway = torch.tensor([0, 1]).numpy()
    return heavy_paths(runs._replace(parent=parent), num_prefix=2, gateway_states=gateway)


def check_stages() -> dict[str, float]:
    one_config_each()
    packed, found = bushy_pack(), {}
    for shape in (
        RuleShape(GATED_DELTA, HEADS, KEY_HEADS, key_size=16, value_size=32, num_inputs=5),
        RuleShape(MAMBA2, HEADS, KEY_HEADS, key_size=16, value_size=8, num_inputs=4),
    ):
        for name, value in kernel_differences(shape, packed, "cpu", torch.float32).items():
            found[f"{shape.rule.name}: {name}"] = value
    return found | conv_differences(packed.heavy_paths)


def conv_differences(paths) -> dict[str, float]:
    """The conv over paths by kernels, output and gradients, against the torch conv."""
    total = paths.num_tokens + 3
    drawn = [torch.randn(1, total, 6), torch.randn(6, 4), torch.randn(6)]
    grad, sides = torch.randn(1, total, 6), []
    for plain in (causal_conv, fused_module.fused_conv):
        given = [x.clone().requires_grad_() for x in drawn]
        out = TreeRouting(paths).convolve(*given, 0, plain)
        sides.append([out, *torch.autograd.grad(out, given, grad)])
    names = ("out", "dx", "dweight", "dbias")
    return {f"conv: {name}": relative(b, a) for name, a, b in zip(names, *sides, strict=True)}


def check_models() -> dict[str, float]:
    from test_hybrid_equals_flat import step

    one_config_each()
    found = {}
    sizes = {
        "qwen3_5_text": {"linear_key_head_dim": 16, "linear_value_head_dim": 16},
        "bamba": {"mamba_d_state": 16},
    }
    for family in OPTIONS:
        exact = tiny_hybrid(family, **sizes[family])
        model = tiny_hybrid(family, dtype=torch.float32, **sizes[family])
        forest = [sample("bushy", 3, 5), sample("unary", 2, 6)]
        expected = step(exact, forest)
        for mixer in mixers_of(model.backbone.model):
            mixer.kernels = "fla"
        for parts in (None, 2):
            step_found = step(model, in_dtype(forest, torch.float32), num_parts=parts)
            label = f"{family} in {parts or 'no'} partitions: "
            found[label + "loss"] = abs(step_found.loss / expected.loss - 1)
            found[label + "gradients"] = max(
                relative(step_found.gradients[name], gradient)
                for name, gradient in expected.gradients.items()
                if gradient.norm() > 0
            )
    return found


def one_config_each() -> None:
    """The interpreter cannot time anything, so every kernel keeps its first configuration."""
    from triton.runtime.autotuner import Autotuner, Heuristics

    fused_module.stages()
    for name, module in list(sys.modules.items()):
        if name.startswith("fla."):
            for value in list(vars(module).values()):
                while isinstance(value, Autotuner | Heuristics):  # one around the other
                    if isinstance(value, Autotuner):
                        value.configs = value.configs[:1]
                    value = value.fn


CHECKS = {"states": check_states, "stages": check_stages, "models": check_models}

if __name__ == "__main__":
    differences = CHECKS[sys.argv[1]]()
    assert all(math.isfinite(value) for value in differences.values())
    print(json.dumps(differences))
