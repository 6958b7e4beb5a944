"""Well-formed files with any value anywhere: JSON nodes and parquet columns of the wrong kind.

A node of the file's tree is replaced, removed or doubled, and everything is read again.
"""

from __future__ import annotations

import copy
import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.episodes.fixtures.every_format import PLAIN
from tests.episodes.fixtures.expected import Expected
from tests.episodes.fixtures.limited import GOOD, Limited

FILES = (  # format, file of JSON values
    ("r2r_ce", "val_unseen/val_unseen.json.gz"),
    ("r2r_ce", "val_unseen/val_unseen_gt.json.gz"),
    ("rxr_ce", "val_unseen/val_unseen_guide.json.gz"),
    ("rxr_ce", "val_unseen/val_unseen_guide_gt.json.gz"),
    ("pointnav", "val/content/sceneA.json.gz"),
    ("objectnav", "val/content/sceneA.json.gz"),
    ("objectnav", "val/val.json.gz"),
    ("streamvln", "annotations.json"),
    ("janusvln", "datasets/r2r/train/train.json.gz"),
    ("navila", "annotations.json"),
    ("interndata_n1", "sceneA/meta/info.json"),
    ("interndata_n1", "sceneA/meta/episodes.jsonl"),
    ("lerobot_v2", "meta/info.json"),
    ("lerobot_v2", "meta/episodes.jsonl"),
    ("lerobot_v3", "meta/info.json"),
)
TABLES = (
    ("interndata_n1", "sceneA/data/chunk-000/episode_000000.parquet"),
    ("lerobot_v2", "data/chunk-000/episode_000000.parquet"),
    ("lerobot_v3", "data/chunk-000/file-000.parquet"),
    ("lerobot_v3", "meta/episodes/chunk-000/file-000.parquet"),
    ("lerobot_v3", "meta/tasks.parquet"),
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    7,
    2**31,
    2**63,
    -(2**63),
    10**40,
    0.5,
    -0.0,
    1e-320,
    1e308,
    float("nan"),
    float("inf"),
    float("-inf"),
    "",
    "0",
    "\0",
    "\ud800",
    "STOP\nMOVE_FORWARD",
    "../../etc/passwd",
    "/",
    "A" * 200_000,
    [],
    [[]],
    [None],
    [0] * 5000,
    {},
    {"": {"": []}},
    [float("nan")] * 4,
    ["x", 1, None],
)


@pytest.fixture(scope="module")
def limited() -> Iterator[Limited]:
    with Limited() as child:
        yield child


@pytest.mark.parametrize(("name", "file"), FILES)
def test_any_value_anywhere_in_json(limited: Limited, tmp_path: Path, name: str, file: str) -> None:
    assert json_faults(limited, tmp_path, name, file, count=6) == []


@pytest.mark.long
@pytest.mark.parametrize(("name", "file"), FILES)
def test_many_values_anywhere_in_json(
    limited: Limited, tmp_path: Path, name: str, file: str
) -> None:
    assert json_faults(limited, tmp_path, name, file, count=300) == []


@pytest.mark.parametrize(("name", "file"), TABLES)
def test_any_column_of_another_type(limited: Limited, tmp_path: Path, name: str, file: str) -> None:
    expected = PLAIN[name](tmp_path)
    table = pq.read_table(tmp_path / file)
    wrong = []
    for what, changed in changed_tables(table, seed=3, count=8):
        pq.write_table(changed, tmp_path / file)
        note(wrong, limited, tmp_path, expected, f"{file}: {what}")
    assert wrong == []


@pytest.mark.parametrize("text", ["a\nb", "\x1b[2J", "\ud800", "\0"])
def test_refusals_can_be_printed(limited: Limited, tmp_path: Path, text: str) -> None:
    expected = PLAIN["r2r_ce"](tmp_path)
    path = tmp_path / "val_unseen/val_unseen_gt.json.gz"
    gt = json.loads(gzip.decompress(path.read_bytes()))
    gt["7"]["forward_steps"] = text
    path.write_bytes(gzip.compress(json.dumps(gt).encode()))
    outcome = limited.read(expected.root, split=expected.split, format="r2r_ce")
    assert outcome.kind == "refused", outcome


def json_faults(limited: Limited, root: Path, name: str, file: str, *, count: int) -> list[str]:
    """What went wrong, a line for each change."""
    expected = PLAIN[name](root)
    path, is_lines = root / file, file.endswith("l")
    data = path.read_bytes()
    text = gzip.decompress(data).decode() if file.endswith("gz") else data.decode()
    value = [json.loads(line) for line in text.splitlines()] if is_lines else json.loads(text)
    rng = random.Random(f"{name} {file}")
    wrong: list[str] = []
    for _ in range(count):
        what, changed = changed_json(value, rng)
        is_list = is_lines and isinstance(changed, list)
        out = "\n".join(map(json.dumps, changed)) if is_list else json.dumps(changed)
        path.write_bytes(gzip.compress(out.encode()) if file.endswith("gz") else out.encode())
        note(wrong, limited, root, expected, f"{file}: {what}")
    return wrong


def changed_json(value: Any, rng: random.Random) -> tuple[str, Any]:
    """A copy with one node changed, and what was done."""
    places = list(nodes(value, ()))
    place = rng.choice([p for p in places if len(p) <= rng.randrange(1, 8)] or places)
    if not place:
        new = rng.choice(VALUES)
        return f"the whole is {str(new)[:60]!r}", new
    root = copy.deepcopy(value)
    inner = root
    for key in place[:-1]:
        inner = inner[key]
    last = place[-1]
    where = "".join(f"[{key!r}]" for key in place)
    kind = rng.randrange(6)
    if kind == 0:
        del inner[last]
        return f"{where} removed", root
    if kind == 1 and isinstance(inner, list):
        inner.insert(last, copy.deepcopy(inner[last]))
        return f"{where} twice", root
    inner[last] = rng.choice(VALUES)
    return f"{where} = {str(inner[last])[:60]!r}", root


def nodes(value: Any, place: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """The place of every node of a JSON tree, the first 40 of a list."""
    yield place
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from nodes(inner, (*place, key))
    elif isinstance(value, list):
        for at, inner in enumerate(value[:40]):
            yield from nodes(inner, (*place, at))


def changed_tables(table: pa.Table, *, seed: int, count: int) -> list[tuple[str, pa.Table]]:
    """Tables with a column removed, emptied, of another type or with other values."""
    rng = random.Random(seed)
    rows = table.num_rows
    columns = {
        "null": pa.nulls(rows),
        "text": pa.array(["x"] * rows),
        "bytes": pa.array([b"\x80\x04."] * rows),
        "nan": pa.array([float("nan")] * rows),
        "inf": pa.array([float("inf")] * rows),
        "huge": pa.array([2**62] * rows),
        "minus one": pa.array([-1] * rows),
        "lists": pa.array([[1.0] * 3] * rows),
        "empty lists": pa.array([[]] * rows, pa.list_(pa.int64())),
        "structs": pa.array([{"bytes": b"", "path": "../../x"}] * rows),
        "bool": pa.array([True] * rows),
        "times": pa.array([0] * rows, pa.timestamp("us")),
    }
    changed: list[tuple[str, pa.Table]] = [
        ("no rows", table.slice(0, 0)),
        ("one row", table.slice(0, 1)),
        ("twice", pa.concat_tables([table, table])),
        ("reversed", table.take(list(range(rows))[::-1])),
    ]
    for _ in range(count):
        at = rng.randrange(table.num_columns)
        name = table.column_names[at]
        kind = rng.choice([*columns, "removed", "renamed", "doubled"])
        if kind == "removed":
            new = table.remove_column(at)
        elif kind == "renamed":
            new = table.rename_columns([f"x{n}" if n == name else n for n in table.column_names])
        elif kind == "doubled":
            new = table.append_column(name, table[name])
        else:
            new = table.set_column(at, name, columns[kind])
        changed.append((f"{name} {kind}", new))
    return changed


def note(wrong: list[str], limited: Limited, root: Path, expected: Expected, what: str) -> None:
    """Read, and add a line where that is no data and no refusal that names a file."""
    outcome = limited.read(
        expected.root,
        split=expected.split,
        format=expected.format,
        role=expected.episodes[0].role,
    )
    is_named = outcome.kind != "refused" or str(root) in outcome.text
    if outcome.kind not in GOOD or not is_named:
        wrong.append(f"{what}: {outcome.kind} {outcome.text[-700:]}")
