"""Whether simulator workers keep a policy busy: frames per second and the policy's share of time.

    python scripts/benchmark_evaluation.py                      # 8 workers, 224 x 224, Qwen3-0.6B
    python scripts/benchmark_evaluation.py workers=2 size=48 models=qwen3_tiny vision=vit_48 \\
        tree=hidden_full episodes=20 houses=4 device=cpu

A policy with random weights plays houses made for it. Prints and writes what report.json calls
`timing`; loading the policy and starting the workers are not part of it, loading scenes is.
"""

from __future__ import annotations

import sys
from pathlib import Path

from vla_nav.commands.compose import (
    compose_config,
    encoder_keywords,
    instantiate,
    plain,
    run,
    tree_layout,
)
from vla_nav.evaluation.setup import embodiment_of
from vla_nav.evaluation.throughput import sentence
from vla_nav.files import read_json, write_json
from vla_nav.models.assembly import assemble
from vla_nav.models.checkpoint import save_policy
from vla_nav.profiling import bench_rows
from vla_nav.profiling.bench_rows import parse_options, whole
from vla_nav.vision.encoder import TimmEncoder

DEFAULTS = {"workers": "8", "size": "224", "slots": "64", "episodes": "256", "houses": "32"}
DEFAULTS |= {"models": "qwen3_0_6b", "vision": "vit_small", "tree": "hidden_pooled"}
DEFAULTS |= {"device": "cuda", "decisions": "40", "output": "benchmark_evaluation", "commit": ""}


def body_overrides(size: int) -> list[str]:
    """A camera of size x size pixels."""
    camera = f"name: front, width_px: {size}, height_px: {size}, hfov_deg: 90.0, height_m: 1.25"
    return [f"simulators.embodiment.cameras=[{{{camera}, pitch_deg: 0.0, has_depth: false}}]"]


def make_policy(folder: Path, options: dict[str, str], body: list[str]) -> None:
    """Random weights in the shape that is asked for."""
    groups = [f"{key}={options[key]}" for key in ("models", "vision", "tree")]
    config = compose_config("train", ["data.path=x", *groups])
    model, encoder = instantiate(config.models), encoder_keywords(config.vision)
    simulators = plain(compose_config("evaluate", ["data.path=x", *body]))["simulators"]
    assembled = assemble(
        model,
        action_space=instantiate(config.actions),
        embodiment=embodiment_of(simulators),
        layout=tree_layout(config.tree),
        encoder=TimmEncoder(**encoder),
    )
    save_policy(folder, assembled, model, encoder=encoder, data={})


def main(arguments: list[str]) -> int:
    options = parse_options(arguments, DEFAULTS)
    facts = bench_rows.about(options)
    output, num_episodes = Path(options["output"]), whole(options, "episodes")
    body = body_overrides(whole(options, "size"))
    make_policy(output / "policy", options, body)
    num_houses = whole(options, "houses")
    per_house = -(-3 * num_episodes // (2 * num_houses))  # some houses have fewer
    houses = ["houses.num_train=0", f"houses.num_val_unseen={num_houses}", "num_workers=8"]
    houses += [f"houses.episodes_per_house={per_house}", f"paths.output_dir={output}/made"]
    command = ["evaluate", f"paths.output_dir={output}/run", f"checkpoint={output}/policy", *body]
    command += ["evaluation.rows=[policy]", f"evaluation.device={options['device']}"]
    command += [f"evaluation.num_episodes={num_episodes}", "evaluation.num_replays=0"]
    command += [f"num_workers={options['workers']}", f"evaluation.num_slots={options['slots']}"]
    command += [f"evaluation.max_primitives={4 * whole(options, 'decisions')}"]
    for words in (["houses", *houses], command):
        code = run(words[0], [f"data.path={output}/data", *words[1:]])
        if code:
            return code
    timing = read_json(output / "run" / "report.json")["timing"]
    write_json(output / "benchmark.json", {**facts, "timing": timing})
    print(sentence(timing))
    return 0


if __name__ == "__main__":
    sys.exit(bench_rows.run(main))
