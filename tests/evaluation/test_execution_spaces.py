"""An oracle speaks through every action space with places: both executions lead it to its goals.

follower's label --space.label, encode, decode--> action --discrete | geodesic--> next state
"""

import os
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from worlds import body_of, episodes_of, evaluate_config

from vla_nav.actions import Action, PointingSpace, WaypointSpace, farthest_visible
from vla_nav.episodes.types import STOP
from vla_nav.evaluation.conditions import CONDITIONS, Instructions
from vla_nav.evaluation.metrics import SuccessRule
from vla_nav.evaluation.play import Played, PlaySettings, Unit
from vla_nav.evaluation.slots import Table
from vla_nav.simulators.follower import GreedyFollower
from vla_nav.simulators.mesh import MeshSimulator
from vla_nav.simulators.pool import SimulatorPool

CAMERA = "simulators.embodiment.cameras=[{name: front, width_px: 64, height_px: 64, \
hfov_deg: 90.0, height_m: 1.25, pitch_deg: -10.0, has_depth: true}]"
SPACES = {
    "polar": WaypointSpace(),
    "cartesian": WaypointSpace(coordinates="cartesian", grid_m=0.125),
    "pointing": PointingSpace(),
}


@pytest.fixture(scope="module")
def config(world, tmp_path_factory):
    return evaluate_config(world, tmp_path_factory.mktemp("out"), CAMERA)


class Oracle:
    """The geodesic follower as a network: what its label becomes in an action space, rounded to
    the space's tokens."""

    def __init__(self, space, config):
        self.space, self.kinds = space, Counter()
        self._body = body_of(config)
        episodes, self._scenes = episodes_of(config)
        self._episodes = {"/".join(episode.key): episode for episode in episodes}
        self._simulators: dict[str, MeshSimulator] = {}
        self._followers: dict[int, GreedyFollower] = {}

    def reset(self, slot, instruction, *, name):
        episode = self._episodes[name.split("/", 1)[1]]
        scene = self._scenes[episode.scene_id]
        if scene not in self._simulators:
            self._simulators[scene] = MeshSimulator(self._body)
            self._simulators[scene].load_scene(scene)
        self._followers[slot] = GreedyFollower(
            self._simulators[scene], episode.goals[0].position, stop_radius_m=0.5
        )

    def has_room(self, slot):
        return True

    def act(self, observations) -> dict[int, Action]:
        actions = {}
        camera = self._body.cameras[0]
        for slot, seen in observations.items():
            follower = self._followers[slot]
            label = follower.plan(seen.pose, 12)
            if label.primitives[0] != STOP:
                points = follower.remaining_path(seen.pose)
                depth = seen.depth[camera.name]
                label = replace(label, pixel=farthest_visible(points, seen.pose, camera, depth))
            tokens = self.space.encode(self.space.label(seen.pose, label))
            actions[slot] = self.space.decode(tokens).action
            self.kinds[type(actions[slot]).__name__] += 1
        return actions


def played(config, space, execution):
    """Records of two episodes of every house, and the oracle."""
    episodes, scenes = episodes_of(config)
    oracle = Oracle(space, config)
    settings = PlaySettings(
        embodiment=body_of(config),
        decision=space.decision,
        success=SuccessRule(),
        seed=0,
        max_primitives=300,
        expert_stop_radius_m=0.5,
        chance_stop_probability=0.1,
        execution=execution,
    )
    simulators = config["simulators"]
    pool = SimulatorPool(
        simulators["backend"],
        body_of(config),
        simulators["options"],
        num_workers=config["num_workers"],
        python=simulators["python"],
    )
    table = Table(
        pool,
        settings,
        Instructions(episodes, seed=0),
        scene_path=lambda episode: scenes[episode.scene_id],
        network=oracle,
        num_slots=6,
    )
    units = [Unit(CONDITIONS[0], episode) for n, episode in enumerate(episodes) if n % 5 < 2]
    try:
        ended = list(table.play(units))
    finally:
        pool.close()
    assert all(isinstance(one, Played) for one in ended)
    return [one.record for one in ended], oracle


def mean(records, key):
    return float(np.mean([record[key] for record in records]))


@pytest.mark.parametrize("name", SPACES)
def test_an_oracle_reaches_its_goals_through_places_by_either_execution(config, name):
    discrete, _ = played(config, SPACES[name], "discrete")
    geodesic, oracle = played(config, SPACES[name], "geodesic")
    for records in (discrete, geodesic):
        assert mean(records, "sr_1m") == 1.0
        assert mean(records, "spl") > 0.93
    assert sum(record["num_unreachable"] for record in geodesic) == 0
    assert mean(geodesic, "collisions") == 0.0  # it walks round what it would have touched
    assert mean(geodesic, "spl") > 0.97
    if name == "pointing":
        assert oracle.kinds["Pointing"] > 20  # or this would have been waypoints again
        assert mean(geodesic, "steps") < mean(discrete, "steps")


@pytest.mark.habitat
@pytest.mark.parametrize("name", ["polar", "pointing"])
def test_in_habitat_the_shortest_path_leads_where_discrete_steps_may_get_stuck(
    world, tmp_path, name
):
    """The oracle plans on the mesh backend; habitat's walkable area differs by centimetres, so a
    straight line to a pixel beside a corner may end at a wall. The path to it does not."""
    python = os.environ["VLA_NAV_HABITAT_PYTHON"]
    here = ("simulators=habitat", f"simulators.python={python}", "num_workers=1", CAMERA)
    config = evaluate_config(world, tmp_path, *here)
    geodesic, _ = played(config, SPACES[name], "geodesic")
    assert mean(geodesic, "sr_1m") == 1.0
    assert mean(geodesic, "spl") > 0.97
    assert mean(geodesic, "collisions") == 0.0
    assert sum(record["num_unreachable"] for record in geodesic) == 0
    discrete, _ = played(config, SPACES[name], "discrete")
    assert mean(discrete, "collisions") > 0.0
    again, _ = played(config, SPACES[name], "geodesic")
    assert again == geodesic
