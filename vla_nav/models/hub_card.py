"""The model card of an exported policy: README.md, written from its description and a report.

front matter     library, tags, licence (where one is given): what a model hub indexes
What it is       backbone, encoder, action space, history, robot
How to load it   the whole policy, and each part by its own library
Measured         the rows of a report of this very policy, if one is given
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_nav.errors import UserError
from vla_nav.files import read_json

REPORT = "report.json"
_COLUMNS = {  # of a report's rows: heading, factor, digits
    "n": ("episodes", 1, 0),
    "sr": ("SR %", 100, 1),
    "spl": ("SPL %", 100, 1),
    "osr": ("OSR %", 100, 1),
    "ndtw": ("nDTW %", 100, 1),
    "ne_m": ("NE m", 1, 2),
}


@dataclass(frozen=True)
class Card:
    """What the card says beyond the description. name: the model's; license: an SPDX name or None;
    report: a folder that `evaluate` wrote, or its report.json, or None."""

    name: str
    license: str | None = None
    report: str | None = None


def read_report(source: str, *, digest: str) -> Mapping[str, Any]:
    """A finished report of the policy `digest`. Raises `UserError` for any other."""
    path = Path(source).expanduser()
    path = path / REPORT if path.is_dir() else path
    report = read_json(path)
    run = report.get("run") if isinstance(report, dict) else None
    if not isinstance(run, dict) or not report.get("rows"):
        raise UserError(f"{path}: no report of an evaluation; give the folder that evaluate wrote")
    if run.get("checkpoint") != digest:
        raise UserError(
            f"{path}: measured policy {run.get('checkpoint')}, this one is {digest}; evaluate this "
            "one, or leave export.report null"
        )
    if not report.get("is_complete"):
        raise UserError(
            f"{path}: the evaluation has not finished; finish it, or leave export.report null"
        )
    return report


def render(
    card: Card,
    description: Mapping[str, Any],
    report: Mapping[str, Any] | None,
    *,
    num_parameters: int,
    architecture: str,
) -> str:
    """The text of README.md."""
    lines = [
        *_front_matter(card),
        f"# {card.name}",
        "",
        "A vision-language-action policy for navigation, trained with vla_nav.",
        "",
        *_table(("", ""), _facts(description, num_parameters, architecture)),
        "",
        *_loading(card.name, description, architecture),
        *(_measured(report) if report is not None else ["No evaluation was exported with it.", ""]),
    ]
    return "\n".join(lines)


def _front_matter(card: Card) -> list[str]:
    tags = ("vision-language-action", "vision-and-language-navigation", "embodied-ai", "vla_nav")
    return [
        "---",
        "library_name: vla_nav",
        "pipeline_tag: robotics",
        *([] if card.license is None else [f"license: {card.license}"]),
        "tags:",
        *(f"- {tag}" for tag in tags),
        "---",
        "",
    ]


def _facts(
    description: Mapping[str, Any], num_parameters: int, architecture: str
) -> list[tuple[str, str]]:
    model, encoder = description["model"], description["encoder_preprocessing"]
    options, body = model["backbone"]["options"], description["embodiment"]
    height, width = encoder["image_size"]
    cameras = "; ".join(
        f"{c['name']} {c['width_px']} x {c['height_px']} px, {c['hfov_deg']:g} degrees, "
        f"{c['height_m']:g} m high, pitch {c['pitch_deg']:g} degrees"
        for c in body["cameras"]
    )
    space = description["action_space"]
    arguments = ", ".join(f"{k} {_said(v)}" for k, v in space.items() if k != "name")
    layout = description["layout"]
    data = description.get("data") or {}
    return [
        ("parameters", f"{num_parameters:,}"),
        (
            "backbone",
            f"{architecture}, {options['num_hidden_layers']} layers of width "
            f"{options['hidden_size']}, {options['max_position_embeddings']} positions",
        ),
        ("tokenizer", f"{model['tokenizer']} ({description['tokenizer']})"),
        (
            "encoder",
            f"timm {encoder['encoder']}, {height} x {width} px, {encoder['num_full']} tokens of "
            f"the current frame, {encoder['num_pooled']} pooled",
        ),
        ("actions", f"{space['name']} ({arguments}), executed by {description['decision']}"),
        ("history", ", ".join(f"{key} {value}" for key, value in layout.items())),
        ("cameras", cameras),
        (
            "robot",
            f"radius {body['radius_m']:g} m, height {body['height_m']:g} m, turns of "
            f"{body['turn_deg']:g} degrees, steps of {body['step_m']:g} m",
        ),
        (
            "training data",
            ", ".join(f"{key} {_said(value)}" for key, value in data.items() if value is not None)
            or "not stated",
        ),
        ("weights", description["weights"]["xxh3_128"]),
    ]


def _loading(name: str, description: Mapping[str, Any], architecture: str) -> list[str]:
    auto = "AutoModelForCausalLM" if architecture.endswith("ForCausalLM") else "AutoModel"
    is_cut = description["encoder"].get("feature_index") is not None
    strict = ", pretrained_strict=False" if is_cut else ""
    return [
        "## How to load it",
        "",
        "The whole policy, which takes instructions and frames and gives actions:",
        "",
        "```python",
        "from vla_nav.models.checkpoint import load_policy",
        "",
        f'policy = load_policy("{name}").policy()',
        "```",
        "",
        f"In closed loop: `vla-nav evaluate checkpoint={name} data.path=... data.split=...`.",
        "",
        "Its parts, by the libraries they come from, without remote code:",
        "",
        "```python",
        f"from transformers import AutoImageProcessor, {auto}, AutoTokenizer",
        "import timm",
        "",
        f'backbone = {auto}.from_pretrained("{name}")',
        f'tokenizer = AutoTokenizer.from_pretrained("{name}")',
        f'frames = AutoImageProcessor.from_pretrained("{name}")',
        f'encoder = timm.create_model("local-dir:{name}/encoder", pretrained=True{strict})',
        "```",
        "",
        "`policy.safetensors` holds what is neither's: the projector, the tables of own tokens and "
        "patches, the action head, whose columns `action_space.json` names. The backbone sees "
        "embeddings of all of them, so on text alone it is what the training made of it.",
        *(
            ["", "The encoder is cut: its later stages are not in the folder and not used."]
            if is_cut
            else []
        ),
        "",
    ]


def _measured(report: Mapping[str, Any]) -> list[str]:
    run = report["run"]
    keys = [key for key in _COLUMNS if any(row.get(key) is not None for row in report["rows"])]
    rows = [
        (row["name"], *(_number(row.get(key), *_COLUMNS[key][1:]) for key in keys))
        for row in report["rows"]
    ]
    differs = run.get("differs_from_training") or []
    return [
        "## Measured",
        "",
        f"{run['dataset']} {run['split']}, backend {run['backend']}, success within "
        f"{run['success']['success_m']:g} m, seed {run['seed']}, temperature "
        f"{run.get('temperature', 0)}. A row other than `policy` changes or replaces what the "
        "policy is given.",
        *(
            [f"Evaluated under other conditions than trained: {'; '.join(differs)}."]
            * bool(differs)
        ),
        "",
        *_table(("row", *(_COLUMNS[key][0] for key in keys)), rows),
        "",
    ]


def _said(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _number(value: Any, factor: float, digits: int) -> str:
    return "-" if value is None else f"{value * factor:.{digits}f}"


def _table(heading: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return [
        f"| {' | '.join(heading)} |",
        "|" + "---|" * len(heading),
        *(f"| {' | '.join(str(cell).replace('|', '/') for cell in row)} |" for row in rows),
    ]
