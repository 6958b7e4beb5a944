"""A Hugging Face folder is the policy it was made of; what does not fit is refused in one line."""

from __future__ import annotations

import json
import re
import resource
import shutil

import pytest
import torch
from exported import ENCODERS, bundle, export, logits

from vla_nav.errors import UserError
from vla_nav.models.checkpoint import load_policy
from vla_nav.models.export import without_paths
from vla_nav.models.hub_card import Card
from vla_nav.models.lora import LoraConfig


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """(bundle, its export)."""
    root = tmp_path_factory.mktemp("export")
    bundle(root / "policy")
    return root / "policy", export(root / "policy", root / "tiny")


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) > 0 and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(
    ("family", "head", "tie_head", "encoder"),
    [
        ("qwen3", "actions", False, "cut"),
        ("mistral", "full", False, "vit"),
        ("llama", "full", True, "frozen"),
    ],
)
def test_an_export_is_the_same_policy_bit_for_bit(tmp_path, family, head, tie_head, encoder):
    options = {"family": family, "head": head, "tie_head": tie_head, "encoder": ENCODERS[encoder]}
    bundle(tmp_path / "policy", **options)
    before = load_policy(tmp_path / "policy")
    after = load_policy(export(tmp_path / "policy", tmp_path / "hub", max_shard_size="100KB"))
    state, other = before.model.state_dict(), after.model.state_dict()
    assert state.keys() == other.keys()
    assert all(torch.equal(state[name], other[name]) for name in state)
    assert same(logits(before), logits(after))
    assert len(list((tmp_path / "hub").glob("model-*-of-*.safetensors"))) > 1
    assert (after.embodiment, after.decision) == (before.embodiment, before.decision)
    assert after.digest == before.digest


def test_an_export_of_an_export_is_the_same_folder(folders, tmp_path):
    again = export(folders[1], tmp_path / "again")
    files = sorted(p.relative_to(again) for p in again.rglob("*") if p.is_file())
    assert len(files) == 12
    for name in files:
        assert (again / name).read_bytes() == (folders[1] / name).read_bytes(), name


def test_adapters_kept_apart_are_added_to_the_plain_weights(tmp_path):
    bundle(tmp_path / "policy", lora=LoraConfig(rank=3, merge=False))
    before = load_policy(tmp_path / "policy")
    after = load_policy(export(tmp_path / "policy", tmp_path / "hub"))
    assert before.description["model"]["lora"]["rank"] == 3
    assert after.description["model"]["lora"] is None
    assert not [name for name in after.model.state_dict() if "lora" in name]
    assert after.digest != before.digest, "other weights than were measured"
    for a, b in zip(logits(before), logits(after), strict=True):
        # W x + B (A x) against (W + B A) x in float32.
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)


def test_nothing_names_the_machine_it_was_trained_on(folders):
    for path in folders[1].rglob("*"):
        if path.is_file():
            assert b"home/somebody" not in path.read_bytes(), path
    data = load_policy(folders[1]).data
    assert data["path"] == "demo"
    assert data["mixture"][0]["path"] == "other"
    kept = {"tokenizer_path": "package://a/b.model", "n": 3, "path": None}
    assert without_paths(kept) == kept


def test_only_an_exported_folder_is_replaced_and_only_when_asked(folders, tmp_path):
    source = folders[0]
    target = export(source, tmp_path / "hub")
    with pytest.raises(UserError, match=r"holds an exported policy.*overwrite=true"):
        export(source, target)
    (target / "stale").write_text("x")
    export(source, target, overwrite=True)
    assert not (target / "stale").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    for name in (tmp_path / "mine", source):
        before = sorted(name.iterdir())
        with pytest.raises(UserError, match="no exported policy, which are never replaced"):
            export(source, name, overwrite=True)
        assert sorted(name.iterdir()) == before
    with pytest.raises(UserError, match="is a file"):
        export(source, tmp_path / "mine" / "thesis.tex")
    (tmp_path / "empty").mkdir()
    assert load_policy(export(source, tmp_path / "empty")).digest


def test_a_disk_that_fills_leaves_no_folder(folders, tmp_path):
    """A limit on the size of files is a full disk to the writer."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            export(folders[0], tmp_path / "hub")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.filename == str(tmp_path / "hub")
    assert list(tmp_path.iterdir()) == []


def edited(name: str):
    def change(folder):
        described = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**described, "hidden_act": "relu"}))

    return change


def cut(name: str):
    def change(folder):
        (folder / name).write_bytes((folder / name).read_bytes()[:-64])

    return change


def outside(folder):
    """A list of files that leads out of the folder, with a seal that fits."""
    from vla_nav.models.policy_description import read_description, write_description

    described = read_description(folder)
    files = {**described["weights"]["files"], "../../other.safetensors": "0"}
    write_description(folder, described, weights={**described["weights"], "files": files})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (edited("config.json"), "config.json: not what policy.json describes"),
        (edited("policy.json"), "policy.json: changed since it was written"),
        (cut("model.safetensors"), "model.safetensors: not what policy.json describes"),
        (cut("encoder/model.safetensors"), "encoder/model.safetensors: not what"),
        (lambda folder: (folder / "policy.safetensors").unlink(), "policy.safetensors: no such"),
        (lambda folder: (folder / "tokenizer/tokenizer.model").unlink(), "tokenizer.model: no su"),
        (outside, "damaged (its list of files)"),
    ],
)
def test_a_damaged_folder_is_one_line_that_names_the_file(folders, tmp_path, change, message):
    shutil.copytree(folders[1], tmp_path / "copy")
    change(tmp_path / "copy")
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        load_policy(tmp_path / "copy")
    assert "\n" not in str(caught.value)


def test_the_card_may_be_edited(folders, tmp_path):
    shutil.copytree(folders[1], tmp_path / "copy")
    (tmp_path / "copy" / "README.md").write_text("# better words\n")
    assert load_policy(tmp_path / "copy").digest == load_policy(folders[1]).digest


@pytest.mark.parametrize("size", ["5", "5 GB", "many", "0MB", "-1GB"])
def test_sizes_of_shards_are_checked(folders, tmp_path, size):
    with pytest.raises(UserError, match=r"export\.max_shard_size"):
        export(folders[0], tmp_path / "hub", max_shard_size=size)


def report_of(digest: str, *, is_complete: bool = True) -> dict:
    row = {"name": "policy", "n": 20, "sr": 0.45, "spl": 0.412, "ne_m": 3.456}
    run = {
        "checkpoint": digest,
        "dataset": "houses",
        "split": "val_unseen",
        "backend": "mesh",
        "success": {"success_m": 3.0},
        "seed": 0,
    }
    return {"rows": [row], "run": run, "is_complete": is_complete}


def test_the_card_holds_the_report_of_this_policy_and_of_no_other(folders, tmp_path):
    source = folders[0]
    digest = load_policy(source).digest
    report = tmp_path / "report.json"
    report.write_text(json.dumps(report_of(digest)))
    card = Card("tiny", "apache-2.0", str(tmp_path))
    text = (export(source, tmp_path / "hub", card=card) / "README.md").read_text()
    assert "| policy | 20 | 45.0 | 41.2 | 3.46 |" in text
    assert text.startswith("---\n")
    assert "license: apache-2.0" in text
    for content, message in [
        (report_of("0" * 32), f"measured policy {'0' * 32}, this one is {digest}"),
        (report_of(digest, is_complete=False), "has not finished"),
        ([1], "no report of an evaluation"),
    ]:
        report.write_text(json.dumps(content))
        with pytest.raises(UserError, match=message):
            export(source, tmp_path / "other", card=card)
    assert not (tmp_path / "other").exists()
