"""No episode can be recorded twice, whoever starts what: the locks of a results folder."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from worlds import evaluate_config, kill_when, results_of, start_command

from vla_nav.errors import UserError
from vla_nav.evaluation.results import REPLAYS, ResultsFile, claim_folder
from vla_nav.evaluation.runs import evaluate_from
from vla_nav.files import read_json

ROOT = Path(__file__).parents[2]
SAME_CAMERA = [
    "simulators.embodiment.cameras=[{name: front, width_px: 48, height_px: 48, hfov_deg: 90.0, "
    "height_m: 1.25, pitch_deg: 0.0, has_depth: false}]"
]


def test_shards_of_another_number_cannot_be_written_at_the_same_time(tmp_path):
    with ResultsFile(tmp_path, shard=1, num_shards=8):
        with pytest.raises(UserError, match=r"one of 8 shards.*evaluation.num_shards=8"):
            ResultsFile(tmp_path, shard=2, num_shards=3)
        with ResultsFile(tmp_path, shard=2, num_shards=8):
            pass
    with ResultsFile(tmp_path, shard=2, num_shards=3):
        pass


def test_shards_of_another_selection_cannot_be_written_at_the_same_time(tmp_path):
    with ResultsFile(tmp_path, shard=0, num_shards=2, plan="100 episodes"):
        with pytest.raises(UserError, match="num_episodes"):
            ResultsFile(tmp_path, shard=1, num_shards=2, plan="200 episodes")
        with ResultsFile(tmp_path, shard=1, num_shards=2, plan="100 episodes"):
            pass
    with ResultsFile(tmp_path, shard=1, num_shards=2, plan="200 episodes"):
        pass


def test_a_refused_writer_holds_nothing(tmp_path):
    with ResultsFile(tmp_path, num_shards=2):
        for _ in range(3):
            with pytest.raises(UserError, match="another process"):
                ResultsFile(tmp_path, num_shards=2)
            with pytest.raises(UserError, match="another process"):
                ResultsFile(tmp_path, num_shards=5)
    with ResultsFile(tmp_path, num_shards=5):
        pass


def test_results_and_replays_of_a_shard_are_apart(tmp_path):
    with ResultsFile(tmp_path) as results, ResultsFile(tmp_path, kind=REPLAYS) as replays:
        assert results.path != replays.path


def test_a_killed_writer_holds_nothing(tmp_path):
    code = "import sys, time; from pathlib import Path; "
    code += "from vla_nav.evaluation.results import ResultsFile; "
    code += (
        f"held = ResultsFile(Path({str(tmp_path)!r}), num_shards=4); print('held', flush=True); "
    )
    code += "time.sleep(60)"
    writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT)
    assert writer.stdout.readline() == b"held\n"
    with pytest.raises(UserError, match="one of 4 shards"):
        ResultsFile(tmp_path, num_shards=1)
    writer.kill()
    writer.wait()
    with ResultsFile(tmp_path, num_shards=1):
        pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch, number):
    def refuse(descriptor, operation):
        raise OSError(number, "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(UserError, match=r"takes no locks \(no locks here\).*output_dir"):
        ResultsFile(tmp_path)
    with pytest.raises(UserError, match="takes no locks"):
        claim_folder(tmp_path, {"seed": 0})


def test_one_of_many_runs_that_claim_a_folder_at_once_gets_it(tmp_path):
    def claim(seed):
        try:
            claim_folder(tmp_path, {"seed": seed})
        except UserError as error:
            return str(error)
        return seed

    with ThreadPoolExecutor(12) as claimants:
        outcomes = list(claimants.map(claim, [seed % 4 for seed in range(24)]))
    winner = read_json(tmp_path / "run.json")["seed"]
    for seed, outcome in zip([seed % 4 for seed in range(24)], outcomes, strict=True):
        assert outcome == seed if seed == winner else "of another run" in outcome


def test_two_starts_with_different_shards_leave_every_episode_once(world, tmp_path):
    """The second is refused while the first plays, and finishes what the first left when killed."""
    options = [
        f"data.path={world}",
        f"paths.output_dir={tmp_path}",
        "evaluation.num_episodes=null",
        "evaluation.rows=[random,expert]",
        "num_workers=0",
    ]
    first = start_command("evaluate", *options, "evaluation.num_shards=2", "evaluation.num_slots=1")

    def has_begun() -> bool:
        if any(path.read_bytes() for path in tmp_path.glob("results-000-of-002.jsonl")):
            os.kill(first.pid, signal.SIGSTOP)  # however long the refusals take, it is at work
            return True
        return False

    def refusals() -> bool:
        for plan in ("evaluation.num_shards=3", "evaluation.num_episodes=4"):
            with pytest.raises(UserError, match="another process is playing"):
                evaluate_from(evaluate_config(world, tmp_path, *SAME_CAMERA, plan))
        return True

    kill_when(first, lambda: has_begun() and refusals())
    assert 0 < len(results_of(tmp_path)) < 30
    assert evaluate_from(evaluate_config(world, tmp_path, *SAME_CAMERA)) == 0
    assert len(results_of(tmp_path)) == 30  # `results_of` refuses a key that stands there twice
