"""The card of a converted data set: where it comes from, its conventions, what is not in it.

<root>/card.json     for programs, and what a second start compares
<root>/README.md     the same for people
<root>/skipped.json  every episode that is not in the data set, with the reason
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vla_nav.episodes.conversion import Plan
from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.episodes.source import SourceFacts
from vla_nav.files import atomic_path, write_json

CARD, README, SKIPPED = "card.json", "README.md", "skipped.json"
_SHOWN = 10  # reasons listed in the card; all episodes are in skipped.json

Skips = Sequence[tuple[tuple[str, str, str, str], str]]


def data_card(
    data: LeRobotDataset,
    *,
    facts: SourceFacts,
    source: str,
    source_digest: str,
    rules: Sequence[str],
    skipped: Skips,
    version: str,
) -> dict[str, Any]:
    """The card of a finished data set, plain JSON.

    source: the path it was read from. rules: how steps and frames were made, one sentence each.
    """
    own, body = data.conventions, data.conventions.embodiment
    cameras = [
        {
            "name": camera.name,
            "width_px": camera.width_px,
            "height_px": camera.height_px,
            "hfov_deg": camera.hfov_deg,
            "height_m": camera.height_m,
            "pitch_deg": camera.pitch_deg,
            "has_depth": camera.has_depth,
        }
        for camera in body.cameras
    ]
    reasons = Counter(reason_kind(reason) for _, reason in skipped)
    return {
        "dataset": own.dataset,
        "split": own.split,
        "source": {"path": source, "format": facts.format, "digest": source_digest},
        "source_notes": list(facts.notes),
        "expert": facts.expert or None,
        "poses": "measured" if facts.is_pose_measured else "dead-reckoned from the actions",
        "turn_deg": body.turn_deg,
        "step_m": body.step_m,
        "is_sliding": body.is_sliding,
        "cameras": cameras,
        "decision": own.decision,
        "rules": list(rules),
        "episodes": len(data),
        "steps": int(data.num_steps.sum()),
        "scenes": len(set(data.scene_ids())),
        "instructions": len(set(data.instructions())),
        "storage": own.storage,
        "skipped": len(skipped),
        "skipped_by_reason": dict(reasons.most_common(_SHOWN)),
        "fingerprint": data.fingerprint(),
        "written_by": f"vla_nav {version}",
    }


def reason_kind(reason: str) -> str:
    """A reason without the episode it begins with, without numbers and paths: for counting."""
    text = re.sub(r"^episode \S+?:? ", "", reason)
    text = re.sub(r"\S*/\S*", "...", text)
    return re.sub(r"\d[\d.]*", "N", text)[:160]


def write_card(root: Path, card: Mapping[str, Any]) -> None:
    """Write `card.json` and `README.md`, each at once or not at all."""
    with atomic_path(root / README) as temporary:
        temporary.write_text(card_text(card), encoding="utf-8")
    write_json(root / CARD, card)


def write_skipped(root: Path, skipped: Skips) -> None:
    """Every episode that was left out, with the reason."""
    rows = [
        {"dataset": dataset, "split": split, "role": role, "episode_id": name, "reason": reason}
        for (dataset, split, role, name), reason in skipped
    ]
    write_json(root / SKIPPED, rows)


def card_text(card: Mapping[str, Any]) -> str:
    """The card as Markdown."""
    source = card["source"]
    camera_rows = [
        f"| {_plain(c['name'])} | {c['width_px']}x{c['height_px']} | {c['hfov_deg']:g} | "
        f"{c['height_m']:g} | {c['pitch_deg']:g} | {'yes' if c['has_depth'] else 'no'} |"
        for c in card["cameras"]
    ]
    facts = [
        ("source", f"{_plain(source['path'])} ({source['format']})"),
        ("expert", _plain(card["expert"] or "not stated by the source")),
        ("poses", card["poses"]),
        ("turn", f"{card['turn_deg']:g} degrees"),
        ("step", f"{card['step_m']:g} m, {'sliding' if card['is_sliding'] else 'no sliding'}"),
        ("decision", _plain(str(card["decision"]))),
        ("episodes", f"{card['episodes']:,} with {card['steps']:,} steps"),
        ("scenes", f"{card['scenes']:,}"),
        ("instructions", f"{card['instructions']:,} different"),
        ("left out", f"{card['skipped']:,}"),
        ("fingerprint", f"{card['fingerprint']} (source {source['digest']})"),
        ("written by", card["written_by"]),
    ]
    lines = [
        f"# {_plain(card['dataset'])}, {_plain(card['split'])}",
        "",
        "A LeRobot v3.0 data set; `meta/info.json`, key `vla_nav`, states its conventions.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in facts),
        "",
        "## Cameras",
        "",
        *(
            [
                "| name | pixels | HFOV (deg) | height (m) | pitch (deg) | depth |",
                "|---|---|---|---|---|---|",
                *camera_rows,
            ]
            if camera_rows
            else ["None."]
        ),
        "",
        "## How it was made",
        "",
        *(f"- {_plain(rule)}" for rule in (*card["rules"], *card["source_notes"])),
        "",
        "## Left out",
        "",
    ]
    if card["skipped"]:
        kinds = card["skipped_by_reason"].items()
        lines += [f"Every one is in `{SKIPPED}`; the most frequent reasons:", ""]
        lines += [f"- {count:,} x {_plain(reason)}" for reason, count in kinds]
    else:
        lines += ["Nothing."]
    return "\n".join(lines) + "\n"


def rules_of(plan: Plan, *, decision: str, has_frames: bool, rendered: str | None) -> list[str]:
    """How steps and frames came about, one sentence each."""
    rules = [f"Primitive actions are merged into steps by the decision rule {decision}."]
    if plan.num_stepless:
        rules.append(f"{plan.num_stepless} episodes have no steps: only where to go, and how.")
    if rendered is not None:
        rules.append(f"Frames were rendered from the steps' poses by {rendered}.")
    elif has_frames:
        rules.append("Frames are the source's pixels; their names are digests of the pixels.")
    else:
        rules.append("There are no frames: the source has none. The cameras are those it states.")
    return rules


def _plain(text: str) -> str:
    """Text of a data set inside Markdown: one line, no markup of its own."""
    flat = " ".join(text.split())
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", flat)
