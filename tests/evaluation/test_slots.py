"""Many slots, lanes and crashes: what an episode lives through does not depend on any of them."""

import os
import signal

import numpy as np
import pytest
from worlds import PRIMITIVE, PixelPolicy, body_of, episodes_of, evaluate_config

from vla_nav.errors import UserError
from vla_nav.evaluation.conditions import CONDITIONS, Actor, Instructions
from vla_nav.evaluation.metrics import SuccessRule
from vla_nav.evaluation.play import Played, PlaySettings, Unit, resampled
from vla_nav.evaluation.slots import Crashed, Table
from vla_nav.simulators.client import WorkerProcess
from vla_nav.simulators.pool import SimulatorPool


@pytest.fixture(scope="module")
def config(world, tmp_path_factory):
    return evaluate_config(world, tmp_path_factory.mktemp("out"))


class Bench:
    """Everything a table needs, over the first `count` episodes of the small world."""

    def __init__(self, config, count=4, conditions=CONDITIONS):
        self.config = config
        episodes, self.scenes = episodes_of(config)
        self.instructions = Instructions(episodes, seed=0)
        self.units = [Unit(c, e) for e in episodes[::3][:count] for c in conditions]
        self.settings = PlaySettings(
            body_of(config), PRIMITIVE, SuccessRule(), 0, 60, 0.5, 0.06
        )  # fmt: skip

    def pool(self, num_workers, **options):
        return SimulatorPool(
            "mesh",
            body_of(self.config),
            self.config["simulators"]["options"],
            num_workers=num_workers,
            **options,
        )

    def table(self, pool, *, policy=None, num_slots=50, **options):
        return Table(
            pool,
            self.settings,
            self.instructions,
            scene_path=lambda episode: self.scenes[episode.scene_id],
            network=policy or PixelPolicy(),
            num_slots=num_slots,
            **options,
        )

    def play(self, num_workers=0, **options):
        pool = self.pool(num_workers)
        try:
            return by_key(self.table(pool, **options).play(self.units))
        finally:
            pool.close()


def by_key(played):
    records = {}
    for one in played:
        assert isinstance(one, Played), one
        assert one.unit.key not in records
        records[one.unit.key] = one.record
    return records


def test_slots_batches_and_lanes_do_not_change_any_result(config):
    bench = Bench(config)
    alone = bench.play(num_slots=1)
    assert len(alone) == len(bench.units)
    assert bench.play(num_slots=50) == alone
    assert bench.play(num_slots=5, is_one_by_one=True) == alone
    bench.units = bench.units[::-1]
    assert bench.play(num_slots=3) == alone
    assert bench.play(num_workers=3, num_slots=7) == alone
    # The rows are different experiments, or this test would prove little.
    for episode in {unit.episode.key for unit in bench.units}:
        network = {
            alone[(c.name, *episode)]["primitives"] for c in CONDITIONS if c.actor is Actor.NETWORK
        }
        assert len(network) >= 3


def test_the_policy_is_asked_for_many_slots_at_once(config):
    policy = PixelPolicy()
    bench = Bench(config)
    bench.play(policy=policy, num_slots=16)
    assert max(policy.batch_sizes) >= 8
    single = PixelPolicy()
    bench.play(policy=single, num_slots=16, is_one_by_one=True)
    assert set(single.batch_sizes) == {1}


def test_an_episode_that_fills_the_context_ends_without_stop_and_says_so(config):
    bench = Bench(config, conditions=[c for c in CONDITIONS if c.name == "policy"])
    whole = bench.play()
    for key, record in bench.play(policy=PixelPolicy(room=5)).items():
        assert record["primitives"] == whole[key]["primitives"][:5]
        assert not record["has_stopped"]
        assert record["sr"] == 0.0
        assert "context is full" in record["remark"]
        assert whole[key]["remark"] is None


def test_the_expert_row_reaches_its_goals_and_scores_follow_from_the_path(config):
    bench = Bench(config, conditions=[c for c in CONDITIONS if c.actor is Actor.EXPERT])
    bench.settings = PlaySettings(
        bench.settings.embodiment, PRIMITIVE, SuccessRule(), 0, 500, 0.5, 0.06
    )
    for record in bench.play().values():
        assert (record["sr"], record["sr_1m"], record["osr"]) == (1.0, 1.0, 1.0)
        assert record["spl"] > 0.9
        assert record["ndtw"] > 0.8
        assert record["primitives"].endswith("0")
        assert record["steps"] == len(record["primitives"]) == record["num_decisions"]
        path = np.array(record["path"])
        walked = np.linalg.norm(np.diff(path, axis=0), axis=1).sum()
        assert walked == pytest.approx(record["path_m"], abs=0.01)  # positions are rounded
        assert record["path_m"] >= record["geodesic_m"] - 0.5 - 1e-6


def test_a_killed_worker_costs_nothing_but_time(config):
    bench = Bench(config)
    whole = bench.play()
    pool = bench.pool(1)
    try:
        table = bench.table(pool, num_slots=8)
        records = {}
        for count, one in enumerate(table.play(bench.units)):
            assert isinstance(one, Played)
            assert one.unit.key not in records
            records[one.unit.key] = {**one.record, "attempts": 1}
            if count == 2:  # once: an episode that two kills hit is rightly marked, not retried
                os.kill(pool.pids()[-1], signal.SIGKILL)
        assert pool.num_restarts >= 1
    finally:
        pool.close()
    assert records == whole


def test_an_episode_that_kills_its_simulator_twice_is_marked_and_the_others_go_on(
    config, monkeypatch
):
    bench = Bench(config)
    whole = bench.play()
    poison = next(unit for unit in bench.units if unit.condition.actor is Actor.CHANCE)
    call, deaths = WorkerProcess.call, []

    def deadly(self, method, **arguments):
        agent = arguments.get("agent")
        if method == "run" and table._slots[agent].unit == poison and arguments["primitives"]:
            deaths.append(agent)
            os.kill(self.pid, signal.SIGKILL)
        return call(self, method, **arguments)

    monkeypatch.setattr(WorkerProcess, "call", deadly)
    pool = bench.pool(1)
    try:
        table = bench.table(pool, num_slots=6)
        ended = list(table.play(bench.units))
    finally:
        pool.close()
    (crashed,) = [one for one in ended if isinstance(one, Crashed)]
    assert crashed.unit == poison
    assert "ended with code -9" in crashed.reason
    assert len(deaths) == 2  # played once, retried once
    others = by_key(one for one in ended if isinstance(one, Played))
    del whole[poison.key]
    assert others == whole  # nobody else lost an attempt, a result or a number


def test_a_fault_inside_a_worker_ends_the_run_with_its_message(config):
    bench = Bench(config)
    bench.scenes = dict.fromkeys(bench.scenes, "/nowhere/house.glb")
    pool = bench.pool(1)
    try:
        with pytest.raises(UserError, match=r"/nowhere/house\.glb"):
            list(bench.table(pool).play(bench.units))
    finally:
        pool.close()


def test_a_resampled_reference_is_dense_and_keeps_its_ends():
    corners = np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 2.1]])
    dense = resampled(corners, spacing_m=0.25)
    steps = np.linalg.norm(np.diff(dense, axis=0), axis=1)
    assert len(dense) == 14  # 3.1 m need 13 pieces of at most 0.25 m
    assert steps.max() <= 0.25 + 1e-9
    assert dense[0].tolist() == corners[0].tolist()
    assert np.allclose(dense[-1], corners[-1])
    assert len(resampled(corners[:1], spacing_m=0.25)) == 1
