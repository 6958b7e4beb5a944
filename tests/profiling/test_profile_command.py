"""`vla-nav profile` on recorded data: parts that add up, every part there, files that open."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from torch._dynamo.utils import counters

from tests.training.tiny import OPTIONS, cpu_trainer, make_data, recipe, settings
from vla_nav.models.assembly import ModelConfig
from vla_nav.models.backbone import BackboneConfig
from vla_nav.profiling.profile_run import profile
from vla_nav.profiling.profile_table import profile_table
from vla_nav.profiling.regions import (
    ATTENTION,
    AVERAGE,
    BACKWARD,
    COMMUNICATION,
    DATA,
    EMBEDDINGS,
    FORWARD,
    HEAD,
    OPTIMISER,
    PROJECTOR,
    RECOMPUTE,
    RELAY,
    REST,
    STEP,
    TRANSFER,
    VISION,
)
from vla_nav.profiling.step_profile import ProfileSettings
from vla_nav.training.ema import WeightAverage
from vla_nav.training.optimiser import OptimiserSettings
from vla_nav.training.settings import PartitionSettings

MODEL_PARTS = (VISION, PROJECTOR, EMBEDDINGS, ATTENTION, REST, HEAD)
SHORT = ProfileSettings(warmup_steps=1, steps=2, trace_steps=0, html=False)
TRACED = ProfileSettings(warmup_steps=1, steps=2, trace_steps=1, html=False)


class Plain(NamedTuple):
    """A profile of the plain configuration, with everything that is written."""

    result: dict[str, Any]
    folder: Path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("profiled"), num_episodes=12)


def profiled(
    data: Path, folder: Path, *, how: ProfileSettings = SHORT, ranks: int = 1, **changed: Any
) -> dict[str, Any]:
    lines: list[str] = []
    result = profile(
        recipe(data, **changed),
        how,
        output_dir=folder,
        make_trainer=lambda **keywords: cpu_trainer(num_ranks=ranks, **keywords),
        callbacks=[WeightAverage(decay=0.9, every_steps=1)],
        progress=lines.append,
    )
    assert len(lines) == len(how.blocks)
    return result


@pytest.fixture(scope="module")
def plain(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Plain:
    folder = tmp_path_factory.mktemp("plain")
    return Plain(profiled(data, folder, how=replace(TRACED, html=True)), folder)


def phases(result: dict[str, Any]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for part in result["parts"]:
        assert part["ms"] >= 0
        found.setdefault(part["region"], set()).add(part["phase"])
    return found


def check(result: dict[str, Any]) -> None:
    assert result["check"]["adds_up"], result["check"]
    total = sum(part["ms"] for part in result["parts"])
    assert total == pytest.approx(result["steps"]["profiled_ms"], rel=0.03)
    assert sum(group["ms"] for group in result["groups"]) == pytest.approx(total)


def test_a_step_is_split_into_its_parts_and_they_add_up(plain: Plain) -> None:
    result = plain.result
    check(result)
    found = phases(result)
    for part in MODEL_PARTS:
        assert found[part] == {FORWARD, BACKWARD}, part
    for part in (DATA, TRANSFER, OPTIMISER, AVERAGE):
        assert found[part] == {STEP}
    assert RELAY not in found
    assert COMMUNICATION not in found
    assert [group["name"] for group in result["groups"][:2]] == ["vision", "backbone"]
    assert 0 < result["structure"]["por"] < 1
    assert 0 < result["structure"]["live_block_ratio"] <= 1
    assert 0 < result["structure"]["density"] < 1
    assert 0 < result["mfu"]["mfu"] < 1.5  # of a rate measured on a shared machine
    assert result["epoch"]["hours"] > 0
    text = profile_table(result)
    assert text.index("vision") < text.index("backbone")


def test_memory_classes_add_up_to_the_peak(plain: Plain) -> None:
    memory = plain.result["memory"]
    by_class = memory["classes_bytes"]
    assert sum(by_class.values()) == memory["peak_bytes"]
    assert by_class["activations"] > 0
    assert by_class["weights"] > 0
    assert by_class["optimiser"] > by_class["weights"]  # two moments of what trains
    assert by_class["gateways"] == 0
    assert max(memory["course"]["bytes"]) == memory["peak_bytes"]


def test_the_trace_holds_operators_and_regions_that_nest(plain: Plain) -> None:
    trace = json.loads(gzip.decompress((plain.folder / "trace.json.gz").read_bytes()))
    events = trace["traceEvents"]
    regions = [e for e in events if e["pid"] == "regions" and e["ph"] == "X"]
    names = {event["name"] for event in regions}
    assert {f"{ATTENTION} {FORWARD}", f"{VISION} {BACKWARD}", DATA} <= names
    for first, second in pairwise(regions):
        assert first["ts"] + first["dur"] == pytest.approx(second["ts"], abs=0.01)
    start, stop = regions[0]["ts"], regions[-1]["ts"] + regions[-1]["dur"]
    products = [e for e in events if e.get("name") == "aten::addmm" and e["ph"] == "X"]
    assert products
    assert all(start <= event["ts"] <= stop for event in products)
    attention = [e for e in regions if e["name"] == f"{ATTENTION} {FORWARD}"]
    calls = [e for e in events if e.get("name") == "aten::scaled_dot_product_attention"]
    assert calls
    inside = [any(a["ts"] <= call["ts"] <= a["ts"] + a["dur"] for a in attention) for call in calls]
    # The encoder's own attention is no attention of the backbone.
    assert 0 < sum(inside) < len(calls)


def test_the_page_needs_no_network_and_names_the_parts(plain: Plain) -> None:
    page = (plain.folder / "profile.html").read_text()
    for text in ("backbone attention", "sum of the parts", "MFU", "<svg", "trace.json.gz"):
        assert text in page
    assert "<script" not in page
    assert 'src="http' not in page
    assert {path.name for path in plain.folder.glob("*.svg")} == {
        "profile_step.svg",
        "profile_groups.svg",
        "profile_memory.svg",
    }


@pytest.mark.parametrize(("every", "share"), [(True, 1.0), (2, 0.5)])  # of two layers
def test_recomputed_layers_are_a_pass_of_their_own(
    data: Path, tmp_path: Path, every: bool | int, share: float
) -> None:
    backbone = BackboneConfig(options=OPTIONS, gradient_checkpointing=every)
    result = profiled(data, tmp_path, model=ModelConfig(backbone=backbone))
    check(result)
    found = phases(result)
    assert found[ATTENTION] == found[REST] == {FORWARD, BACKWARD, RECOMPUTE}
    expected = {(p["region"], p["phase"]): p["predicted_ms"] for p in result["parts"]}
    for part in (ATTENTION, REST):
        assert expected[part, RECOMPUTE] == pytest.approx(share * expected[part, FORWARD])
    assert found[VISION] == found[HEAD] == {FORWARD, BACKWARD}


@pytest.mark.slow  # compiles two graphs
@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_compiled_layers_are_split_and_nothing_is_compiled_again(
    data: Path, tmp_path: Path, is_checkpointed: bool
) -> None:
    backbone = BackboneConfig(
        options=OPTIONS,
        norms="fused",
        compile="layers",
        gradient_checkpointing=is_checkpointed,
    )
    graphs: list[int] = []
    result = profile(
        recipe(data, model=ModelConfig(backbone=backbone)),
        SHORT,
        output_dir=tmp_path,
        make_trainer=cpu_trainer,
        progress=lambda line: graphs.append(counters["stats"]["unique_graphs"]),
    )
    check(result)
    assert {FORWARD, BACKWARD} <= phases(result)[ATTENTION]
    assert (RECOMPUTE in phases(result)[ATTENTION]) == is_checkpointed
    assert graphs[0] > 0
    assert len(set(graphs)) == 1  # bare and profiled steps run the same graphs


@pytest.mark.parametrize("mode", ["recompute", "keep"])
def test_partitions_have_a_relay_forward_and_backward(
    data: Path, tmp_path: Path, mode: Any
) -> None:
    cut = settings(partition=PartitionSettings(tokens=30, mode=mode))
    result = profiled(data, tmp_path, how=TRACED, settings=cut)
    check(result)
    found = phases(result)
    assert {FORWARD, BACKWARD} <= found[RELAY]
    assert (RECOMPUTE in found[REST]) == (mode == "recompute")
    assert result["structure"]["num_passes"] > result["structure"]["num_packs"]
    assert result["memory"]["classes_bytes"]["gateways"] > 0


def test_packs_in_threads_share_the_wall_time(data: Path, tmp_path: Path) -> None:
    threaded = settings(accumulate=2, parallel_packs=2, pack_tokens=100)
    result = profiled(data, tmp_path, settings=threaded)
    check(result)
    for part in MODEL_PARTS:
        expected = {FORWARD} if part == HEAD else {FORWARD, BACKWARD}
        assert phases(result)[part] == expected, part
    assert any("threads" in note for note in result["notes"])


def test_a_frozen_backbone_has_a_head_that_still_trains(data: Path, tmp_path: Path) -> None:
    frozen = settings(optimiser=OptimiserSettings(learning_rates={"backbone": 0, "vision": 0}))
    result = profiled(data, tmp_path, settings=frozen)
    check(result)
    assert phases(result)[HEAD] == {FORWARD, BACKWARD}
    assert BACKWARD not in phases(result)[VISION]
