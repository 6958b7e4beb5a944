"""Tree and flat steps leave the same gradients, bounds are the formula, rows are whole."""

import json

import numpy as np
import pytest
import torch
from bench_scripts import load

from vla_nav.attention import sdpa
from vla_nav.errors import UserError
from vla_nav.profiling.bench_rows import RowFile, parse_options, positive, whole
from vla_nav.profiling.bounds import bounds, encoder_flops, flop_model
from vla_nav.profiling.curves import CurveSettings, learnable_episodes, train_curve
from vla_nav.profiling.flat import flat_packs
from vla_nav.profiling.step_bench import StepBench
from vla_nav.profiling.step_sides import StepSides
from vla_nav.profiling.sweep import SWEEP, draw_sweep, sweep_cases
from vla_nav.profiling.synthetic import (
    MODEL_SHAPES,
    Forest,
    TreeShape,
    synthetic_features,
    synthetic_model,
)
from vla_nav.tree import flatten, pack
from vla_nav.vision.encoder import TimmEncoder

TOWER = "test_vit"  # timm's smallest: 64 channels, 160 pixels, 10 x 10 tokens
WIDTH = 64


@pytest.fixture(scope="module")
def tower() -> TimmEncoder:
    return TimmEncoder(TOWER, num_tokens=4, num_pooled=0, freeze=False).double()


def tiny(**options):
    """One layer in float64, a new one each time, the same weights."""
    torch.manual_seed(0)
    given = {"num_layers": 1, "num_patches": 30, "feature_width": WIDTH, **options}
    return synthetic_model("tiny", "sdpa", device="cpu", dtype=torch.float64, **given)


def sides_of(model, trees, frames, budget=90, **options):
    packed = pack(trees)
    return StepSides(
        model,
        sdpa.BACKEND,
        packed,
        sdpa.plan(packed),
        flat_packs(trees, budget),
        frames,
        autocast=lambda: torch.autocast("cpu", enabled=False),
        **options,
    )


def gradients(model):
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_same(model, sides):
    loss, expected = sides.tree(), gradients(model)
    flat_loss, found = sides.flat(), gradients(model)
    assert float(loss) == pytest.approx(float(flat_loss), rel=1e-9)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        # float32 loss weights, and norms that compute in float32
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-9, msg=name)
    return expected


@pytest.mark.parametrize("text", ["2*5x7+3@11", "4x(3+20)@9", "2*2^2x5+4@8", "30^1x5+4@8"])
def test_both_sides_leave_the_same_gradients(text):
    forest = Forest.parse(text)
    trees = forest.trees()
    model = tiny()
    frames = synthetic_features(forest.shape, len(trees), "cpu", torch.float64, width=WIDTH)
    assert_same(model, sides_of(model, trees, frames))


def test_trees_that_teach_more_paths_do_not_weigh_more():
    trees = [*Forest.parse("5x7+3@11").trees(), *Forest.parse("2x7+3@11").trees()]
    model = tiny()
    frames = torch.randn(7, 30, WIDTH, dtype=torch.float64)
    assert_same(model, sides_of(model, trees, frames))


@pytest.mark.parametrize("is_encoded_again", [True, False])
def test_a_trained_tower_gets_the_same_gradients(tower, is_encoded_again):
    trees = Forest.parse("2*3x4+3@5").trees()
    model = tiny()
    model.encoder = tower
    frames = torch.randint(0, 256, (6, *tower.image_size, 3), dtype=torch.uint8)
    sides = sides_of(model, trees, frames, is_encoded_again=is_encoded_again)
    found = assert_same(model, sides)
    assert any(name.startswith("encoder") and value.norm() > 0 for name, value in found.items())


def test_bounds_are_the_formula_over_the_paths():
    forest = Forest.parse("2*2^2x5+4@8")
    trees = forest.trees()
    model = synthetic_model("tiny", "sdpa", device="cpu", dtype=torch.float32, num_patches=5)
    cost = flop_model(model)
    hidden, inner, layers, heads, kv_heads = MODEL_SHAPES["tiny"]
    linear = layers * (hidden * 128 * (2 * heads + 2 * kv_heads) + 3 * hidden * inner)
    assert cost.linear_parameters == linear
    lengths = np.array([len(path.tokens().token_ids) for tree in trees for path in flatten(tree)])

    def flops(tokens, pairs, predictors):
        head = 6 * model.num_outputs * hidden * predictors
        return 6 * linear * tokens + 12 * pairs * heads * 128 * layers + head

    found = bounds(trees, cost)
    flat = flops(lengths.sum(), (lengths * (lengths + 1) // 2).sum(), 4 * len(lengths))
    tree = flops(
        sum(tree.num_tokens for tree in trees),
        sum(int((tree.position_ids + 1).sum()) for tree in trees),
        4 * len(lengths),
    )
    assert found.flop_bound == pytest.approx(flat / tree)
    assert found.token_bound == pytest.approx(lengths.sum() / sum(t.num_tokens for t in trees))


def test_a_tower_is_counted_per_encoding(tower):
    trees = Forest.parse("3x4+3@5").trees()  # paths of 1, 2 and 3 frames
    model = synthetic_model("tiny", "sdpa", device="cpu", dtype=torch.float32, num_patches=4)
    frame = encoder_flops(tower, "cpu")
    none, with_tower = (flop_model(model, frame_flops=f) for f in (0.0, frame))
    again = bounds(trees, with_tower)
    once = bounds(trees, with_tower, flat_encodes_once=True)
    plain = bounds(trees, none)
    assert again.flat_flops - plain.flat_flops == pytest.approx(6 * frame)
    assert once.flat_flops - plain.flat_flops == pytest.approx(3 * frame)
    assert again.tree_flops - plain.tree_flops == pytest.approx(3 * frame)
    # A forward is at least the products of its linear layers with every token.
    matrices = sum(m.weight.numel() for m in tower.modules() if isinstance(m, torch.nn.Linear))
    assert frame >= 3 * 2 * matrices * 100


class _Forgetful(StepBench):
    """A flat side that leaves out its last pack."""

    def _sides(self, *arguments):
        sides = super()._sides(*arguments)
        sides.packs = sides.packs[:-1]
        return sides


def test_nothing_is_reported_where_sides_differ():
    options = {"device": "cpu", "dtype": torch.float32, "weights": torch.float32}
    bench = _Forgetful("tiny", "sdpa", num_patches=7, num_layers=1, log=str, **options)
    with pytest.raises(UserError, match="nothing is reported"):
        bench.row(Forest.parse("4x7+3@11"), vision="cached", budget=60, repeats=1)


def test_float32_weights_compute_in_bfloat16():
    options = {"device": "cpu", "dtype": torch.bfloat16, "weights": torch.float32}
    bench = StepBench("tiny", "sdpa", num_patches=7, num_layers=1, log=str, **options)
    seen = set()
    attend = sdpa.attend

    def spy(q, *rest):
        seen.add(q.dtype)
        return attend(q, *rest)

    object.__setattr__(bench.attention, "attend", spy)
    try:
        row = bench.row(Forest.parse("4x7+3@11"), vision="cached", budget=100, repeats=1)
    finally:
        object.__setattr__(bench.attention, "attend", attend)
    assert seen == {torch.bfloat16}
    assert row.gradient_drift < 0.05


def test_the_script_writes_the_rows_that_are_named(tmp_path, capsys):
    target = tmp_path / "step.json"
    arguments = ["models=tiny", "device=cpu", "attention=sdpa", "compile=false", "layers=1"]
    arguments += [f"tower={TOWER}", f"feature_width={WIDTH}", "repeats=1", "flat_repeats=1"]
    arguments += ["budget=96", "commit=abc1234", f"output={target}"]
    script = load("benchmark_step")
    assert script.main([*arguments, "trees=3x4+3@5", "vision=cached,trained,trained-once"]) == 0
    assert script.main([*arguments, "trees=2*2^2x4+3@5"]) == 0
    assert script.main([*arguments, "trees=3x4+3@5"]) == 0  # takes the place of the first row
    rows = json.loads(target.read_text())["rows"]
    assert [(row["tree"], row["vision"]) for row in rows] == [
        ("3x4+3@5", "cached"),
        ("3x4+3@5", "trained"),
        ("3x4+3@5", "trained, flat caches"),
        ("2*2^2x4+3@5", "cached"),
    ]
    names = {"model", "tree", "vision", "tree_ms", "flat_ms", "token_bound", "flop_bound"}
    names |= {"measured", "of_flop_bound", "mfu", "commit"}
    for row in rows:
        assert names <= set(row)
        assert row["measured"] == pytest.approx(row["flat_ms"] / row["tree_ms"])
        assert row["of_flop_bound"] == pytest.approx(row["measured"] / row["flop_bound"])
        assert 0 < row["por"] < 1
    assert [row["num_trees"] for row in rows] == [3, 3, 3, 2]  # 96 tokens hold three of 26
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1


def test_the_sweep_moves_depth_branching_and_overlap(tmp_path):
    model = synthetic_model("tiny", "sdpa", device="cpu", dtype=torch.float32, num_patches=4)
    cost, rows = flop_model(model), []
    for case in sweep_cases():
        forest = Forest.parse(case)
        found = bounds(forest.trees(), cost)
        row = {"tree": case, "depth": forest.shape.depth, "factor": forest.shape.factor}
        row |= {"por": found.stats.potential_overlap, "token_bound": found.token_bound}
        rows.append(row | {"flop_bound": found.flop_bound, "measured": found.flop_bound})
    for axis, column, sign in (("depth", "depth", 1), ("branching", "factor", -1)):
        chosen = [row for row in rows if row["tree"] in SWEEP[axis]]
        assert [row[column] for row in chosen] == sorted({row[column] for row in chosen})
        gains = [sign * row["flop_bound"] for row in chosen]
        assert gains == sorted(gains)
    overlap = [row["por"] for row in rows if row["tree"] in SWEEP["overlap"]]
    assert overlap == sorted(overlap, reverse=True)
    assert overlap[0] - overlap[-1] > 0.4
    target = tmp_path / "sweep.png"
    draw_sweep(rows, "bounds", [str(target)])
    assert target.stat().st_size > 10_000


def test_curves_of_both_sides_lie_on_each_other(tmp_path):
    settings = CurveSettings(
        size="tiny",
        shape=TreeShape(4, 5, 3, prompt=6),
        device="cpu",
        attention="sdpa",
        dtype=torch.float32,
        num_episodes=2,
        steps=6,
        warmup_steps=2,
        learning_rate=1e-3,
        budget=64,
        smaller_budget=32,
    )
    curves = [
        torch.stack(list(train_curve(side, settings))) for side in ("tree", "flat", "flat, smaller")
    ]
    assert curves[0][-1] < 0.9 * curves[0][0]  # it learns
    for other in curves[1:]:
        torch.testing.assert_close(curves[0], other, rtol=1e-4, atol=0)  # float32, six updates


def test_actions_of_the_curves_follow_from_the_frames():
    first, again = (learnable_episodes(TreeShape(40, 2, 3), 1)[0] for _ in range(2))
    assert torch.equal(first.features, again.features)
    classes = first.tree.token_ids[first.tree.target_index].reshape(-1, 3)[:, 0]
    near = torch.cdist(first.features[:, 0], first.features[:, 1]).argmin(1)
    assert (near == torch.arange(40)).any()
    assert len(np.unique(classes)) > 10


def test_the_curves_script_takes_up_finished_sides(tmp_path, capsys):
    target = tmp_path / "curves.json"
    arguments = ["size=tiny", "device=cpu", "attention=sdpa", "compile=false", "tree=3x4+3@5"]
    arguments += ["steps=3", "episodes=1", "budget=64", "smaller_budget=32", "commit=abc1234"]
    script = load("compare_curves")
    other = tmp_path / "tree.json"
    assert script.main([*arguments, "sides=tree", f"output={other}"]) == 0
    assert script.main([*arguments, "sides=flat", f"read={other}", f"output={target}"]) == 0
    capsys.readouterr()
    assert script.main([*arguments, f"output={target}"]) == 0
    assert "tree: step" not in capsys.readouterr().out
    found = json.loads(target.read_text())
    assert {name: len(curve) for name, curve in found["curves"].items()} == {
        "tree": 3,
        "flat": 3,
        "flat, smaller": 3,
    }
    joined = tmp_path / "joined.json"
    assert script.main([*arguments, f"read={target}", f"output={joined}"]) == 0
    assert json.loads(joined.read_text())["curves"] == found["curves"]
    assert found["differences"]["tree - flat"]["largest"] < 1e-3
    assert target.with_suffix(".png").stat().st_size > 10_000
    assert target.with_suffix(".svg").read_text().lstrip().startswith("<?xml")
    with pytest.raises(UserError, match="its steps is 3, not 4"):
        script.main([*arguments, "steps=4", f"output={target}"])


def test_options_are_checked():
    assert parse_options(["a=1"], {"a": "0", "b": "2"}) == {"a": "1", "b": "2"}
    with pytest.raises(UserError, match="unknown option 'c'"):
        parse_options(["c=1"], {"a": "0"})
    with pytest.raises(UserError, match="allowed: a=value"):
        parse_options(["a"], {"a": "0"})
    with pytest.raises(UserError, match="whole numbers from 1 on"):
        whole({"a": "x"}, "a")
    assert positive({"a": "3e-4"}, "a") == 3e-4
    for wrong in ("x", "0", "-1", "nan", "inf"):
        with pytest.raises(UserError, match="numbers above 0"):
            positive({"a": wrong}, "a")


def test_a_row_file_is_whole_after_every_row(tmp_path):
    path = tmp_path / "rows.json"
    for value in (1, 2):  # two processes
        file = RowFile(path, {"commit": "c"}, ("name",))
        for name in ("a", f"only {value}"):
            file.add({"name": name, "value": value})
            assert json.loads(path.read_text())["rows"][0] == {
                "name": "a",
                "value": value,
                "commit": "c",
            }
    assert [row["name"] for row in file.rows] == ["a", "only 1", "only 2"]
