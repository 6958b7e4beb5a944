"""The command line: what it composes, what it refuses, and how it says so."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf

from vla_nav.commands import cli, compose
from vla_nav.commands.compose import compose_config, conf_dir, instantiate, plain, run
from vla_nav.errors import UserError

GROUPS = {
    group.name: sorted(option.stem for option in group.glob("*.yaml"))
    for group in sorted(conf_dir().iterdir())
    if group.is_dir()
}
TRAIN_GROUPS = compose_config("train", hydra=True).hydra.runtime.choices
CHOICES = [
    (group, option)
    for group, options in GROUPS.items()
    if group in TRAIN_GROUPS
    for option in options
]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def install(monkeypatch: pytest.MonkeyPatch, body: Any) -> None:
    """Let `vla-nav stats` call `body`."""
    module = ModuleType("vla_nav.commands.stats")
    module.main = body  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vla_nav.commands.stats", module)


def refused(capsys: pytest.CaptureFixture[str], command: str, *overrides: str) -> str:
    """The one line on stderr of a command that must be refused with exit code 2."""
    assert run(command, overrides) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith(f"vla-nav {command}: ")
    return captured.err


def test_help_lists_every_command_without_importing_torch() -> None:
    code = (
        "import sys; from vla_nav.commands.cli import main; code = main(['--help']);"
        "assert not {'torch', 'hydra', 'lightning', 'numpy'} & set(sys.modules); sys.exit(code)"
    )
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert time.monotonic() - start < 10
    for name in ("train", "stats", *cli.command_names()):
        assert f"\n  {name} " in done.stdout
        assert cli.summary(name)


def test_every_command_has_a_configuration_and_a_main() -> None:
    for name in cli.command_names():
        assert (conf_dir() / f"{name}.yaml").is_file()
        text = (Path(cli.__file__).parent / f"{name}.py").read_text()
        assert "def main(cfg: DictConfig) -> int:" in text


def test_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trian"]) == 2
    assert "unknown command 'trian' (did you mean 'train'?)" in capsys.readouterr().err


@pytest.mark.parametrize("command", cli.command_names())
def test_every_command_composes_and_resolves(command: str) -> None:
    config = compose_config(command, ["data.path=x"])
    assert {"data", "seed", "num_workers", "paths"} <= config.keys()
    plain(config.paths)


@pytest.mark.parametrize(("group", "option"), CHOICES)
def test_every_option_composes_with_train(group: str, option: str) -> None:
    command = "encode" if (group, option) == ("vision", "pixels") else "train"
    config = compose_config(command, ["data.path=x", f"{group}={option}"])
    OmegaConf.to_container(config, resolve=True)


@pytest.mark.parametrize("experiment", GROUPS["experiment"])
def test_every_experiment_says_how_it_is_run_and_passes_the_key_check(experiment: str) -> None:
    head = (conf_dir() / "experiment" / f"{experiment}.yaml").read_text().split("\ndefaults")[0]
    for word in (
        f"# vla-nav train experiment={experiment}",
        "Hardware:",
        "Duration:",
        "Measured result",
    ):
        assert word in head
    compose.check_overrides("train", [f"experiment={experiment}", "data.path=x"])
    for debug in GROUPS["debug"]:
        compose.check_overrides("train", [f"experiment={experiment}", f"debug={debug}"])


@pytest.mark.parametrize("command", ["houses", "record", "encode", "train", "stats", "evaluate"])
def test_one_word_names_the_quickstart_of_every_command(command: str) -> None:
    overrides = ["experiment=quickstart", "data.path=x"]
    compose.check_overrides(command, overrides)
    config = compose_config(command, overrides)
    if command == "encode":
        assert config.vision.image_size == compose_config("train", overrides).vision.image_size
    if command == "record":
        assert config.record.decision == compose_config("train", overrides).actions.decision
    with pytest.raises(UserError, match="did you mean 'quickstart'"):
        compose.check_overrides(command, ["experiment=quickstar"])


def test_settings_instantiate_from_every_training_configuration() -> None:
    for overrides in (
        [],
        ["experiment=quickstart"],
        ["experiment=house_gpu"],
        ["debug=default"],
        ["debug=overfit"],
    ):
        config = compose_config("train", ["data.path=x", *overrides])
        made = instantiate(config.training, normalisation=config.losses.normalisation)
        assert made.pack_tokens == config.training.pack_tokens
        assert made.budget.max_steps == config.training.budget.max_steps
        instantiate(config.actions)
        instantiate(config.models)
    config = compose_config("train", ["data.path=x", "training.budget.max_minutes=3"])
    with pytest.raises(UserError, match="exactly one of max_steps"):
        instantiate(config.training)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainin.log_every_steps=3", "(did you mean 'training.log_every_steps'?)"),
        ("training.log_every_step=3", "(did you mean 'training.log_every_steps'?); keys of"),
        ("+training.log_every_step=3", "did you mean 'log_every_steps'"),
        ("+data.pth=x", "unknown key 'data.pth' (did you mean 'data.path'?)"),
        ("~data.pth", "data.pth"),
        ("attention=flx", "unknown option of group 'attention': 'flx' (did you mean 'flex'?)"),
        ("experiment=quickstrat", "(did you mean 'quickstart'?)"),
        ("evaluation=default", "unknown group of 'train': 'evaluation'"),
        ("data.path", "cannot read the override 'data.path'"),
        ("+data.x=fixed(4)", "brackets: '+data.x=\"fixed(4)\"'"),
        ("data.path=a b,c", "has several values: add -m"),
        ("models.lora={rnk: 3}", "unknown key of 'models.lora' (vla_nav.models.lora.LoraConfig)"),
        ("models.prompt.pose={gird_m: 1}", "'gird_m' (did you mean 'grid_m'?)"),
        ("data.mixture=[{path: a}, {pth: b}]", "unknown key of 'data.mixture.1'"),
        ("training.optimiser.learning_rates={visoin: 1}", "learning_rates.vision'?)"),
        ("training.optimiser.learning_rates.visoin=1", "learning_rates.vision'?)"),
        ("training.budget={max_step: 3}", "(did you mean 'training.budget.max_steps'?)"),
        ("callbacks.checkpoint={kep: 3}", "(did you mean 'callbacks.checkpoint.keep'?)"),
        ("callbacks.closed_loop={every_step: 3}", "take callbacks=closed_loop"),
        ("callbacks=closd_loop", "(did you mean 'closed_loop'?)"),
        ("+logger.tensorboard.save_dri=x", "(did you mean 'save_dir'?)"),
    ],
)
def test_bad_override_is_one_line_with_the_nearest_name(
    capsys: pytest.CaptureFixture[str], override: str, message: str
) -> None:
    assert message in refused(capsys, "train", override)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("command", "override", "message"),
    [
        ("record", "simulators.embodiment.cameras=[{name: a, widht_px: 3}]", "'width_px'?)"),
        ("record", "+simulators.embodiment.cameras.0.widht_px=3", "key of '{}.cameras.0':"),
        ("houses", "houses.route={min_geodesic: 3}", "(did you mean 'houses.route.min_geodesic_m'"),
        ("doctor", "doctor.reachability={num_scene: 3}", "reachability.num_scenes'?)"),
        ("stats", "stats.gpu={nme: 3}", "(did you mean 'stats.gpu.name'?)"),
        ("encode", "encode.batchsize=3", "(did you mean 'encode.batch_size'?)"),
        ("evaluate", "+simulators.options.shadng=3", "'simulators.options.shading'?)"),
        ("evaluate", "task=r2r", "(did you mean 'r2r_ce'?)"),
        ("convert", "+convert.body.turn=3", "(did you mean 'convert.body.turn_deg'?)"),
        ("compare", "compare.run=[a]", "(did you mean 'compare.runs'?)"),
        ("draw", "draw.episod=3", "(did you mean 'draw.episode'?)"),
        ("export", "export.licence=x", "(did you mean 'export.license'?)"),
        ("profile", "+profile.step=3", "(did you mean 'steps'?)"),
        ("verify", "verification.num_episode=3", "(did you mean 'verification.num_episodes'?)"),
        ("view", "view.rn=3", "(did you mean 'view.run'?)"),
    ],
)
def test_unknown_keys_of_every_command_are_named(command: str, override: str, message: str) -> None:
    with pytest.raises(UserError) as refusal:
        compose.check_overrides(command, ["data.path=x", override])
    assert message.format("simulators.embodiment") in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_mistyped_key_inside_an_experiment_file_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = tmp_path / "conf"
    for source in conf_dir().rglob("*.yaml"):
        target = conf / source.relative_to(conf_dir())
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(source.read_text())
    mine = {"training": {"pack_token": 5}, "num_worker": 3}
    (conf / "experiment" / "mine.yaml").write_text(
        "# @package _global_\n" + yaml.safe_dump({"num_worker": 3, "seed": 4})
    )
    (conf / "experiment" / "deep.yaml").write_text(
        "# @package _global_\n" + yaml.safe_dump({"training": mine["training"]})
    )
    monkeypatch.setattr("vla_nav.commands.overrides.conf_dir", lambda: conf)
    line = refused(capsys, "train", "experiment=mine")
    assert "unknown key 'num_worker' (experiment=mine) (did you mean 'num_workers'?)" in line
    assert "did you mean 'pack_tokens'" in refused(capsys, "train", "experiment=deep")


def test_a_constructor_key_may_be_added_and_a_wrong_one_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compose.check_overrides("train", ["+trainer.fast_dev_run=true"])
    with pytest.raises(UserError, match=r"did you mean 'fast_dev_run'"):
        compose.check_overrides("train", ["+trainer.fast_dev_runs=true"])
    config = compose_config("train", ["data.path=x", "+trainer.acelerator=cpu"])
    with pytest.raises(UserError, match=r"key of 'trainer' .*did you mean 'accelerator'"):
        instantiate(config.trainer)
    config = compose_config("train", ["data.path=x", "trainer.accelerator=abacus"])
    with pytest.raises(UserError, match=r"trainer: .*Trainer refuses its values .*'abacus'"):
        instantiate(config.trainer)


@pytest.mark.parametrize(
    ("command", "override", "message"),
    [
        ("houses", "houses.num_train=many", "houses.num_train='many': needs a whole number"),
        ("houses", "houses.num_train=1.5", "houses.num_train=1.5: needs a whole number"),
        ("houses", "houses.num_rooms=5", "houses.num_rooms=5: needs a list (like [5, 8])"),
        ("houses", "houses.num_rooms=[5,a]", "houses.num_rooms.1='a': needs a whole number"),
        ("houses", "houses.agent.step_m=nan", "houses.agent.step_m=nan: needs a finite number"),
        ("houses", "houses=tall", "houses='tall': has keys of its own"),
        ("record", "seed=null", "seed=null: needs a whole number (like 0)"),
        ("record", "num_workers=-1", "num_workers=-1: allowed: 0 or more"),
        ("record", "data.path=7", "data.path=7: needs text"),
        ("record", "data.episodes=7", "data.episodes=7: needs text"),
        (
            "record",
            "simulators.embodiment.cameras.0.width_px=wide",
            "simulators.embodiment.cameras.0.width_px='wide': needs a whole number",
        ),
        ("evaluate", "evaluation.deterministic=3", "needs true or false (like false)"),
        ("train", "training.warmup_share=null", "training.warmup_share=null: needs a finite"),
        ("train", "training.dry_run=null", "training.dry_run=null: needs true or false"),
        ("train", "training.optimiser.freeze=null", "freeze=null: needs a list (like [])"),
    ],
)
def test_a_value_of_another_kind_is_refused(command: str, override: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        compose.check_overrides(command, ["data.path=x", override])


@pytest.mark.parametrize(
    ("command", "override"),
    [
        ("evaluate", "evaluation.num_episodes=null"),
        ("evaluate", "evaluation.success_m=2"),
        ("evaluate", "data.ground_truth=a.json.gz"),
        ("evaluate", "evaluation.further_m=[]"),
        ("record", "simulators.embodiment.cameras.0.width_px=64"),
        ("train", "callbacks.ema=null"),
        ("train", "training.budget.max_steps=null"),
        ("train", "vision.num_tokens=null"),
        ("train", "training.validation.max_episodes=null"),
        ("train", "callbacks.checkpoint.every_minutes=null"),
        ("train", "training.optimiser.clip_norm=inf"),
        ("train", "trainer.devices=[0,1]"),
        ("train", "logger={}"),
        ("train", "models.backbone.compile=layers"),
        ("train", "models.backbone.gradient_checkpointing=2"),
        ("train", "models=qwen3_1_7b models.backbone.compile=false"),
    ],
)
def test_a_value_of_the_same_kind_is_taken(command: str, override: str) -> None:
    compose.check_overrides(command, ["data.path=x", *override.split()])


@pytest.mark.parametrize("command", ["train", "stats", "verify"])
def test_pixels_are_no_encoder(command: str) -> None:
    config = compose_config(command, ["data.path=x", "vision=pixels"])
    with pytest.raises(UserError, match=r"vision: .*PixelResizer only prepares pixels"):
        compose.encoder_keywords(config.vision)
    config = compose_config(command, ["data.path=x", "vision=vit_48"])
    assert compose.encoder_keywords(config.vision)["name"] == "vit_small_patch16_224"


def test_missing_value_names_its_key(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "train")
    assert "'data.path' has no value; give it on the command line: data.path=..." in line


def raising(error: BaseException) -> Any:
    def main(config: DictConfig) -> int:
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UserError("houses/a.glb: no such file"), 2, "vla-nav stats: houses/a.glb: no such file"),
        (OSError(errno.ENOSPC, "No space left on device", "a.bin"), 2, "a.bin: no space left"),
        (RuntimeError("write failed: No space left on device (os error 28)"), 2, "free some space"),
        (
            PermissionError(errno.EACCES, "Permission denied", "a.bin"),
            2,
            "a.bin: permission denied",
        ),
        (
            OSError(errno.EROFS, "Read-only file system", "a.bin"),
            2,
            "on a disk that can be written",
        ),
        (IsADirectoryError(errno.EISDIR, "Is a directory", "a"), 2, "a: is a directory; a folder"),
        (KeyboardInterrupt(), 130, "interrupted; the same command begins anew"),
        (ZeroDivisionError("a defect"), 1, "Traceback"),
    ],
)
def test_faults_end_with_their_code_and_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    message: str,
) -> None:
    install(monkeypatch, raising(error))
    assert run("stats", ["data.path=x"]) == code
    captured = capsys.readouterr().err
    assert message in captured
    assert (captured.count("\n") == 1) == (code != 1)


def test_only_commands_that_continue_say_so_when_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for command, then in (("profile", "begins anew"), ("record", "continues")):
        module = ModuleType(f"vla_nav.commands.{command}")
        module.main = raising(KeyboardInterrupt())  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, f"vla_nav.commands.{command}", module)
        assert run(command, ["data.path=x"]) == 130
        assert capsys.readouterr().err.endswith(f"interrupted; the same command {then}\n")


def test_an_output_folder_that_cannot_be_made_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, raising(AssertionError("must not run")))
    Path("taken").write_text("a file")
    assert run("stats", ["data.path=x", "paths.output_dir=taken/run"]) == 2
    line = capsys.readouterr().err
    assert line.startswith("vla-nav stats: taken/run: not a directory; ")
    assert line.count("\n") == 1


def test_the_composed_configuration_is_stored_and_sweeps_have_a_folder_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    def main(config: DictConfig) -> int:
        seen.append((config.seed, config.paths.output_dir))
        return 0

    install(monkeypatch, main)
    arguments = list(sys.argv)
    assert run("stats", ["data.path=x", "seed=3"]) == 0
    assert sys.argv == arguments
    stored = yaml.safe_load(Path("runs/stats/.hydra/stats/config.yaml").read_text())
    assert (stored["seed"], stored["data"]["path"]) == (3, "x")
    assert run("stats", ["data.path=x", "-m", "seed=1,2"]) == 0
    assert [seed for seed, _ in seen] == [3, 1, 2]
    assert len({folder for _, folder in seen}) == 3


def test_cfg_prints_and_runs_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, raising(AssertionError("must not run")))
    assert run("stats", ["data.path=x", "--cfg", "job"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["data"]["path"] == "x"
