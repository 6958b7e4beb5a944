"""The dry run: it predicts what a step takes, touches nothing, refuses what does not fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch.profiler import ProfilerActivity, profile

from tests.training.tiny import make_data, recipe, settings, train, weights_of
from vla_nav.errors import UserError
from vla_nav.losses import weighted_cross_entropy
from vla_nav.training import dry_run
from vla_nav.training.datamodule import RecordedData
from vla_nav.training.dry_run import DryRun, describe
from vla_nav.training.free_memory import ControlGroup, free_bytes, left_bytes
from vla_nav.training.kept_bytes import KeptBytes
from vla_nav.training.optimiser import OptimiserSettings
from vla_nav.training.recipe import Recipe, assembled_data
from vla_nav.training.schedule import Budget
from vla_nav.training.settings import PartitionSettings

GIB = 2**30


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


def made(data: Path, **changed: Any) -> Recipe:
    return recipe(data, settings=settings(**{"budget": Budget(max_steps=4), **changed}))


def test_a_packs_activations_are_what_its_forward_leaves_allocated(data: Path) -> None:
    assembled, module = assembled_data(made(data), RecordedData)
    pack = module.extreme_pack(is_longest=True)

    def forward() -> torch.Tensor:
        found = assembled.model.predictions(pack.packed, pack.frames, pack.plan)
        return weighted_cross_entropy(found, pack.packed, denominator=1.0).value

    forward()  # what is made once, such as tables of positions
    with KeptBytes(assembled.model.parameters()) as kept:
        forward()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as traced:
        loss = forward()
    level = sum(e.nbytes() for e in memory_events(traced))
    assert loss.requires_grad
    # What is left when the forward is done is what autograd keeps, and the loss.
    assert kept.peak == pytest.approx(level, rel=0.1)


class Found(Callback):
    """Keeps the report of the run's dry run and the lengths of its packs."""

    def __init__(self) -> None:
        self.report: Any = None
        self.tokens: list[int] = []
        self.is_clean = False

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if self.report is None:
            (one,) = (item for item in trainer.callbacks if isinstance(item, DryRun))
            self.report = one.report
            self.is_clean = all(p.grad is None for p in module.parameters())
        self.tokens += [pack.packed.num_tokens for pack in batch.packs]


ROWS = OptimiserSettings(used_rows=True)
KINDS = {
    "whole": {},
    "cut": {"partition": PartitionSettings(40)},
    "threads": {"accumulate": 2, "parallel_packs": 2, "optimiser": ROWS},
}


@pytest.mark.parametrize("parts", KINDS.values(), ids=KINDS)
def test_a_run_with_it_ends_with_the_same_weights(
    data: Path, tmp_path: Path, parts: dict[str, Any]
) -> None:
    for is_on in (True, False):
        train(made(data, dry_run=is_on, **parts), tmp_path / str(is_on))
    with_it, without = (weights_of(tmp_path / name) for name in ("True", "False"))
    assert with_it.keys() == without.keys()
    assert all(torch.equal(with_it[name], without[name]) for name in with_it)
    curves = [(tmp_path / name / "curve.jsonl").read_text() for name in ("True", "False")]
    assert curves[0].count("\n") == curves[1].count("\n") > 0


def test_it_takes_the_longest_pack_that_the_run_can_have(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Found()
    train(made(data, accumulate=3), tmp_path / "run", extra=(found,))
    packed = found.report.pack
    assert max(found.tokens) <= packed.num_tokens <= 200
    assert packed.num_trees > 1
    assert found.is_clean
    assert packed.num_partitions == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("dry run: ")]
    assert f"{packed.num_tokens} tokens, {packed.num_trees} trees" in line
    assert "predicted peak" in line
    assert "\n" not in describe(found.report)


def test_weights_optimiser_and_average_are_counted_exactly(data: Path, tmp_path: Path) -> None:
    found = Found()
    train(made(data), tmp_path / "run", extra=(found,))
    stored = weights_of(tmp_path / "run")

    def stored_bytes(part: str) -> int:
        return sum(x.nbytes for name, x in stored.items() if part in name and x.ndim)

    memory = found.report.memory
    assert memory.optimiser == stored_bytes("optimizer_states")
    assert memory.average == stored_bytes("average")
    assert memory.gradients == memory.average
    assert memory.weights >= stored_bytes("state_dict/")


@pytest.mark.parametrize("kind", ["whole", "checkpointed"])
def test_activations_are_what_a_step_allocates(kind: str) -> None:
    # What autograd keeps, against the highest level that torch's profiler sees on the way.
    layers = [
        torch.nn.Sequential(torch.nn.Linear(128, 512), torch.nn.GELU(), torch.nn.Linear(512, 128))
        for _ in range(6)
    ]
    rows = torch.randn(512, 128)

    def forward() -> torch.Tensor:
        hidden = rows
        for layer in layers:
            if kind == "checkpointed":
                hidden = torch.utils.checkpoint.checkpoint(layer, hidden, use_reentrant=False)
            else:
                hidden = layer(hidden)
        return hidden.sum()

    with KeptBytes(p for layer in layers for p in layer.parameters()) as kept:
        forward().backward()
        forward().backward()  # what the first one kept is free again
    found = kept.peak
    assert found == expected_bytes(kind, rows)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as traced:
        loss = forward()
    assert 0.5 * found < allocated(traced) < 1.5 * found + 2 * 512 * 512 * 4
    del loss


def expected_bytes(kind: str, rows: torch.Tensor) -> int:
    """By hand: inputs of every layer; with its two hidden states where these are kept."""
    per_layer = rows.nbytes * (1 if kind == "checkpointed" else 1 + 4 + 4)
    return 6 * per_layer


def allocated(traced: Any) -> int:
    """The highest level of a profile above its beginning."""
    return max(accumulate(event.nbytes() for event in memory_events(traced)))


def memory_events(traced: Any) -> list[Any]:
    return [e for e in traced.profiler.kineto_results.events() if e.name() == "[memory]"]


@pytest.mark.parametrize("free_gib", [0.0, 0.001])
def test_a_run_that_does_not_fit_is_refused_in_one_line(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_gib: float
) -> None:
    monkeypatch.setattr(dry_run, "free_bytes", lambda device: int(free_gib * GIB))
    with pytest.raises(
        UserError, match=r"costliest pack \(1\d\d tokens, .*\) needs .*iB and .* are there"
    ) as said:
        train(made(data), tmp_path / "run")
    for word in ("training.pack_tokens", "partition.tokens", "dry_run=false", "activations"):
        assert word in str(said.value)
    assert not list((tmp_path / "run" / "checkpoints").glob("*"))
    train(made(data, dry_run=False), tmp_path / "run", overwrite=True)


def test_a_long_pack_that_cannot_fit_is_never_begun(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    rehearse: Callable[..., float] = dry_run._rehearse

    def counted(trainer: Any, module: Any, packs: Any) -> float:
        begun.extend(pack.packed.num_tokens for pack in packs)
        return rehearse(trainer, module, packs)

    monkeypatch.setattr(dry_run, "_rehearse", counted)
    monkeypatch.setattr(dry_run, "free_bytes", lambda device: 0)
    with pytest.raises(UserError, match=r"\) needs "):
        train(made(data), tmp_path / "run")
    assert len(begun) == 1
    assert begun[0] < 60  # the shortest tree alone


def test_the_machine_says_what_is_free() -> None:
    free = free_bytes("cpu")
    assert 2**20 < free < 2**60
    lines = Path("/proc/meminfo").read_text().splitlines()
    total = next(int(line.split()[1]) for line in lines if line.startswith("MemTotal"))
    assert free <= 1024 * total


def test_file_pages_of_a_container_count_as_free(tmp_path: Path) -> None:
    group = ControlGroup(*(tmp_path / name for name in ("max", "current", "stat")), ("a", "b"))
    assert left_bytes(group) == math.inf
    group.limit.write_text("max\n")
    group.use.write_text("700\n")
    group.counters.write_text("anon 400\na 200\nb 50\n")
    assert left_bytes(group) == math.inf
    group.limit.write_text("1000\n")
    assert left_bytes(group) == 1000 - 700 + 250
    group.use.write_text("2000\n")
    assert left_bytes(group) == 0
