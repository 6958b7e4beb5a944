"""Files are whole or absent, and a disk that refuses says which file it refused."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from vla_nav import files
from vla_nav.errors import UserError
from vla_nav.files import atomic_path, read_json, remove_leftovers, require_regular, write_json


def test_a_body_that_raises_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    write_json(target, {"old": 1})
    before = target.read_bytes()
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(target, float("nan"))
    assert target.read_bytes() == before
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),  # a write, which names no file
        RuntimeError("I/O error: No space left on device (os error 28)"),  # safetensors
    ],
)
def test_a_full_disk_names_the_target(tmp_path: Path, error: Exception) -> None:
    target = tmp_path / "a.bin"
    with pytest.raises(OSError, match=r"No space left") as caught, atomic_path(target):
        raise error
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(target))


def test_a_native_writer_without_a_reason_met_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "last.ckpt"
    failed = "[enforce fail at inline_container.cc:858] file write failed"  # torch.save
    with pytest.raises(RuntimeError), atomic_path(target):
        raise RuntimeError(failed)
    monkeypatch.setattr(files, "_FULL_BYTES", 2**80)  # whatever is free here
    with pytest.raises(OSError, match=r"No space left") as caught, atomic_path(target):
        raise RuntimeError(failed)
    assert caught.value.filename == str(target)


def test_a_refused_write_names_the_target_not_its_temporary_neighbour(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    (tmp_path / f"a.json.tmp-{os.getpid()}").mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        write_json(target, 1)
    assert caught.value.filename == str(target)


def test_a_user_error_passes_through(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No space left"), atomic_path(tmp_path / "a"):
        raise UserError("b: No space left on device")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_damaged_json_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"a\.json: not valid JSON"):
        read_json(path)


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "link").symlink_to("a.json")
    assert require_regular(tmp_path / "link").st_size == 2
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "pipe", tmp_path / "folder", Path("/dev/zero")):
        with pytest.raises(UserError, match=f"{path}: is no regular file"):
            require_regular(path)
        with pytest.raises(UserError, match=f"{path}: is no regular file"):
            read_json(path)
    with pytest.raises(FileNotFoundError):
        require_regular(tmp_path / "none")


def test_leftovers_of_a_killed_writer_go_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.json.tmp-1").write_text("half")
    write_json(tmp_path / "deep" / "a.json", 1)
    assert remove_leftovers(tmp_path) == 1
    assert read_json(tmp_path / "deep" / "a.json") == 1
