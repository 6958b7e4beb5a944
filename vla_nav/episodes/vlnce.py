"""Episode files of the VLN-CE family: R2R-CE, RxR-CE, and others of Habitat's JSON shape.

    {"episodes": [{"episode_id": 7 | "7", "scene_id": "mp3d/S/S.glb", "start_position": [x, y, z],
                   "start_rotation": [x, y, z, w], "instruction": {"instruction_text": ...},
                   "goals": [{"position": [...], "radius": 3.0}], "reference_path": [[...], ...]}]}

Ids become strings. Keys that an `Episode` has no field for are kept in `metadata` under their own
names; of the instruction and the goals, what is not text, position or radius, under `instruction`
and `goals`; of the file, beside episodes and vocabulary, under `file`. Ground truth is joined by id
and kept under `ground_truth` (see `ground_truth.py`). The vocabulary is optional and not kept.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vla_nav.episodes.ground_truth import check_ground_truth
from vla_nav.episodes.types import Episode, Goal, Pose
from vla_nav.errors import UserError
from vla_nav.files import atomic_path

_OWN_KEYS = ("episode_id", "scene_id", "start_position", "start_rotation", "reference_path")
_UNIT_TOLERANCE = 1e-3  # of a rotation's norm: single-precision files are off by 1e-7
_HEADING_TOLERANCE_DEG = 0.1
_GZIP_MAGIC = b"\x1f\x8b"


def read_vlnce(
    path: str | Path,
    *,
    dataset: str,
    split: str,
    role: str = "",
    gt: str | Path | None = None,
    default_radius_m: float | None = None,
) -> Iterator[Episode]:
    """Episodes of a `.json.gz` (or `.json`) file, in its order, `steps` empty.

    role: "guide" or "follower" in RxR-CE; by default what the file says, if anything.
    gt: ground-truth file, joined by id. default_radius_m: for goals that state no radius.
    Every fault of the file is a `UserError` naming file, episode and key. A file that looks like
    R2R-CE before v1-3 (its start headings are wrong) gives a warning.
    """
    path = Path(path)
    content = _read_json(path)
    episodes = content.get("episodes") if isinstance(content, dict) else None
    if not isinstance(episodes, list):
        raise UserError(f"{path}: key 'episodes' is missing or not a list; is it an episode file?")
    truths = _read_truths(gt)
    shared = {k: v for k, v in content.items() if k not in ("episodes", "instruction_vocab")}
    if release_of(content) == "r2r-ce before v1-3":
        warnings.warn(
            f"{path}: start headings are not multiples of 30 degrees, so this looks like R2R-CE v1 "
            "or v1-2, whose headings are wrong; use v1-3",
            stacklevel=2,
        )
    seen: set[tuple[str, str]] = set()
    for number, raw in enumerate(episodes):
        episode = _Reader(path, number, raw, default_radius_m).episode(dataset, split, role, shared)
        if (episode.role, episode.episode_id) in seen:
            raise UserError(f"{path}: episode_id {episode.episode_id} occurs twice")
        seen.add((episode.role, episode.episode_id))
        if gt is not None:
            truth = truths.get(episode.episode_id)
            where = f"{gt}: episode {episode.episode_id}"
            check_ground_truth(truth, episode, where)
            metadata = {**episode.metadata, "ground_truth": truth}
            episode = replace(episode, metadata=metadata)
        yield episode


def write_vlnce(path: str | Path, episodes: Iterable[Episode]) -> None:
    """Write episodes as a VLN-CE `.json.gz`, atomically; equal episodes give equal bytes.

    `read_vlnce` gives them back, except for steps, embodiment, `ground_truth` and instruction
    tokens. The vocabulary that public readers ask for is made from the instructions.
    """
    path = Path(path)
    words: set[str] = set()
    shared: dict[str, Any] = {}
    records = []
    for episode in episodes:
        records.append(_to_json(episode))
        words.update(re.findall(r"[a-z']+|[^\sa-z']", episode.instruction.lower()))
        for key, value in episode.metadata.get("file", {}).items():
            is_table = isinstance(value, dict) and isinstance(shared.get(key), dict)
            shared[key] = shared[key] | value if is_table else value
    content = {
        "episodes": records,
        "instruction_vocab": {"word_list": ["<pad>", "<unk>", *sorted(words)]},
    }
    text = json.dumps(content | shared, allow_nan=False)
    with atomic_path(path) as temporary:
        temporary.write_bytes(gzip.compress(text.encode(), compresslevel=6, mtime=0))


def release_of(content: Mapping[str, Any]) -> str:
    """Which release a decoded file looks like: "r2r-ce v1-3", "r2r-ce before v1-3" or "other".

    R2R-CE files have integer ids, a vocabulary and Matterport scenes; up to v1-2 their start
    headings are arbitrary, in v1-3 they are multiples of 30 degrees.
    """
    episodes = content.get("episodes")
    if "instruction_vocab" not in content or not isinstance(episodes, list) or not episodes:
        return "other"
    off = 0
    for raw in episodes:
        try:
            if not isinstance(raw["episode_id"], int) or not raw["scene_id"].startswith("mp3d/"):
                return "other"
            x, y, z, w = raw["start_rotation"]
            yaw = math.degrees(Pose((0.0, 0.0, 0.0), (x, y, z, w)).yaw_rad)
        except (KeyError, TypeError, ValueError, AttributeError):
            return "other"
        off += abs(math.remainder(yaw, 30)) > _HEADING_TOLERANCE_DEG
    return "r2r-ce v1-3" if off == 0 else "r2r-ce before v1-3"


class _Reader:
    """One raw episode of a file, and errors that name it."""

    def __init__(self, path: Path, number: int, raw: Any, default_radius_m: float | None) -> None:
        self._default_radius_m = default_radius_m
        self._name = f"{path}: episode number {number}"
        self._raw: dict[str, Any] = {}
        if not isinstance(raw, dict):
            raise self._error("", f"is {_shown(raw)}, not an object")
        self._raw = raw
        episode_id = raw.get("episode_id")
        if type(episode_id) not in (int, str) or episode_id == "":
            raise self._error("episode_id", f"is {_shown(episode_id)}; allowed: integer or string")
        self._name = f"{path}: episode {episode_id}"

    def episode(self, dataset: str, split: str, role: str, shared: dict[str, Any]) -> Episode:
        raw = self._raw
        metadata = {k: v for k, v in raw.items() if k not in (*_OWN_KEYS, "instruction", "goals")}
        text, about = self._instruction()
        goals, goal_rests = self._goals()
        if about:
            metadata["instruction"] = about
        if any(goal_rests):
            metadata["goals"] = goal_rests
        if shared:
            metadata["file"] = self._shared(shared)
        self._check_numbers(metadata)
        scene_id = raw.get("scene_id")
        if not isinstance(scene_id, str) or not scene_id:
            raise self._error("scene_id", f"is {_shown(scene_id)}; allowed: a path")
        rotation = self._vector(raw.get("start_rotation"), 4, "start_rotation")
        norm = math.hypot(*rotation)
        if abs(norm - 1) > _UNIT_TOLERANCE:
            raise self._error("start_rotation", f"has norm {norm:.4g}; it must be a unit xyzw")
        path = raw.get("reference_path") or []
        if not isinstance(path, list):
            raise self._error("reference_path", f"is {_shown(path)}; allowed: a list of points")
        points = [self._vector(p, 3, f"reference_path[{i}]") for i, p in enumerate(path)]
        return Episode(
            dataset=dataset,
            split=split,
            role=self._role(role),
            episode_id=str(raw["episode_id"]),
            scene_id=scene_id,
            instruction=text,
            start_pose=Pose(self._vector(raw.get("start_position"), 3, "start_position"), rotation),
            goals=goals,
            reference_path=np.array(points, np.float64).reshape(-1, 3),
            embodiment=None,
            metadata=metadata,
        )

    def _instruction(self) -> tuple[str, dict[str, Any]]:
        if "instruction" not in self._raw:
            return "", {}  # ObjectNav and PointNav have none
        about = self._raw["instruction"]
        text = about.get("instruction_text") if isinstance(about, dict) else about
        if not isinstance(text, str):
            raise self._error("instruction.instruction_text", f"is {_shown(text)}; allowed: text")
        rest = about if isinstance(about, dict) else {}
        return text, {k: v for k, v in rest.items() if k != "instruction_text"}

    def _goals(self) -> tuple[tuple[Goal, ...], list[dict[str, Any]]]:
        raw = self._raw.get("goals") or []
        if not isinstance(raw, list):
            raise self._error("goals", f"is {_shown(raw)}; allowed: a list")
        goals, rests = [], []
        for number, goal in enumerate(raw):
            key = f"goals[{number}]"
            if not isinstance(goal, dict):
                raise self._error(key, f"is {_shown(goal)}; allowed: position and radius")
            position = self._vector(goal.get("position"), 3, f"{key}.position")
            radius = goal.get("radius")
            radius = self._default_radius_m if radius is None else radius
            if radius is None:
                raise self._error(f"{key}.radius", "is missing; pass default_radius_m")
            if not _is_number(radius) or radius <= 0:
                raise self._error(f"{key}.radius", f"is {_shown(radius)}; allowed: metres > 0")
            goals.append(Goal(position, float(radius)))
            rests.append({k: v for k, v in goal.items() if k not in ("position", "radius")})
        return tuple(goals), rests

    def _role(self, asked: str) -> str:
        info = self._raw.get("info")
        stated = info.get("role") if isinstance(info, dict) else None
        if stated is not None and not isinstance(stated, str):
            raise self._error("info.role", f"is {_shown(stated)}; allowed: text")
        if stated and asked and stated != asked:
            raise self._error("info.role", f"is '{stated}', asked for was '{asked}'; use its file")
        return asked or stated or ""

    def _shared(self, shared: dict[str, Any]) -> dict[str, Any]:
        """The file's other keys; of ObjectNav's goal table the entry of this episode only."""
        table = shared.get("goals_by_category")
        if not isinstance(table, dict):
            return shared
        scene = str(self._raw.get("scene_id", "")).rsplit("/", 1)[-1]
        own = f"{scene}_{self._raw.get('object_category')}"
        return shared | {"goals_by_category": {own: table[own]} if own in table else {}}

    def _vector(self, value: Any, size: int, key: str) -> Any:
        if not isinstance(value, list) or len(value) != size or not all(map(_is_number, value)):
            raise self._error(key, f"is {_shown(value)}; allowed: {size} finite numbers")
        return tuple(float(x) for x in value)

    def _check_numbers(self, value: Any, key: str = "") -> None:
        if isinstance(value, float) and not math.isfinite(value):
            raise self._error(key, f"is {value}; allowed: finite numbers")
        if isinstance(value, dict):
            for name, item in value.items():
                self._check_numbers(item, f"{key}.{name}" if key else name)
        elif isinstance(value, list) and not all(type(item) is int for item in value):
            for number, item in enumerate(value):
                self._check_numbers(item, f"{key}[{number}]")

    def _error(self, key: str, fault: str) -> UserError:
        return UserError(f"{self._name}: {f'key {key} ' if key else ''}{fault}")


def _to_json(episode: Episode) -> dict[str, Any]:
    metadata = dict(episode.metadata)
    about = {k: v for k, v in metadata.pop("instruction", {}).items() if k != "instruction_tokens"}
    rests = metadata.pop("goals", None) or [{}] * len(episode.goals)
    for key in ("file", "ground_truth"):
        metadata.pop(key, None)
    if episode.role:
        metadata["info"] = {**metadata.get("info", {}), "role": episode.role}
    own = {
        "episode_id": episode.episode_id,
        "scene_id": episode.scene_id,
        "start_position": list(episode.start_pose.position),
        "start_rotation": list(episode.start_pose.rotation),
        "instruction": {"instruction_text": episode.instruction} | about,
        "goals": [
            {"position": list(goal.position), "radius": goal.radius_m} | rest
            for goal, rest in zip(episode.goals, rests, strict=True)
        ],
        "reference_path": episode.reference_path.tolist(),
    }
    return own | {key: value for key, value in metadata.items() if key not in own}


def _read_truths(gt: str | Path | None) -> dict[str, Any]:
    if gt is None:
        return {}
    content = _read_json(Path(gt))
    if not isinstance(content, dict):
        raise UserError(f"{gt}: not a table of episodes; is it a ground-truth file?")
    return content


def _read_json(path: Path) -> Any:
    try:
        data = path.read_bytes()
        text = gzip.decompress(data) if data.startswith(_GZIP_MAGIC) else data
        return json.loads(text)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; see data/README.md on how to obtain it") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: damaged or cut short ({error}); download it again") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path}: not valid JSON ({error})") from None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _shown(value: Any) -> str:
    text = "missing" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
