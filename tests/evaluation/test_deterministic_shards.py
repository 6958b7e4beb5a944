"""A trained network's outcomes, bit for bit: any number of shards, slots and workers, any order
(cases 6 and 10 of the project's list of field faults)."""

from pathlib import Path

import pytest
import torch
from worlds import evaluate_config, report_of, results_of

from vla_nav.actions import DiscreteSpace
from vla_nav.errors import UserError
from vla_nav.evaluation.conditions import conditions_named
from vla_nav.evaluation.runs import evaluate_from
from vla_nav.evaluation.setup import embodiment_of
from vla_nav.evaluation.subject import load_subject
from vla_nav.models.assembly import ModelConfig, assemble
from vla_nav.models.checkpoint import save_policy
from vla_nav.models.prompt import Layout
from vla_nav.vision.encoder import TimmEncoder

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16}
SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 2048}
ENCODER = {"name": "resnet10t", "image_size": 32, "num_tokens": 1, "feature_index": 1}
OPTIONS = (
    "evaluation.num_episodes=6",
    "evaluation.max_primitives=10",
    "evaluation.rows=[policy,swapped_instruction]",
    "evaluation.decision=primitive",
    "evaluation.temperature=1.0",  # every draw turns on the last digits of a probability
)


@pytest.fixture(scope="module")
def policy(world, tmp_path_factory):
    """The bundle of a policy with random weights."""
    torch.manual_seed(3)
    body = embodiment_of(evaluate_config(world, Path("unused"))["simulators"])
    config = ModelConfig(backbone={"family": "qwen3", "options": SIZES})
    assembled = assemble(
        config,
        action_space=DiscreteSpace(),
        embodiment=body,
        layout=Layout("full", "visible"),
        encoder=TimmEncoder(**ENCODER),
    )
    folder = tmp_path_factory.mktemp("policy")
    save_policy(folder, assembled, config, encoder=ENCODER, data={})
    return folder


@pytest.fixture(scope="module")
def run(world, policy, tmp_path_factory):
    """Evaluate deterministically, in a new folder or the given one, shards in the order given."""

    def evaluate(*overrides, shards=(0,), folder=None):
        folder = folder or tmp_path_factory.mktemp("run")
        for shard in shards:
            cut = [f"evaluation.num_shards={len(shards)}", f"evaluation.shard={shard}"]
            options = [*OPTIONS, f"checkpoint={policy}", "evaluation.deterministic=true"]
            config = evaluate_config(world, folder, *options, *cut, *overrides)
            assert evaluate_from(config) == 0
        return folder

    return evaluate


@pytest.fixture(scope="module")
def whole(run):
    return run("evaluation.num_slots=1")


def test_shards_slots_and_workers_do_not_change_a_digit(run, whole):
    results, report = results_of(whole), report_of(whole)
    assert len(results) == 12
    assert len({record["primitives"] for record in results.values()}) >= 6
    for folder in (
        run("evaluation.num_slots=50"),
        run("evaluation.num_slots=5", shards=(2, 0, 1)),
        run("evaluation.num_slots=3", "num_workers=2", shards=(1, 0)),
    ):
        assert results_of(folder) == results
        assert report_of(folder)["rows"] == report["rows"]
        assert report_of(folder)["batching"] == {"is_deterministic": True}


def test_a_lost_shard_is_played_again_by_fewer_processes_and_nothing_else_is(run, whole):
    """Case 6: a shard dies; one process without shards finishes what is missing."""
    folder = run("evaluation.num_slots=4", shards=(0, 1, 2))
    (folder / "results-001-of-003.jsonl").unlink()
    before = {path.name: path.read_bytes() for path in folder.glob("results-*")}
    run(folder=folder)
    assert results_of(folder) == results_of(whole)
    assert {name: (folder / name).read_bytes() for name in before} == before


def test_sums_are_not_cut_over_threads_where_outcomes_must_not_depend_on_cores(
    world, policy, tmp_path, monkeypatch
):
    threads = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(16)))

    def load(*overrides):
        config = evaluate_config(world, tmp_path, *OPTIONS, f"checkpoint={policy}", *overrides)
        load_subject(config, conditions_named(["policy"]))
        return threads[-1]

    free = "evaluation.num_threads=null"
    assert load(free, "evaluation.deterministic=true") == 1
    assert load(free, "num_workers=6") == 10
    assert load("evaluation.num_threads=3", "evaluation.deterministic=true") == 3


@pytest.mark.parametrize(("shard", "gpu"), [(0, 0), (1, 1), (5, 1), (6, 2)])
def test_shards_of_one_machine_share_its_gpus(world, policy, tmp_path, monkeypatch, shard, gpu):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4 if shard != 5 else 2)
    asked, current = [], []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)

    def load(folder, *, device):
        asked.append(device)
        raise UserError("far enough")

    monkeypatch.setattr("vla_nav.models.checkpoint.load_policy", load)
    cut = ["evaluation.num_shards=8", f"evaluation.shard={shard}", f"checkpoint={policy}"]
    with pytest.raises(UserError, match="far enough"):
        load_subject(evaluate_config(world, tmp_path, *cut), conditions_named(["policy"]))
    assert asked == current == [f"cuda:{gpu}"]
