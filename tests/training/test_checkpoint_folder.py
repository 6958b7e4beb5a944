"""A checkpoint folder gives back what was put in, or says what is wrong with it."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from vla_nav.errors import UserError
from vla_nav.training import checkpoint_folder
from vla_nav.training.checkpoint_choice import checkpoint_to_resume
from vla_nav.training.checkpoint_folder import (
    MANIFEST,
    TRAINING,
    WEIGHTS,
    DamagedCheckpointError,
    checkpoint_folders,
    read_checkpoint,
    read_manifest,
    step_folder,
    verify_checkpoint,
    write_checkpoint,
)


def state(step: int = 5) -> dict[str, Any]:
    weight = torch.randn(3, 4, generator=torch.Generator().manual_seed(step))
    return {
        "global_step": step,
        "state_dict": {
            "a": weight,
            "tied": weight,
            "transposed": weight.T,
            "row": weight[1],
            "half": torch.tensor([1.0, float("nan")], dtype=torch.bfloat16),
            "none": torch.zeros(0, 3),
            "extra": {"version": 2},
        },
        "optimizer_states": [{"state": {0: {"step": torch.tensor(5.0), "exp_avg": weight * 2}}}],
        "run": {"elapsed_s": 1.5, "betas": (0.9, 0.98)},
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    written = step_folder(tmp_path, 5)
    write_checkpoint(state(), written)
    return written


def test_everything_comes_back(folder: Path) -> None:
    expected, found = state(), read_checkpoint(folder)
    assert found["state_dict"].keys() == expected["state_dict"].keys()
    for name, value in expected["state_dict"].items():
        if name == "extra":
            assert found["state_dict"][name] == value
        else:
            assert found["state_dict"][name].dtype == value.dtype
            torch.testing.assert_close(
                found["state_dict"][name], value, rtol=0, atol=0, equal_nan=True
            )
    moments = (item["optimizer_states"][0]["state"][0] for item in (expected, found))
    for one, two in zip(*(values.values() for values in moments), strict=True):
        assert torch.equal(one, two)
    assert found["run"] == expected["run"]
    manifest = read_manifest(folder)
    assert (manifest.step, manifest.elapsed_s) == (5, 1.5)


def test_weights_are_plain_safetensors_and_each_stands_once(folder: Path) -> None:
    with safe_open(folder / WEIGHTS, "pt") as handle:
        assert sorted(handle.keys()) == ["a", "half", "none", "row", "transposed"]
    assert sorted(path.name for path in folder.iterdir()) == [MANIFEST, TRAINING, WEIGHTS]
    assert not list(folder.parent.glob("*.tmp-*"))


@pytest.mark.parametrize("name", [MANIFEST, TRAINING, WEIGHTS])
@pytest.mark.parametrize("damage", ["flipped", "shorter", "missing", "folder", "unreadable"])
def test_every_damage_is_found_and_named(folder: Path, name: str, damage: str) -> None:
    path = folder / name
    content = path.read_bytes()
    path.unlink()
    if damage == "flipped":
        place = content.index(b"5") if name == MANIFEST else len(content) // 2
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    elif damage == "shorter":
        path.write_bytes(content[:-7])
    elif damage == "folder":
        path.mkdir()
    elif damage == "unreadable":
        path.symlink_to(path)
    with pytest.raises(DamagedCheckpointError, match=rf"step_00000005/{name}: "):
        read_checkpoint(folder)
    with pytest.raises(UserError, match=r"no older checkpoint is whole.*overwrite=true"):
        checkpoint_to_resume(folder.parent)


def test_nothing_is_unpickled(folder: Path) -> None:
    """A file that a digest vouches for is still read by the loader that builds no objects."""
    (folder / TRAINING).write_bytes(pickle.dumps({"path": Path("x")}, protocol=2))
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest.pop("xxh3_128")
    entry = manifest["files"][TRAINING]
    entry["bytes"] = (folder / TRAINING).stat().st_size
    entry["xxh3_128"] = checkpoint_folder.file_digest(folder / TRAINING)
    seal = checkpoint_folder._digest(manifest)
    (folder / MANIFEST).write_text(json.dumps({**manifest, "xxh3_128": seal}))
    verify_checkpoint(folder)
    with pytest.raises(DamagedCheckpointError, match="cannot be read"):
        read_checkpoint(folder)


def test_another_format_is_no_damage(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text()) | {"format": 9}
    manifest.pop("xxh3_128")
    seal = checkpoint_folder._digest(manifest)
    (folder / MANIFEST).write_text(json.dumps({**manifest, "xxh3_128": seal}))
    for resume in ("newest", "newest_whole"):
        with pytest.raises(UserError, match=r"format 9, this version reads 1") as caught:
            checkpoint_to_resume(folder.parent, resume)
        assert not isinstance(caught.value, DamagedCheckpointError)


def test_the_newest_whole_one_is_chosen_and_the_damaged_put_aside(tmp_path: Path) -> None:
    for step in (5, 99_999_999, 100_000_000):
        write_checkpoint(state(step), step_folder(tmp_path, step))
    folders = checkpoint_folders(tmp_path)
    assert [path.name for path in folders] == ["step_100000000", "step_99999999", "step_00000005"]
    assert checkpoint_to_resume(tmp_path) == checkpoint_to_resume(tmp_path, "newest_whole")
    for path in folders[:2]:
        (path / TRAINING).unlink()
    with pytest.raises(UserError, match=r"continue from step_00000005 .* repeats 99999995 steps"):
        checkpoint_to_resume(tmp_path)
    assert checkpoint_to_resume(tmp_path, "newest_whole", is_writer=False) == folders[2]
    assert checkpoint_folders(tmp_path) == folders
    assert checkpoint_to_resume(tmp_path, "newest_whole") == folders[2]
    assert checkpoint_folders(tmp_path) == folders[2:]
    assert len(list(tmp_path.glob("damaged_step_*"))) == 2
    shutil.rmtree(folders[2])
    assert checkpoint_to_resume(tmp_path) is None
    with pytest.raises(UserError, match=r"unknown resume 'newst' \(did you mean 'newest'\?\)"):
        checkpoint_to_resume(tmp_path, "newst")


def test_writing_a_step_again_replaces_it(folder: Path) -> None:
    changed = state()
    changed["state_dict"]["a"] = torch.ones(2)
    write_checkpoint(changed, folder)
    assert torch.equal(read_checkpoint(folder)["state_dict"]["a"], torch.ones(2))
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_what_cannot_be_stored_leaves_the_old_checkpoint(folder: Path) -> None:
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
        write_checkpoint({**state(), "run": {"lambda": lambda: None}}, folder)
    verify_checkpoint(folder)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
