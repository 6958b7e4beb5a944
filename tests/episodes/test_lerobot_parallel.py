"""Many processes, any of them killed at any moment: the result is that of one undisturbed run."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from made_episodes import body, made, record, writer

from vla_nav import files
from vla_nav.episodes.lerobot_finalise import finalise
from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.episodes.lerobot_writer import completed_episodes
from vla_nav.errors import UserError
from vla_nav.files import file_digest

NUM_EPISODES = 40
EMBODIMENT = body(size=(16, 12), num_cameras=2, depth=True)
ORDER = [made(number, EMBODIMENT)[0].key for number in range(NUM_EPISODES)]

# A recording process: it skips what is on disk, and takes its time so that it can be killed.
_RECORD = """
import sys, time
from pathlib import Path
from made_episodes import made, writer
from test_lerobot_parallel import EMBODIMENT
from vla_nav.episodes.lerobot_writer import completed_episodes
root, first, last, per_part, pause_s = sys.argv[1:]
done = completed_episodes(root)
with writer(Path(root), EMBODIMENT, episodes_per_part=int(per_part)) as out:
    for number in range(int(first), int(last)):
        episode, frames = made(number, EMBODIMENT)
        if episode.key not in done:
            out.add(episode, frames)
            time.sleep(float(pause_s))
"""

# A finalising process that kills itself at its n-th atomic rename.
_FINALISE = """
import os, signal, sys
from test_lerobot_parallel import ORDER
from vla_nav.episodes.lerobot_finalise import finalise
root, fatal = sys.argv[1], int(sys.argv[2])
replace, count = os.replace, 0
def counted(source, target):
    global count
    count += 1
    if count == fatal:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)
os.replace = counted
finalise(root, ORDER)
"""


def start(script: str, *arguments: object) -> subprocess.Popen[bytes]:
    folders = [str(Path(__file__).parent), str(Path(files.__file__).parents[1])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, env=environment)


def contents(root: Path) -> dict[str, str]:
    """Relative path -> digest of every file."""
    paths = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): file_digest(path) for path in paths}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files that one process makes."""
    root = tmp_path_factory.mktemp("undisturbed")
    record(root, range(NUM_EPISODES), EMBODIMENT)
    finalise(root, ORDER)
    return contents(root)


@pytest.mark.parametrize("per_part", [1, 7, 64])
def test_parts_and_their_order_leave_no_trace(
    tmp_path: Path, undisturbed: dict[str, str], per_part: int
) -> None:
    with (
        writer(tmp_path, EMBODIMENT, episodes_per_part=per_part) as odd,
        writer(tmp_path, EMBODIMENT, episodes_per_part=3) as even,
    ):
        for number in reversed(range(NUM_EPISODES)):
            (odd if number % 2 else even).add(*made(number, EMBODIMENT))
    finalise(tmp_path, ORDER)
    assert contents(tmp_path) == undisturbed


def test_killed_recorders_lose_their_unwritten_part_only(
    tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    half = NUM_EPISODES // 2
    workers = [
        start(_RECORD, tmp_path, 0, half, 3, 0.05),
        start(_RECORD, tmp_path, half, NUM_EPISODES, 3, 0.05),
    ]
    deadline = time.monotonic() + 60
    while len(list((tmp_path / "parts").glob("part-*.arrow"))) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    for worker in workers:
        worker.send_signal(signal.SIGKILL)
        assert worker.wait() == -signal.SIGKILL
    (tmp_path / "parts" / "part-0.arrow.tmp-1").write_bytes(b"half a part")
    done = completed_episodes(tmp_path)
    assert 9 <= len(done) < NUM_EPISODES
    with pytest.raises(UserError, match="episodes are not recorded"):
        finalise(tmp_path, ORDER)
    with pytest.raises(UserError, match="recording there is not finished"):
        LeRobotDataset(tmp_path)
    assert completed_episodes(tmp_path) == done
    assert start(_RECORD, tmp_path, 0, NUM_EPISODES, 5, 0).wait() == 0
    assert completed_episodes(tmp_path) == set(ORDER)
    finalise(tmp_path, ORDER)
    assert contents(tmp_path) == undisturbed


@pytest.mark.parametrize("fatal", [1, 4, 6])  # at the rename of data, stats, info
def test_a_finalise_killed_anywhere_is_done_again(
    tmp_path: Path, undisturbed: dict[str, str], fatal: int
) -> None:
    record(tmp_path, range(NUM_EPISODES), EMBODIMENT)
    assert start(_FINALISE, tmp_path, fatal).wait() == -signal.SIGKILL
    assert not (tmp_path / "meta/info.json").exists()
    assert completed_episodes(tmp_path) == set(ORDER)
    finalise(tmp_path, ORDER)
    assert contents(tmp_path) == undisturbed


def test_parts_left_beside_a_finished_set_are_cleared_away(
    tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    record(tmp_path, range(NUM_EPISODES), EMBODIMENT)
    finalise(tmp_path, ORDER)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/part-1.arrow").write_bytes(b"killed before it was removed")
    assert completed_episodes(tmp_path) == set(ORDER)
    finalise(tmp_path, ORDER)
    assert contents(tmp_path) == undisturbed


def test_the_same_episode_twice_counts_once_and_two_versions_are_refused(
    tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    record(tmp_path, range(NUM_EPISODES), EMBODIMENT)
    record(tmp_path, range(5, 9), EMBODIMENT)
    episode, frames = made(6, EMBODIMENT)
    with writer(tmp_path / "other", EMBODIMENT) as out:
        out.add(replace(episode, instruction="Stay."), frames)
    (stray,) = (tmp_path / "other/parts").glob("part-*.arrow")
    copy = tmp_path / "parts" / stray.name
    copy.write_bytes(stray.read_bytes())
    with pytest.raises(UserError, match="made/train//6 was recorded twice"):
        finalise(tmp_path, ORDER)
    copy.unlink()
    for path in sorted((tmp_path / "other").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (tmp_path / "other").rmdir()
    finalise(tmp_path, ORDER)
    assert contents(tmp_path) == undisturbed


def test_orders_that_do_not_fit_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    record(tmp_path, range(4), EMBODIMENT)
    before = contents(tmp_path)
    for order, message in (
        (ORDER[:3], "1 episodes are recorded but not listed, e.g. made/train//3"),
        (ORDER[:5], "1 episodes are not recorded, e.g. made/train//4"),
        ([*ORDER[:4], ORDER[0]], "1 episodes are listed twice"),
    ):
        with pytest.raises(UserError, match=message):
            finalise(tmp_path, order)
    assert contents(tmp_path) == before


def test_damaged_parts_and_other_settings_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        finalise(tmp_path)
    record(tmp_path, range(4), EMBODIMENT)
    with pytest.raises(UserError, match="begun with decision=primitive, now it is chunk"):
        writer(tmp_path, EMBODIMENT, decision="chunk")
    with pytest.raises(UserError, match=r"begun with turn_deg=30.0"):
        writer(tmp_path, replace(EMBODIMENT, turn_deg=15.0))
    (part,) = (tmp_path / "parts").glob("part-*.arrow")
    part.write_bytes(part.read_bytes()[:-200])
    for attempt in (finalise, completed_episodes):
        with pytest.raises(UserError, match=rf"{part}: damaged part .*delete it"):
            attempt(tmp_path)
    part.unlink()
    with pytest.raises(UserError, match="holds no recorded episodes"):
        finalise(tmp_path)


def test_a_finished_set_is_not_recorded_over(tmp_path: Path) -> None:
    record(tmp_path, range(2), EMBODIMENT)
    finalise(tmp_path)
    with pytest.raises(UserError, match="holds a finished data set"):
        writer(tmp_path, EMBODIMENT)


def test_a_full_disk_is_one_line_and_loses_no_part(
    tmp_path: Path, undisturbed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, range(8), EMBODIMENT)
    before = contents(tmp_path)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", full)
        with pytest.raises(UserError, match="the disk is full; free some space"):
            record(tmp_path, range(8, 12), EMBODIMENT)
        with pytest.raises(UserError, match="the disk is full; free some space"):
            finalise(tmp_path)
    parts = {path: digest for path, digest in contents(tmp_path).items() if "parts/" in path}
    assert parts == before
    record(tmp_path, range(8, NUM_EPISODES), EMBODIMENT)
    finalise(tmp_path, ORDER)
    assert contents(tmp_path) == undisturbed
