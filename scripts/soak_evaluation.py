"""2,000 episodes on the mesh backend while 20 simulator workers are killed: nothing may be lost.

    python scripts/soak_evaluation.py                              # 2,000 episodes, 20 kills
    python scripts/soak_evaluation.py episodes=60 kills=3 houses=4 output=/tmp/soak

A policy with random weights (or `checkpoint=`) and the expert play houses made for it. Afterwards
some episodes are played once more without kills; their outcomes must be the same. Exits with 1 and
names what is not: lost episodes, memory that grows by more than 5 %, processes left behind.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from vla_nav.actions import WaypointSpace
from vla_nav.commands.compose import compose_config, plain
from vla_nav.evaluation.results import read_results
from vla_nav.evaluation.setup import embodiment_of
from vla_nav.evaluation.soak import verdict, watch
from vla_nav.files import write_json
from vla_nav.models.assembly import ModelConfig, assemble
from vla_nav.models.checkpoint import save_policy
from vla_nav.models.prompt import Layout
from vla_nav.profiling.bench_rows import about, parse_options, run, whole
from vla_nav.vision.encoder import TimmEncoder

DEFAULTS = {"episodes": "2000", "kills": "20", "houses": "60", "workers": "3", "compared": "100"}
DEFAULTS |= {"checkpoint": "", "output": "soak", "seed": "0", "device": "cpu", "commit": ""}
ROWS = 2  # policy and expert: each episode twice
CAMERA = "simulators.embodiment.cameras=[{name: front, width_px: 32, height_px: 24, \
hfov_deg: 90.0, height_m: 1.25, pitch_deg: 0.0, has_depth: false}]"
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16}
SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 4096}
ENCODER = {"name": "resnet10t", "image_size": 32, "num_tokens": 1, "feature_index": 1}


def make_policy(folder: Path) -> None:
    """A policy with random weights, of the body that is evaluated."""
    config = ModelConfig(backbone={"family": "qwen3", "options": SIZES})
    simulators = plain(compose_config("evaluate", ["data.path=x", CAMERA]))["simulators"]
    assembled = assemble(
        config,
        action_space=WaypointSpace(),
        embodiment=embodiment_of(simulators),
        layout=Layout("full", "hidden"),
        encoder=TimmEncoder(**ENCODER),
    )
    save_policy(folder, assembled, config, encoder=ENCODER, data={})


def main(arguments: list[str]) -> int:
    options = parse_options(arguments, DEFAULTS)
    output, num_episodes = Path(options["output"]), whole(options, "episodes") // ROWS
    checkpoint = Path(options["checkpoint"] or output / "policy")
    if not options["checkpoint"]:
        make_policy(checkpoint)
    per_house = -(-num_episodes * 3 // (2 * whole(options, "houses")))  # some houses have fewer
    made = ["houses", f"data.path={output}/data", "houses.num_train=0", "num_workers=2"]
    made += [f"houses.num_val_unseen={whole(options, 'houses')}", f"paths.output_dir={output}/made"]
    made += [f"houses.episodes_per_house={per_house}", f"seed={options['seed']}"]
    subprocess.run([sys.executable, "-m", "vla_nav.commands.cli", *made], check=True)
    common = [f"data.path={output}/data", f"checkpoint={checkpoint}", f"seed={options['seed']}"]
    common += [CAMERA, "evaluation.rows=[policy,expert]", "evaluation.max_primitives=60"]
    common += ["evaluation.deterministic=true", "evaluation.num_slots=24"]
    soaked = [f"paths.output_dir={output}/soaked", f"evaluation.num_episodes={num_episodes}"]
    soaked += [f"num_workers={whole(options, 'workers')}"]
    num_lines = ROWS * num_episodes
    found = {
        **about(options),
        **verdict(
            watch(
                [*common, *soaked],
                output / "soaked",
                num_lines=num_lines,
                num_kills=whole(options, "kills", least=0),
                seed=whole(options, "seed", least=0),
            ),
            output / "soaked",
            num_lines=num_lines,
        ),
    }
    calm = [f"paths.output_dir={output}/calm", f"evaluation.num_episodes={options['compared']}"]
    command = [sys.executable, "-m", "vla_nav.commands.cli", "evaluate", *common, *calm]
    subprocess.run([*command, "num_workers=0"], check=True)
    soaked_records, calm_records = read_results(output / "soaked"), read_results(output / "calm")
    found["compared"] = len(calm_records)
    found["different"] = sum(
        {**soaked_records[key], "attempts": 1} != record for key, record in calm_records.items()
    )
    if found["different"]:
        found["faults"].append(f"{found['different']} outcomes differ from a run without kills")
    write_json(output / "soak.json", found)
    print({key: value for key, value in found.items() if key != "options"})
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    sys.exit(run(main))
