"""Maps and videos: what lies where, on which floor, and files that open."""

import json

import av
import numpy as np
import pytest
from PIL import Image
from worlds import evaluate_config, made_episode

from vla_nav.episodes.types import Camera, Embodiment, Goal
from vla_nav.evaluation.pictures import Canvas, picture_name
from vla_nav.evaluation.runs import evaluate_from
from vla_nav.simulators.houses.export import export_house
from vla_nav.simulators.houses.house import HouseOptions, generate_house
from vla_nav.simulators.mesh import MeshSimulator
from vla_nav.simulators.topdown import FloorMap, floor_maps

GOAL, PATH, START = (200, 40, 40), (242, 133, 0), (30, 150, 70)


def floor(height):
    cells = np.zeros((40, 60), dtype=bool)
    cells[10:30, 5:55] = True
    return FloorMap(height, -3.0, -2.0, 0.1, cells)


def has(image, colour):
    return bool((np.asarray(image) == np.array(colour)).all(axis=-1).any())


def test_a_goal_on_another_floor_is_on_that_floors_map():
    floors = [floor(0.0), floor(2.9)]
    episode = made_episode(goals=(Goal((1.0, 2.9, 0.0), 0.5),))
    climbed = np.array([[-1.0, 0.0, 0.0], [0.0, 0.1, 0.0], [0.5, 2.8, 0.0], [0.9, 2.9, 0.0]])
    images = []
    for one in floors:
        canvas = Canvas(one, floors)
        canvas.draw(episode, climbed)
        images.append(canvas.image)
    assert [has(image, GOAL) for image in images] == [False, True]
    assert [has(image, START) for image in images] == [True, False]
    assert [has(image, PATH) for image in images] == [True, True]


def test_plus_x_is_right_and_minus_z_is_up():
    here = floor(0.0)
    canvas = Canvas(here, [here], scale_px=5)
    spots = np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, -1.0]])
    middle, right, up = canvas._pixels(spots)
    assert (right - middle).tolist() == pytest.approx([50, 0])
    assert (up - middle).tolist() == pytest.approx([0, -50])
    x, y = (int(value) for value in middle)
    assert canvas.image.getpixel((x, y)) == (236, 238, 240)  # walkable there
    assert canvas.image.getpixel((1, 1)) == (70, 74, 84)


def test_a_house_of_two_floors_has_two_maps(tmp_path):
    house = generate_house(3, HouseOptions(num_floors=2), name="two")
    body = Embodiment((Camera("front", 8, 8, 90.0, 1.0),), 0.18, 1.5, 30.0, 0.25, True)
    simulator = MeshSimulator(body)
    simulator.load_scene(str(export_house(house, tmp_path)))
    maps = floor_maps(simulator.walkable)
    assert len(maps) == 2
    assert maps[0].height_m == pytest.approx(0.0, abs=0.1)
    assert maps[1].height_m > 2.0
    cells = sum(int(one.is_walkable.sum()) for one in maps)
    assert cells > 0.95 * simulator.walkable.is_walkable.sum()  # stairs may share a column


def test_pictures_come_for_the_episodes_asked_for(world, tmp_path):
    config = evaluate_config(
        world,
        tmp_path,
        "evaluation.num_episodes=2",
        "evaluation.num_videos=1",
        "evaluation.num_maps=2",
        "evaluation.max_primitives=30",
    )
    assert evaluate_from(config) == 0
    for row in ("random", "expert"):
        (video,) = (tmp_path / "videos" / row).iterdir()
        maps = sorted((tmp_path / "maps" / row).iterdir())
        assert len(maps) == 2
        assert all(path.name.endswith("-floor0.png") for path in maps)
        assert Image.open(maps[0]).size[0] > 100
        lines = (tmp_path / "results-000-of-001.jsonl").read_text().splitlines()
        records = {(r["row"], r["episode_id"]): r for r in map(json.loads, lines)}
        with av.open(str(video)) as container:
            frames = list(container.decode(video=0))
        assert len(frames) == records[(row, video.stem)]["num_decisions"]
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 4
    assert page.count("data:video/mp4;base64,") == 2


def test_picture_names_are_safe_file_names():
    assert picture_name(made_episode("../a b", role="guide")) == "guide-.._a_b"
