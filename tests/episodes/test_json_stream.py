"""JSON read through a moving window: equal to reading it whole, bounded, and never a traceback."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_nav.episodes.entry_store import EntryStore
from vla_nav.episodes.json_stream import JsonFile
from vla_nav.errors import UserError

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12
)


def pieces(path: Path, **options: Any) -> dict[str, Any]:
    """The file's object, lists taken element by element, objects member by member."""
    found: dict[str, Any] = {}
    with JsonFile(path, **options) as file:
        for key in file.members():
            if file.opening() == "[":
                found[key] = list(file.elements())
            elif file.opening() == "{":
                found[key] = {}
                for name in file.members():
                    found[key][name] = json.loads(file.text())
            else:
                found[key] = file.value()
        file.finish()
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("json")


@settings(max_examples=40, deadline=None)
@given(
    value=st.dictionaries(st.text(), VALUES),
    block=st.sampled_from([1, 2, 3, 7, 64]),
    indent=st.sampled_from([None, 0, 3]),
    is_ascii=st.booleans(),
)
def test_pieces_equal_the_whole_at_every_block_size(
    folder: Path, value: dict[str, Any], block: int, indent: int | None, is_ascii: bool
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=is_ascii)
    path = folder / "a.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        whole = json.loads(path.read_bytes())
    except UnicodeDecodeError:  # a lone surrogate that was not escaped
        with pytest.raises(UserError, match="not valid JSON"):
            pieces(path, block_bytes=block)
        return
    assert pieces(path, block_bytes=block) == whole
    with JsonFile(path, block_bytes=block) as file:  # skipping finds the same end
        assert list(file.members()) == list(whole)
        file.finish()


TEXT = '{"a": [1, -2.5e3, "x\\u00e9\\"", null, {"b": [true]}], "c": {"d": 1, "e": []}, "f": 3}'


@pytest.mark.parametrize("block", [1, 5, 4096])
def test_every_cut_of_a_file_is_named(tmp_path: Path, block: int) -> None:
    for length in range(len(TEXT)):
        path = tmp_path / "cut.json"
        path.write_text(TEXT[:length])
        if length:
            with pytest.raises(UserError, match=r"cut.json: not valid JSON .*may be cut short"):
                pieces(path, block_bytes=block)
    path.write_text(TEXT + " x")
    with pytest.raises(UserError, match="something follows its end"):
        pieces(path, block_bytes=block)


def compressed(kind: str) -> bytes:
    """Text that does not compress away, so that a cut is in its middle."""
    text = json.dumps({"a": [zlib.crc32(bytes([n % 251, n // 251])) for n in range(4000)]})
    if kind == "gz":
        return gzip.compress(text.encode())
    return pa.compress(text.encode(), "zstd", asbytes=True)


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_compressed_files_are_read_or_named_wherever_they_are_cut(
    tmp_path: Path, kind: str
) -> None:
    data, path = compressed(kind), tmp_path / f"a.json.{kind}"
    path.write_bytes(data)
    assert len(pieces(path)["a"]) == 4000
    for length in (4, 5, 11, 18, 100, len(data) // 2, len(data) - 9, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(UserError, match=rf"a.json.{kind}: (damaged or cut short|not valid)"):
            pieces(path)
    half = json.dumps({"a": [0] * 9}).encode()
    if kind == "gz":  # two members, as `cat a.gz b.gz` makes them
        path.write_bytes(gzip.compress(half[:7]) + gzip.compress(half[7:]))
        assert pieces(path) == {"a": [0] * 9}
        flipped = bytearray(data)
        flipped[-6] ^= 1  # the checksum
        path.write_bytes(flipped)
        with pytest.raises(UserError, match="damaged or cut short"):
            pieces(path)


def test_nothing_is_unbounded(tmp_path: Path) -> None:
    """Depth, digits, blanks, one value, expansion, and files that have no end."""
    path = tmp_path / "a.json.gz"
    faults = {
        "[" * 10**5: "not valid JSON",
        '{"a": ' * 10**5: "not valid JSON",
        '{"a": ' + "9" * 10**5 + "}": "not valid JSON",
        " " * 10**5: "blanks in a row",
        '{"a": "' + "x" * 10**5 + '"}': "a value has more than 50000 characters",
        '{"a": [[' + "0," * 10**5 + "0]]}": "a value has more than 50000 characters",
    }
    for text, message in faults.items():
        path.write_bytes(gzip.compress(text.encode()))
        with pytest.raises(UserError, match=f"a.json.gz: .*{message}"):
            pieces(path, max_value_chars=50_000, block_bytes=1024)
    path.write_bytes(gzip.compress(b'{"a": [' + (b'"' + b"x" * 10**6 + b'",') * 100, 9))
    with pytest.raises(UserError, match="expands to more than 200 times its size"):
        pieces(path)
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("pipe.json", "."):
        with pytest.raises(UserError, match="is no regular file"):
            JsonFile(tmp_path / name)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    element = json.dumps({"text": "x" * 200_000})
    path.write_text('{"a": [' + ", ".join([element] * 300) + '], "b": {"c": 1}}')  # 60 MB
    tracemalloc.start()
    try:
        with JsonFile(path) as file:
            num = 0
            for key in file.members():
                if key == "a":
                    for _ in file.elements():
                        num += 1
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert num == 300
    assert peak_bytes < 10 * 2**20  # a window, a block and its text, one element


def test_a_store_gives_back_what_was_added_last(tmp_path: Path) -> None:
    path = tmp_path / "gt.json"
    path.write_text('{"1": [1], "2": {"x": "\\ud800"}, "1": [2]}')
    store = EntryStore.of_file(path, what="ground-truth")
    assert json.loads(store.get("1") or "") == json.loads(path.read_text())["1"] == [2]
    assert json.loads(store.get("2") or "") == {"x": "\ud800"}
    assert store.get("3") is None
    store.close()
    path.write_text("[1]")
    with pytest.raises(UserError, match=r"gt.json: not a table of episodes; is it a ground-truth"):
        EntryStore.of_file(path, what="ground-truth")
