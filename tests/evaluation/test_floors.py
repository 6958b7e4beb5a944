"""A goal on another floor, from the episode file to map, distance and report (case 19)."""

import numpy as np
import pytest
from PIL import Image
from worlds import evaluate_config, made_episode, results_of

from vla_nav.episodes.types import Goal, Pose
from vla_nav.episodes.vlnce import write_vlnce
from vla_nav.evaluation.pictures import _GOAL, _PATH, _START
from vla_nav.evaluation.runs import evaluate_from
from vla_nav.evaluation.setup import embodiment_of
from vla_nav.simulators.houses.export import export_house
from vla_nav.simulators.houses.house import HouseOptions, generate_house
from vla_nav.simulators.mesh import MeshSimulator


def num_pixels(path, colour):
    image = np.asarray(Image.open(path).convert("RGB"))
    return int((image == np.array(colour)).all(axis=2).sum())


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """A house of two floors, `data.path` of the commands, and a simulator in it."""
    root = tmp_path_factory.mktemp("floors")
    scenes = root / "scenes"
    scenes.mkdir()
    scene = export_house(generate_house(3, HouseOptions(num_floors=2), name="two"), scenes)
    config = evaluate_config(root, root / "unused")
    simulator = MeshSimulator(embodiment_of(config["simulators"]))
    simulator.load_scene(str(scene))
    return root, str(scene.relative_to(scenes)), simulator


def evaluate(house, folder, start, goal, *options):
    """Evaluate one episode of the house; its record."""
    root, scene, simulator = house
    start, goal = (tuple(map(float, point)) for point in (start, goal))
    episode = made_episode(
        "0",
        scene=scene,
        start_pose=Pose.from_yaw(start, 0.0),
        goals=(Goal(goal, 3.0),),
        reference_path=simulator.shortest_path(start, goal).points,
    )
    episodes = folder / "val_unseen.json.gz"
    write_vlnce(episodes, [episode])
    config = evaluate_config(root, folder / "out", f"data.episodes={episodes}", *options)
    assert evaluate_from(config) == 0
    (record,) = results_of(folder / "out").values()
    return record


def test_the_goal_is_on_its_floors_map_and_the_walk_on_both(house, tmp_path):
    simulator = house[2]
    rng = np.random.default_rng(0)
    while True:
        start, goal = simulator.random_point(rng), simulator.random_point(rng)
        geodesic_m = simulator.shortest_path(start, goal).distance_m
        if start[1] < 0.5 and goal[1] > 2.0 and 6 < geodesic_m < 40:
            break
    options = ["evaluation.rows=[expert]", "evaluation.num_maps=1", "evaluation.success_m=1.0"]
    record = evaluate(house, tmp_path, start, goal, *options)
    low, high = sorted((tmp_path / "out" / "maps" / "expert").iterdir())
    assert (low.name[-10:], high.name[-10:]) == ("floor0.png", "floor1.png")
    assert num_pixels(low, _GOAL) == 0
    assert num_pixels(high, _GOAL) > 20
    assert num_pixels(low, _START) > 20
    assert num_pixels(high, _START) == 0
    assert num_pixels(low, _PATH) > 20
    assert num_pixels(high, _PATH) > 20
    assert record["sr"] == 1.0
    assert record["geodesic_m"] == pytest.approx(geodesic_m, rel=0.05)
    assert record["geodesic_m"] > np.linalg.norm(np.subtract(goal, start))  # by the stairs
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 2


def test_stopping_on_the_floor_below_the_goal_is_no_success(house, tmp_path):
    simulator = house[2]
    rng = np.random.default_rng(1)
    while True:  # a place from which the goal is within 3 m through the ceiling
        start, goal = simulator.random_point(rng), simulator.random_point(rng)
        if start[1] > 0.5 or goal[1] < 2.0 or np.linalg.norm(np.subtract(goal, start)) > 2.95:
            continue
        if np.isfinite(simulator.geodesic_distance(start, [goal])):
            break
    options = ["evaluation.rows=[random]", "evaluation.chance_stop_probability=1.0"]
    record = evaluate(house, tmp_path, start, goal, *options)
    assert record["primitives"] == "0"  # STOP at once
    assert record["ne_m"] > 5.0
    assert (record["sr"], record["osr"], record["public"]["sr"]) == (0.0, 0.0, 0.0)
