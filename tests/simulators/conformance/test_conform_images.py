"""Every backend: which pixel shows which point, how far it is, and what an observation holds."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from flat_oracles import depth_of_boxes, project, steady
from known_scenes import FURNISHED_BOXES, MARK_M, MARKS, furnished, hall, marked

from vla_nav.episodes.types import TURN_LEFT, Camera, Pose

CAMERA = Camera("front", 160, 120, 79.0, 1.25, has_depth=True)
SOUTH_OF_MARKS = (3.0, 0.0, 4.0)
SIZES = ((240, 180), (195, 127), (130, 260))


def pixels_of(image: np.ndarray, colour) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the pixels of a pure hue, however it is lit."""
    image = image.astype(float)
    wanted = np.array(colour) > 0
    own, other = image[..., wanted].min(-1), image[..., ~wanted].max(-1)
    return np.nonzero((own > 40) & (own > 2 * other))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("pitch_deg", [0.0, -20.0, 12.5])
@pytest.mark.parametrize("hfov_deg", [79.0, 100.0])
def test_points_show_where_the_pinhole_puts_them(bench, size, pitch_deg, hfov_deg):
    camera = dataclasses.replace(
        CAMERA, width_px=size[0], height_px=size[1], pitch_deg=pitch_deg, hfov_deg=hfov_deg
    )
    simulator = bench.open(marked, cameras=(camera,))
    simulator.reset(Pose.from_yaw(SOUTH_OF_MARKS, 0.0))
    for position, yaw in ((SOUTH_OF_MARKS, 0.0), ((2.1, 0.3, 4.3), -0.25), ((3.9, 0.0, 3.2), 0.3)):
        pose = Pose.from_yaw(position, yaw)  # exactly there, the floor's height included
        simulator.place(pose)
        seen = simulator.observe()
        assert seen.rgb["front"].shape == (size[1], size[0], 3)
        for name, centre, colour in MARKS:
            column, row, depth = project(camera, pose, centre)
            margin = MARK_M / depth * camera.width_px
            if not (
                margin < column < camera.width_px - margin
                and margin < row < camera.height_px - margin
            ):
                continue
            rows, columns = pixels_of(seen.rgb["front"], colour)
            assert len(rows) >= 4, f"{name} is not in the image"
            # A cube's nearer faces are larger, which moves its centroid by less than a pixel.
            assert abs(columns.mean() + 0.5 - column) < 1.0
            assert abs(rows.mean() + 0.5 - row) < 1.0
            near = seen.depth["front"][int(row), int(column)]
            assert depth - MARK_M * 0.9 < near < depth


def test_depth_is_that_of_every_pixel_s_ray(bench):
    for size, pitch_deg, hfov_deg in zip(
        SIZES, (0.0, -25.0, 10.0), (79.0, 90.0, 63.0), strict=True
    ):
        camera = dataclasses.replace(
            CAMERA, width_px=size[0], height_px=size[1], pitch_deg=pitch_deg, hfov_deg=hfov_deg
        )
        simulator = bench.open(furnished, cameras=(camera,))
        for position, yaw in (
            ((3.2, 0.0, 2.6), 0.4),
            ((2.0, 0.2, 2.2), -1.3),
            ((5.4, 0, 0.6), 2.2),
        ):
            pose = Pose.from_yaw(position, yaw)
            simulator.reset(pose)
            simulator.place(pose)
            depth = simulator.observe().depth["front"]
            expected = depth_of_boxes(camera, pose, list(FURNISHED_BOXES))
            assert depth.dtype == np.float32
            clear = steady(expected)
            assert clear.mean() > 0.4
            assert np.abs(depth - expected)[clear].max() < bench.promise.depth_m
            is_sky = expected == 0  # nothing is hit above the walls
            inner = is_sky & np.roll(is_sky, 1, 0) & np.roll(is_sky, -1, 0)
            assert (depth[inner] == 0).all()


def test_depth_is_planar_not_the_length_of_the_ray(bench):
    camera = dataclasses.replace(CAMERA, hfov_deg=100.0)
    simulator = bench.open(hall, cameras=(camera,))
    pose = simulator.reset(Pose.from_yaw((5.0, 0.0, 2.0), 0.0))
    simulator.place(pose)
    depth = simulator.observe().depth["front"]
    row = depth[camera.height_px // 2]  # the wall z = 0, 2 m ahead, over the image's whole width
    np.testing.assert_allclose(row, 2.0, atol=bench.promise.depth_m)


def test_the_camera_stands_above_the_agent_s_point(bench):
    cameras = (
        dataclasses.replace(CAMERA, name="low", height_m=0.4, hfov_deg=90.0),
        dataclasses.replace(CAMERA, name="high", height_m=1.5, hfov_deg=90.0),
    )
    simulator = bench.open(hall, cameras=cameras)
    pose = simulator.reset(Pose.from_yaw((5.0, 0.0, 6.0), 0.0))
    depth = simulator.observe().depth
    for camera in cameras:
        below = (camera.height_px - 0.5 - camera.height_px / 2) / (camera.width_px / 2)
        expected = (pose.position[1] + camera.height_m) / below
        bottom = depth[camera.name][-1]
        np.testing.assert_allclose(bottom, expected, rtol=5e-3)


def test_a_turn_to_the_left_moves_the_picture_to_the_right(bench):
    simulator = bench.open(marked, cameras=(CAMERA,), turn_deg=15.0)
    simulator.reset(Pose.from_yaw(SOUTH_OF_MARKS, 0.0))
    _, before = pixels_of(simulator.observe().rgb["front"], MARKS[2][2])
    simulator.act(TURN_LEFT)
    _, after = pixels_of(simulator.observe().rgb["front"], MARKS[2][2])
    assert after.mean() > before.mean() + 20


def test_every_camera_gives_what_it_has(bench):
    cameras = (
        CAMERA,
        Camera("down", 17, 31, 90.0, 1.25, pitch_deg=-45.0),
    )
    simulator = bench.open(marked, cameras=cameras)
    simulator.reset(Pose.from_yaw(SOUTH_OF_MARKS, 0.0))
    seen = simulator.observe(semantic=True)
    assert {name: image.shape for name, image in seen.rgb.items()} == {
        "front": (120, 160, 3),
        "down": (31, 17, 3),
    }
    assert {image.dtype for image in seen.rgb.values()} == {np.dtype(np.uint8)}
    assert list(seen.depth) == ["front"]
    assert {name: image.shape for name, image in seen.semantic.items()} == {
        "front": (120, 160),
        "down": (31, 17),
    }
    assert {image.dtype for image in seen.semantic.values()} == {np.dtype(np.uint32)}
    plain = simulator.observe()
    assert plain.semantic == {}
    np.testing.assert_array_equal(plain.rgb["down"], seen.rgb["down"])


def test_images_depend_on_the_pose_alone(bench):
    simulator = bench.open(furnished, cameras=(CAMERA,))
    pose = simulator.reset(Pose.from_yaw((3.2, 0.0, 2.6), 0.4))
    first = simulator.observe()
    simulator.reset(Pose.from_yaw((5.4, 0.0, 0.6), 2.2))
    other = simulator.observe()
    assert (other.rgb["front"] != first.rgb["front"]).mean() > 0.1
    simulator.place(pose)
    again = simulator.observe()
    np.testing.assert_array_equal(again.rgb["front"], first.rgb["front"])
    np.testing.assert_array_equal(again.depth["front"], first.depth["front"])


def test_cameras_can_be_exchanged_at_a_pose(bench):
    simulator = bench.open(furnished, cameras=(CAMERA,))
    pose = simulator.reset(Pose.from_yaw((3.2, 0.0, 2.6), 0.4))
    body = simulator.embodiment
    first = simulator.observe()
    for change in (
        {"height_m": 0.6, "pitch_deg": -10.0},
        {"width_px": 80, "height_px": 90},
        {"hfov_deg": 60.0},
    ):
        camera = dataclasses.replace(CAMERA, **change)
        simulator.embodiment = dataclasses.replace(body, cameras=(camera,))
        depth = simulator.observe().depth["front"]
        expected = depth_of_boxes(camera, pose, list(FURNISHED_BOXES))
        clear = steady(expected)
        assert np.abs(depth - expected)[clear].max() < bench.promise.depth_m
    simulator.embodiment = body
    np.testing.assert_array_equal(simulator.observe().rgb["front"], first.rgb["front"])
