"""Whole episodes under both executions: declared, equal where they should be, cut by the limit."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from worlds import body_of, episodes_of, evaluate_config

from vla_nav.actions.types import Stop, Waypoint
from vla_nav.actions.waypoint import WaypointSpace
from vla_nav.errors import UserError
from vla_nav.evaluation.conditions import CONDITIONS, Actor, Instructions
from vla_nav.evaluation.metrics import SuccessRule
from vla_nav.evaluation.play import Played, PlaySettings, Unit
from vla_nav.evaluation.runs import evaluate_from
from vla_nav.evaluation.slots import Table
from vla_nav.evaluation.subject import require_execution
from vla_nav.simulators.pool import SimulatorPool

RULE = "turn_then_forward(4)"


@pytest.fixture(scope="module")
def config(world, tmp_path_factory):
    return evaluate_config(world, tmp_path_factory.mktemp("out"))


class Waypoints:
    """A policy of waypoints: the next of a list at every decision, then STOP."""

    def __init__(self, *actions):
        self.space = WaypointSpace(decision=RULE)
        self._actions = actions
        self._asked: dict[int, int] = {}

    def reset(self, slot, instruction, *, name):
        self._asked[slot] = 0

    def has_room(self, slot):
        return True

    def act(self, observations):
        actions = {}
        for slot in observations:
            number = self._asked[slot]
            self._asked[slot] += 1
            actions[slot] = self._actions[number] if number < len(self._actions) else Stop()
        return actions


def play(config, policy, *, execution, num_workers=0, max_primitives=60):
    episodes, scenes = episodes_of(config)
    rows = [c for c in CONDITIONS if c.name == "policy" or c.actor is Actor.EXPERT]
    settings = PlaySettings(
        embodiment=body_of(config),
        decision=policy.space.decision,
        success=SuccessRule(),
        seed=0,
        max_primitives=max_primitives,
        expert_stop_radius_m=0.5,
        chance_stop_probability=0.1,
        execution=execution,
    )
    pool = SimulatorPool(
        "mesh", body_of(config), config["simulators"]["options"], num_workers=num_workers
    )
    table = Table(
        pool,
        settings,
        Instructions(episodes, seed=0),
        scene_path=lambda episode: scenes[episode.scene_id],
        network=policy,
        num_slots=4,
    )
    try:
        played = list(table.play([Unit(row, e) for e in episodes[:5] for row in rows]))
    finally:
        pool.close()
    assert all(isinstance(one, Played) for one in played)
    return {one.unit.key: one.record for one in played}


WAY = (Waypoint(1.0, 0.0, 0.0), Waypoint(0.5, 0.9, 1.0), Waypoint(0.6, -0.6, -0.8))


def test_both_executions_are_declared_and_only_the_network_s_differs(config):
    discrete = play(config, Waypoints(*WAY), execution="discrete")
    geodesic = play(config, Waypoints(*WAY), execution="geodesic")
    assert discrete.keys() == geodesic.keys()
    for key, record in geodesic.items():
        if key[0] == "expert":
            assert record == discrete[key]
            assert record["execution"] == "discrete"
            continue
        assert (record["execution"], discrete[key]["execution"]) == ("geodesic", "discrete")
        assert record["num_decisions"] == 4
        assert record["primitives"].endswith("0")
        assert record["steps"] == len(record["primitives"])
        assert record["num_unreachable"] == 0
        path = np.array(record["path"])
        assert np.linalg.norm(np.diff(path, axis=0), axis=1).max() <= 1.1 * 0.25 + 1e-3
    assert any(geodesic[key]["path"] != discrete[key]["path"] for key in geodesic)


def test_workers_and_slots_do_not_change_a_geodesic_result(config):
    here = play(config, Waypoints(*WAY), execution="geodesic")
    assert play(config, Waypoints(*WAY), execution="geodesic", num_workers=2) == here


def test_the_cap_cuts_a_walk_and_the_episode_ends_there(config):
    records = play(config, Waypoints(*WAY), execution="geodesic", max_primitives=6)
    for key, record in records.items():
        if key[0] == "policy":
            assert record["steps"] == len(record["primitives"]) == 6
            assert not record["has_stopped"]


def test_an_unreachable_waypoint_is_walked_by_discrete_steps_and_counted(config):
    far = Waypoint(80.0, 0.0, 0.0)  # outside every house
    records = play(config, Waypoints(far), execution="geodesic", max_primitives=30)
    same = play(config, Waypoints(far), execution="discrete", max_primitives=30)
    for key, record in records.items():
        if key[0] == "policy":
            assert record["num_unreachable"] == 1
            assert record["path"] == same[key]["path"]


def test_a_space_without_places_is_refused():
    policy = SimpleNamespace(space=SimpleNamespace(name="chunk"))
    with pytest.raises(UserError, match=r"actions=chunk are primitive actions.*discrete"):
        require_execution("geodesic", policy)
    assert require_execution("discrete", policy) == "discrete"
    assert require_execution("geodesic", None) == "geodesic"


def test_one_folder_holds_one_execution_and_the_report_says_which(world, tmp_path):
    options = ("evaluation.rows=[expert]", "evaluation.num_episodes=2")
    geodesic = evaluate_config(world, tmp_path, *options, "evaluation.execution=geodesic")
    assert evaluate_from(geodesic) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["run"]["execution"] == "geodesic"
    assert report["definitions"]["execution"].startswith("geodesic: the network's waypoints")
    assert "shortest path" in (tmp_path / "report.html").read_text()
    with pytest.raises(UserError, match="execution was 'geodesic', is now 'discrete'"):
        evaluate_from(evaluate_config(world, tmp_path, *options))
    wrong = evaluate_config(world, tmp_path / "x", *options, "evaluation.execution=teleport")
    with pytest.raises(UserError, match=r"evaluation\.execution 'teleport'.*discrete, geodesic"):
        evaluate_from(wrong)
