"""The command on the quickstart's configuration: model, encoder, threads and packs as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.recorded import write_recorded
from vla_nav.commands.compose import run
from vla_nav.files import read_json
from vla_nav.vision.encode_run import encode_split
from vla_nav.vision.pixels import PixelResizer

IMAGE_PX = 48


def test_the_quickstart_step_adds_up_within_3_percent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data"
    write_recorded(data, num_episodes=32, num_scenes=8, steps=(8, 14), image_px=IMAGE_PX)
    encode_split(
        data,
        "train",
        PixelResizer(IMAGE_PX),
        num_workers=0,
        batch_size=64,
        shard_mib=4,
        cameras=None,
        device="cpu",
        verify="sizes",
    )
    words = ["experiment=quickstart", f"data.path={data}", "paths.output_dir=out", "num_workers=0"]
    assert (
        run("profile", [*words, "profile.warmup_steps=1", "profile.steps=2", "profile.html=false"])
        == 0
    )
    assert "sum of the parts" in capsys.readouterr().out
    result = read_json(tmp_path / "out" / "profile.json")
    assert result["check"]["adds_up"]
    assert abs(result["check"]["sum_s"] / result["check"]["wall_s"] - 1) <= 0.03
    assert (
        result["check"]["unattributed_share"] < 0.25
    )  # a step of 0.1 s; Lightning's loop is in it
    assert result["what"]["parallel_packs"] == 2
    assert result["what"]["pack_tokens"] == 1024
    named = {part["region"]: part["ms"] for part in result["parts"] if part["phase"] == "backward"}
    assert named["backbone rest"] > named["projector"] > 0
    assert (tmp_path / "out" / "trace.json.gz").stat().st_size > 1000


def test_too_few_steps_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["data.path=nowhere", f"paths.output_dir={tmp_path}"]
    words += ["num_workers=0"]
    assert run("profile", [*words, "profile.steps=0"]) == 2
    assert "profile.steps=0: allowed: integers of 1 and more" in capsys.readouterr().err
