"""Workers that have outgrown their memory are replaced when nobody lives in them: no outcome, no
attempt and no episode is the price. Scenes in flight never push each other out of a worker."""

import os
import signal
from itertools import pairwise
from pathlib import Path

import pytest
from worlds import PRIMITIVE, PixelPolicy, body_of, episodes_of, evaluate_config

from vla_nav.evaluation.conditions import Instructions, conditions_named
from vla_nav.evaluation.metrics import SuccessRule
from vla_nav.evaluation.play import Played, PlaySettings, Unit
from vla_nav.evaluation.slots import Table
from vla_nav.simulators.client import WorkerProcess
from vla_nav.simulators.memory import resident_mib
from vla_nav.simulators.pool import SimulatorPool

ROWS = ("policy", "random", "expert")


@pytest.fixture(scope="module")
def config(world):
    return evaluate_config(world, Path("unused"))


def play(
    config,
    *,
    num_workers,
    num_slots=8,
    max_resident_mib=None,
    max_scenes=None,
    after=lambda pool, count: None,
):
    """Records by key, and the table's timing. max_scenes: instead of what the workers state."""
    episodes, scenes = episodes_of(config)
    pool = SimulatorPool(
        "mesh",
        body_of(config),
        config["simulators"]["options"],
        num_workers=num_workers,
        max_resident_mib=max_resident_mib,
    )
    pool.max_scenes = max_scenes or pool.max_scenes
    try:
        table = Table(
            pool,
            PlaySettings(body_of(config), PRIMITIVE, SuccessRule(), 0, 60, 0.5, 0.06),
            Instructions(episodes, seed=0),
            scene_path=lambda episode: scenes[episode.scene_id],
            network=PixelPolicy(),
            num_slots=num_slots,
        )
        units = [Unit(row, e) for e in episodes[::2] for row in conditions_named(ROWS)]
        records = {}
        for count, ended in enumerate(table.play(units)):
            assert isinstance(ended, Played)
            assert ended.unit.key not in records
            records[ended.unit.key] = ended.record
            after(pool, count)
        assert len(records) == len(units)
        return records, table.timing
    finally:
        pool.close()


@pytest.fixture(scope="module")
def calm(config):
    return play(config, num_workers=0)[0]


def test_resident_memory_is_what_a_process_takes():
    before = resident_mib(os.getpid())
    held = bytearray(64 * 2**20)
    held[::4096] = b"x" * len(held[::4096])  # touch every page
    assert 60 < resident_mib(os.getpid()) - before < 80
    assert resident_mib(2**22 + 1) == 0.0  # nobody's


def test_a_worker_beyond_its_memory_is_replaced_at_no_cost(config, calm):
    records, timing = play(config, num_workers=1, max_resident_mib=1.0)  # none is that small
    assert records == calm  # attempts included
    # Eight slots drain, then the worker goes: about 24 / 8 of them; never one per episode.
    assert 2 <= timing.num_recycles <= 5
    assert timing.num_restarts == 0


def test_a_worker_within_its_memory_stays(config, calm):
    records, timing = play(config, num_workers=1, max_resident_mib=10_000.0)
    assert records == calm
    assert (timing.num_recycles, timing.num_restarts) == (0, 0)
    assert 20 < timing.peak_worker_mib < 10_000


def test_a_crash_of_an_outgrown_worker_is_a_crash(config, calm):
    def kill_once(pool, count):
        if count == 3:
            os.kill(pool.pids()[0], signal.SIGKILL)

    records, timing = play(config, num_workers=1, max_resident_mib=1.0, after=kill_once)
    assert {key: {**record, "attempts": 1} for key, record in records.items()} == calm
    assert timing.num_restarts == 1
    assert timing.num_recycles >= 1


def test_scenes_in_flight_do_not_push_each_other_out_of_a_worker(config, calm, monkeypatch):
    """With one scene kept, three scenes are loaded three times, however many slots there are."""
    call, visited = WorkerProcess.call, []

    def noted(self, method, **arguments):
        if method == "open":
            visited.append(arguments["scene"])
        return call(self, method, **arguments)

    monkeypatch.setattr(WorkerProcess, "call", noted)
    records, _ = play(config, num_workers=1, num_slots=24, max_scenes=1)
    assert records == calm
    changes = sum(one != other for one, other in pairwise(visited))
    assert len(set(visited)) == 3
    assert changes == 2


def test_time_is_accounted_for(config):
    _, timing = play(config, num_workers=1)
    assert timing.num_episodes == 24
    assert 0 < timing.simulators_s <= timing.lanes_s == timing.wall_s
    assert timing.policy_s + timing.waiting_s <= timing.wall_s
    assert timing.num_frames == timing.num_decisions > timing.num_calls > 0
