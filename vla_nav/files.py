"""Files that are either whole or absent: atomic writes, checksums and a free-space check.

A writer fills a temporary neighbour, flushes it to disk and renames it over the target, so a
reader (or a second start after a kill) sees the old file or the new one, never half of one.

    atomic_path("a.json"):   a.json.tmp-<pid>  --write, fsync-->  rename  -->  a.json
    atomic_folder("a"):      a.tmp-<pid>/...   the same for a folder of files
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import xxhash

from vla_nav.errors import UserError

_SPARE_BYTES = 64 * 2**20  # what a run leaves free on the disk for logs and the file system
_FULL_BYTES = 2**20  # with less than this free, a write that failed without a reason met its end


@contextmanager
def atomic_path(target: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`; rename it over `target` if the body succeeds.

    The file is flushed to disk before the rename. A body that raises leaves `target` as it was.
    A full disk is an `OSError` that names `target`, whichever way the writer in the body tells.
    """
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f"{target.name}.tmp-{os.getpid()}")
    try:
        with _naming(target, temporary):
            yield temporary
            _flush(temporary)
            os.replace(temporary, target)
    finally:
        with suppress(OSError):  # a read-only disk refuses even to unlink what is not there
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(target: str | Path) -> Iterator[Path]:
    """Yield a new temporary folder beside `target`; rename it to `target` if the body succeeds.

    Its files are flushed to disk before the rename, and so is the name itself. A body that raises
    leaves `target` as it was; a full disk is an `OSError` that names it. An older folder of the
    name is replaced: between two renames there is none.
    """
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f"{target.name}.tmp-{os.getpid()}")
    try:
        with _naming(target, temporary):
            temporary.mkdir()
            yield temporary
            for path in (*temporary.rglob("*"), temporary):
                _flush(path)
            remove_folder(target)
            os.rename(temporary, target)
            _flush(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def remove_folder(folder: str | Path) -> None:
    """Delete a folder if it is there. A kill in between leaves no half of it under its name."""
    folder = Path(folder)
    if folder.exists():
        doomed = folder.with_name(f"{folder.name}.tmp-old-{os.getpid()}")
        os.rename(folder, doomed)
        shutil.rmtree(doomed)


def write_json(target: str | Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically. NaN and infinity are refused."""
    with atomic_path(target) as temporary:
        temporary.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def read_json(source: str | Path) -> Any:
    """Read a JSON file; a missing or damaged one is a `UserError` that names it."""
    source = Path(source)
    try:
        require_regular(source)
        return json.loads(source.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{source}: no such file; restore it, or name another path") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(
            f"{source}: not valid JSON ({error}); restore it, or have it written again"
        ) from None


def require_regular(source: str | Path) -> os.stat_result:
    """The status of a file. Raises `UserError` for a folder, pipe, socket or device, and `OSError`
    for a missing file.

    To be asked before a file of a data set is opened: a pipe's opening waits for a writer that may
    never come, and a device need not end.
    """
    status = os.stat(source)
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe, socket or device"
        raise UserError(f"{source}: is no regular file but {kind}; put the file in its place")
    return status


def file_digest(source: str | Path) -> str:
    """The xxh3-128 digest of a file's bytes, in hexadecimal."""
    digest = xxhash.xxh3_128()
    with open(source, "rb") as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def require_free_space(folder: str | Path, needed_bytes: int, *, what: str) -> None:
    """Raise `UserError` unless the disk of `folder` has room for `needed_bytes` more."""
    folder = Path(folder)
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < needed_bytes + _SPARE_BYTES:
        raise UserError(
            f"{folder}: {what} needs {needed_bytes / 2**20:.0f} MiB and "
            f"{free / 2**20:.0f} MiB are free; free some space or choose another folder"
        )


@contextmanager
def locked(file: str | Path, *, what: str) -> Iterator[None]:
    """Hold `file` for this process while the body runs; another process gets a `UserError`.

    what: who is at work, for the message. A POSIX lock, which ends with the process. That of
    `flock` would live on in child processes that outlive a killed parent by seconds, and refuse
    the second start.
    """
    file = Path(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "w") as handle:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise UserError(
                f"{file.parent}: {what} is at work here in another process; wait for it, or end it"
            ) from None
        yield


def remove_leftovers(folder: str | Path, pattern: str = "**/*.tmp-*") -> int:
    """Delete temporary files and folders that a killed writer left in `folder`; return how many."""
    leftovers = list(Path(folder).glob(pattern))
    for path in leftovers:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return len(leftovers)


@contextmanager
def _naming(target: Path, temporary: Path) -> Iterator[None]:
    """Around the writing of `temporary`: what the disk refuses is an `OSError` about `target`."""
    try:
        yield
    except OSError as error:
        name = str(error.filename)
        if error.filename is None or name == str(temporary) or name.startswith(f"{temporary}/"):
            error.filename = str(target)
        raise
    except UserError:
        raise
    except Exception as error:
        code = _refusal(target.parent, error)
        if code is None:
            raise
        raise OSError(code, os.strerror(code), str(target)) from error


def _flush(path: Path) -> None:
    """Have a file's content, or a folder's names, on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _refusal(folder: Path, error: Exception) -> int | None:
    """The errno of a native writer's error, which carries none, where the disk refused to write."""
    for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        if os.strerror(code) in str(error):
            return code
    is_native = isinstance(error, RuntimeError)  # torch: "file write failed"
    is_full = is_native and shutil.disk_usage(folder).free < _FULL_BYTES
    return errno.ENOSPC if is_full else None
