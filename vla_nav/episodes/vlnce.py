"""Episode files of the VLN-CE family: R2R-CE, RxR-CE, and others of Habitat's JSON shape.

    {"episodes": [{...}, ...], "instruction_vocab": {...}, ...}         see `episode_json.py`

Read piece by piece, twice: first for the keys beside `episodes` (and any damage), then for the
episodes. Ground truth is joined by id and kept under `metadata["ground_truth"]` (see
`ground_truth.py`). The vocabulary is optional and not kept.
"""

from __future__ import annotations

import gzip
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vla_nav.episodes.entry_store import EntryStore
from vla_nav.episodes.episode_json import find_fault, parse_episode
from vla_nav.episodes.ground_truth import check_ground_truth
from vla_nav.episodes.json_stream import JsonFile
from vla_nav.episodes.r2r_release import BEFORE_V1_3, HEADING_WARNING, R2RRelease, ReleaseCount
from vla_nav.episodes.source import EpisodeError
from vla_nav.episodes.types import Episode
from vla_nav.errors import UserError
from vla_nav.files import atomic_path


def read_vlnce(
    path: str | Path,
    *,
    dataset: str,
    split: str,
    role: str = "",
    gt: str | Path | None = None,
    default_radius_m: float | None = None,
) -> Iterator[Episode]:
    """Episodes of a `.json.gz` (`.json`, `.json.zst`) file, in its order, `steps` empty.

    role: "guide" or "follower" in RxR-CE; by default what the file says, if anything.
    gt: ground-truth file, joined by id. default_radius_m: for goals that state no radius.
    Every fault of the file is a `UserError` naming file, episode and key. A file that looks like
    R2R-CE before v1-3 (its start headings are wrong) gives a warning.
    """
    path = Path(path)
    shared, release = read_shared(path)
    if release.name == BEFORE_V1_3:
        warnings.warn(f"{path}: {HEADING_WARNING}", stacklevel=2)
    seen: set[tuple[str, str]] = set()
    for episode in episodes_of(
        path,
        dataset=dataset,
        split=split,
        role=role,
        gt=gt,
        shared=shared,
        default_radius_m=default_radius_m,
    ):
        if isinstance(episode, EpisodeError):
            raise episode
        if (episode.role, episode.episode_id) in seen:
            raise UserError(f"{path}: episode_id {episode.episode_id} occurs twice")
        seen.add((episode.role, episode.episode_id))
        yield episode


def read_shared(
    path: str | Path, *, tables: Mapping[str, EntryStore] | None = None
) -> tuple[dict[str, Any], R2RRelease]:
    """The keys of a file beside episodes and vocabulary, and which release it looks like.

    tables: keys whose entries go there instead, one by one. Reads all of the file: one that is
    damaged anywhere, or is no episode file, is a `UserError`.
    """
    shared: dict[str, Any] = {}
    count, has_episodes, has_vocabulary = ReleaseCount(), False, False
    with JsonFile(path) as file:
        if file.opening() == "{":
            for key in file.members():
                if key == "episodes" and file.opening() == "[":
                    has_episodes = True
                    for raw in file.elements():
                        count.add(raw)
                elif key == "instruction_vocab":
                    has_vocabulary = True
                elif key in (tables or {}) and file.opening() == "{":
                    for name in file.members():
                        tables[key].add(name, file.text())
                elif key != "episodes":
                    shared[key] = file.value()
        else:
            file.value()
        file.finish()
    if not has_episodes:
        raise UserError(f"{path}: key 'episodes' is missing or not a list; is it an episode file?")
    return shared, count.release(has_vocabulary=has_vocabulary)


def episodes_of(
    path: str | Path,
    *,
    dataset: str,
    split: str,
    role: str = "",
    gt: str | Path | None = None,
    shared: Mapping[str, Any] | None = None,
    default_radius_m: float | None = None,
) -> Iterator[Episode | EpisodeError]:
    """The episodes of a file, and in the place of one that cannot be read, why.

    shared: the file's other keys, where `read_shared` gave them already.
    """
    if shared is None:
        shared = read_shared(path)[0]
    truths = None if gt is None else EntryStore.of_file(gt, what="ground-truth")
    try:
        for number, raw in enumerate(raw_episodes(path)):
            try:
                episode = parse_episode(
                    raw,
                    file=path,
                    number=number,
                    dataset=dataset,
                    split=split,
                    role=role,
                    shared=shared,
                    default_radius_m=default_radius_m,
                )
                yield episode if truths is None else _joined(episode, truths, f"{gt}")
            except EpisodeError as error:
                yield error
    finally:
        if truths is not None:
            truths.close()


def raw_episodes(path: str | Path) -> Iterator[Any]:
    """The decoded elements of key `episodes`, one at a time."""
    with JsonFile(path) as file:
        for key in file.members():
            if key == "episodes":
                yield from file.elements()


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


def release_of_file(path: str | Path) -> R2RRelease:
    """What an episode file looks like. Raises `UserError` where it is none, or is damaged."""
    return read_shared(path)[1]


def release_of(content: Mapping[str, Any]) -> str:
    """Which release a decoded file looks like: "r2r-ce v1-3", "r2r-ce before v1-3" or "other"."""
    count = ReleaseCount()
    episodes = content.get("episodes")
    for raw in episodes if isinstance(episodes, list) else []:
        count.add(raw)
    return count.release(has_vocabulary="instruction_vocab" in content).name


def _joined(episode: Episode, truths: EntryStore, gt: str) -> Episode:
    where = f"{gt}: episode {episode.episode_id}"
    text = truths.get(episode.episode_id)
    truth = None if text is None else json.loads(text)
    try:
        check_ground_truth(truth, episode, where)
        if fault := find_fault({**truth, "actions": None, "locations": None}):  # these are checked
            raise UserError(f"{where}: key {fault[0]} {fault[1]}")
    except UserError as error:
        raise EpisodeError(str(error), episode.episode_id, "ground_truth") from None
    return replace(episode, metadata={**episode.metadata, "ground_truth": truth})


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
