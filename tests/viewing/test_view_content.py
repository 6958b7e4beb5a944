"""What the page is told: blocked steps, floors, frames, and what a scene adds."""

import dataclasses
import json
import math
import shutil

import numpy as np
import pytest
from pages import content_of, index_of, two_floor_episode, view_config
from PIL import Image

from tests.training.recorded import write_recorded
from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.episodes.types import Embodiment, Goal, Pose
from vla_nav.errors import UserError
from vla_nav.evaluation.results import read_results
from vla_nav.simulators.topdown import FloorMap
from vla_nav.viewing.content import episode_json
from vla_nav.viewing.evaluation_run import open_run, walked_spots
from vla_nav.viewing.floors import Floor, SceneFloors, episode_floors
from vla_nav.viewing.frame_files import FrameFiles, shown
from vla_nav.viewing.view_run import view_from


def walked(primitives: str, *, blocked: set[int], turn_deg: float = 30.0) -> list:
    """(x, y, z, yaw) before every primitive and at the end; `blocked` forward steps stay."""
    x, z, yaw, spots = 0.0, 0.0, 0.0, [(0.0, 0.0, 0.0, 0.0)]
    for at, primitive in enumerate(primitives):
        yaw += math.radians(turn_deg) * {"2": 1, "3": -1}.get(primitive, 0)
        if primitive == "1" and at not in blocked:
            x, z = x - 0.25 * math.sin(yaw), z - 0.25 * math.cos(yaw)
        if primitive != "0":
            spots.append((x, 0.0, z, yaw))
    return spots


@pytest.mark.parametrize(
    ("primitives", "blocked"),
    [("1121130", set()), ("11211130", {4}), ("2221333110", {3}), ("121212120", {6})],
)
def test_the_places_of_a_result_are_given_back_to_its_primitives(primitives, blocked):
    expected = walked(primitives, blocked=blocked)
    places = [expected[0][:3]]
    for spot in expected:
        if spot[:3] != places[-1]:
            places.append(spot[:3])
    spots, is_inferred = walked_spots(
        np.array(places), [int(name) for name in primitives], yaw_rad=0.0, turn_deg=30.0
    )
    assert is_inferred == bool(blocked)
    assert len(spots) == len(expected)
    if blocked != {4}:  # of two equal forward steps in a row either may have been blocked
        np.testing.assert_allclose(
            [spot[:3] for spot in spots], [spot[:3] for spot in expected], atol=1e-12
        )
    np.testing.assert_allclose(
        [math.cos(spot[3] - other[3]) for spot, other in zip(spots, expected, strict=True)], 1.0
    )


def test_an_episode_without_a_scene_has_the_floors_of_its_start_and_goal():
    floors = episode_floors(two_floor_episode(), [], [])
    assert [floor.height_m for floor in floors] == [0.0, 2.8]


def test_a_goal_far_above_every_floor_of_the_scene_gets_a_floor_of_its_own():
    episode = dataclasses.replace(two_floor_episode(), goals=(Goal((0.0, 9.0, 0.0), 3.0),))
    floors = episode_floors(episode, [], [Floor(0.1, "a.png"), Floor(2.9, "b.png")])
    assert [(floor.height_m, floor.image) for floor in floors] == [
        (0.1, "a.png"),
        (2.9, "b.png"),
        (9.0, None),
    ]


def test_a_floor_image_lies_where_its_cells_are(tmp_path):
    cells = np.zeros((40, 50), dtype=bool)
    cells[10:20, 30:45] = True  # z from 1.0 + 10 * 0.1, x from -2.0 + 30 * 0.1
    body = Embodiment((), 0.2, 1.5, 30.0, 0.25, True)
    floor = FloorMap(0.0, -2.0, 1.0, 0.1, cells)
    (made,) = SceneFloors(tmp_path, "maps").write("a/b", body, [floor])
    x, z, width, height = made.box
    pixels = np.asarray(Image.open(tmp_path / made.image))[..., 0] > 128
    assert pixels.shape == (round(height / 0.1), round(width / 0.1))
    rows, columns = np.nonzero(pixels)
    assert x + 0.1 * columns.min() == pytest.approx(1.0)
    assert z + 0.1 * rows.min() == pytest.approx(2.0)
    assert pixels.sum() == cells.sum()


def test_a_floor_at_the_edge_of_its_grid_keeps_its_place(tmp_path):
    floor = FloorMap(0.0, 5.0, 7.0, 0.5, np.ones((3, 4), dtype=bool))
    body = Embodiment((), 0.2, 1.5, 30.0, 0.25, True)
    (made,) = SceneFloors(tmp_path, "maps").write("s", body, [floor])
    pixels = np.asarray(Image.open(tmp_path / made.image))[..., 0] > 128
    rows, columns = np.nonzero(pixels)
    assert made.box[0] + 0.5 * columns.min() == 5.0
    assert made.box[1] + 0.5 * rows.min() == 7.0
    assert pixels.sum() == 12


def test_small_frames_are_exact_and_large_ones_are_bounded(tmp_path):
    files = FrameFiles(tmp_path, max_side_px=200)
    rng = np.random.default_rng(0)
    small = rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)
    np.testing.assert_array_equal(
        np.asarray(Image.open(tmp_path / files.from_pixels("a", small))), small
    )
    large = files.from_pixels("b", np.zeros((300, 400, 3), np.uint8))
    assert large.endswith(".jpg")
    assert Image.open(tmp_path / large).size == (200, 150)


def test_depth_is_grey_and_nothing_is_black():
    depth = np.array([[0.0, 5.0], [10.0, np.inf]], np.float32)
    np.testing.assert_array_equal(shown(depth), [[0, 128], [255, 255]])
    assert shown(np.full((1, 1), np.nan, np.float32))[0, 0] == 0


def test_a_run_executed_again_ends_where_its_results_say(run, run_page):
    records = read_results(run)
    lines = index_of(run_page)["episodes"]
    assert len(lines) == 4
    for number, line in enumerate(lines):
        content = content_of(run_page, number)
        assert {track["name"] for track in content["tracks"]} == {"random", "expert"}
        for track in content["tracks"]:
            record = records[(track["name"], *line["key"].split("/"))]
            assert track["spots"][-1][:3] == pytest.approx(record["path"][-1], abs=2e-4)
            assert track["scores"]["ne_m"] == pytest.approx(record["ne_m"], abs=1e-4)
            assert len(track["actions"]) == len(record["primitives"])
            assert len(track["frames"]) == len(track["actions"])
            for step in track["frames"]:
                assert (run_page.parent / step["front"]).is_file()


def test_inferred_places_are_those_of_the_run(run, run_page):
    """Without a scene the page infers what the simulator knows."""
    source = open_run(run)
    num_agreeing = num_all = 0
    for number, episode in enumerate(source.episodes()):
        exact = {track["name"]: track for track in content_of(run_page, number)["tracks"]}
        for track in source.tracks(episode):
            inferred = np.array([spot[:3] for spot in track.spots])
            known = np.array([spot[:3] for spot in exact[track.name]["spots"]])
            assert inferred.shape == known.shape
            num_agreeing += int((np.abs(inferred - known).max(axis=1) < 1e-3).sum())
            num_all += len(known)
    assert num_agreeing > 0.9 * num_all  # the rest: equal forward steps against a wall


def test_recorded_frames_are_the_recorded_pixels(tmp_path):
    data = LeRobotDataset(write_recorded(tmp_path, num_episodes=3))
    page = view_from(view_config(tmp_path / "page", f"data.path={tmp_path}"), None)
    for number, episode in enumerate(data):
        (track,) = content_of(page, number)["tracks"]
        assert [step["front"] for step in track["frames"]] != []
        for step, shown_step in zip(episode.steps, track["frames"], strict=True):
            pixels = np.asarray(Image.open(page.parent / shown_step["front"]))
            np.testing.assert_array_equal(pixels, data.frames.read(step.frames["front"]))
        assert track["actions"] == [list(step.executed) for step in episode.steps]
        assert len(track["spots"]) == len(episode.steps) + 1


def test_a_frame_that_cannot_be_read_is_named_where_it_belongs(tmp_path, capsys):
    file = next(write_recorded(tmp_path, num_episodes=2).glob("data/chunk-000/*.parquet"))
    damaged = bytearray(file.read_bytes())
    damaged[100] ^= 1
    file.write_bytes(damaged)
    page = view_from(view_config(tmp_path / "page", f"data.path={tmp_path}"), None)
    (track,) = content_of(page, 0)["tracks"]
    assert track["frames"][0]["front"].startswith("!")
    assert "damaged" in track["frames"][0]["front"]
    assert index_of(page)["num_missing_frames"] > 0
    assert "frames could not be read" in capsys.readouterr().out


def test_a_result_line_without_scores_is_named(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    file = next(copy.glob("results-*.jsonl"))
    lines = file.read_text().splitlines()
    record = json.loads(lines[0])
    del record["osr"]
    file.write_text("\n".join([json.dumps(record), *lines[1:]]) + "\n")
    with pytest.raises(UserError, match=f"episode {record['episode_id']}, has no path"):
        open_run(copy)


def test_numbers_that_json_lacks_do_not_break_the_page(tmp_path):
    nowhere = Pose((math.nan, math.inf, 0.0), (0.0, 0.0, 0.0, 1.0))
    episode = dataclasses.replace(two_floor_episode(), start_pose=nowhere, goals=())
    content = episode_json(episode)
    assert content["start"][:2] == ["nan", "inf"]
    assert [floor.height_m for floor in episode_floors(episode, [], [])] == [0.0, 2.8]
