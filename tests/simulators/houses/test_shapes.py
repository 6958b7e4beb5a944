"""Shapes: outward faces, true areas, refinement that keeps the surface."""

import math

import numpy as np
import pytest

from vla_nav.simulators.houses.shapes import (
    Part,
    box_of_faces,
    moved,
    quads_of_parts,
    quarter_turned,
    refine,
)

ALL_SHAPES = ("box", "cylinder", "cone", "sphere")


def triangles(corners):
    return np.concatenate([corners[:, [0, 1, 2]], corners[:, [0, 2, 3]]])


def areas_and_normals(corners):
    a, b, c = np.moveaxis(triangles(corners), 1, 0)
    normal = np.cross(b - a, c - a) / 2
    return np.linalg.norm(normal, axis=1), normal


@pytest.mark.parametrize("shape", ALL_SHAPES)
def test_faces_of_a_closed_shape_look_outward(shape):
    centre = np.array([3.0, -1.0, 2.0])
    corners, _, _ = quads_of_parts([Part(shape, tuple(centre), (0.7, 1.3, 2.1), (1, 2, 3))])
    area, normal = areas_and_normals(corners)
    outward = triangles(corners).mean(1) - centre
    solid = area > 1e-9
    assert ((normal[solid] * outward[solid]).sum(1) > 0).all()


@pytest.mark.parametrize("shape", ALL_SHAPES)
def test_shapes_are_closed_and_fill_their_box(shape):
    size = (0.7, 1.3, 2.1)
    corners, _, _ = quads_of_parts([Part(shape, (0, 0, 0), size, (1, 2, 3))])
    _, normal = areas_and_normals(corners)
    np.testing.assert_allclose(normal.sum(0), 0, atol=1e-12)  # divergence theorem
    low, high = corners.reshape(-1, 3).min(0), corners.reshape(-1, 3).max(0)
    assert (low >= -np.array(size) / 2 - 1e-12).all()
    assert (high <= np.array(size) / 2 + 1e-12).all()
    volume = np.einsum("ij,ij->", triangles(corners).mean(1), normal) / 3
    box_volume = math.prod(size)
    assert 0.2 * box_volume < volume <= box_volume * (1 + 1e-12)


def test_box_area_equals_the_formula():
    corners, _, counts = quads_of_parts([Part("box", (1, 1, 1), (1, 2, 3), (0, 0, 0))])
    assert areas_and_normals(corners)[0].sum() == pytest.approx(2 * (2 + 3 + 6))
    assert counts.tolist() == [6]


@pytest.mark.parametrize("detail", [1, 2, 3, 5])
def test_refinement_keeps_the_area_and_multiplies_the_quads(detail):
    parts = [Part(shape, (0, 0, 0), (1, 2, 3), (9, 9, 9)) for shape in ALL_SHAPES]
    corners, colours, _ = quads_of_parts(parts)
    fine, fine_colours = refine(corners, colours, detail)
    assert len(fine) == len(fine_colours) == detail**2 * len(corners)
    assert areas_and_normals(fine)[0].sum() == pytest.approx(areas_and_normals(corners)[0].sum())


def test_parts_keep_their_order_and_colours():
    parts = [
        Part("sphere", (0, 0, 0), (1, 1, 1), (1, 0, 0)),
        Part("box", (0, 0, 0), (1, 1, 1), (2, 0, 0)),
        Part("sphere", (0, 0, 0), (1, 1, 1), (3, 0, 0)),
    ]
    _, colours, counts = quads_of_parts(parts)
    assert np.repeat([1, 2, 3], counts).tolist() == colours[:, 0].tolist()


@pytest.mark.parametrize("num_quarters", [0, 1, 2, 3, 4, 7])
def test_quarter_turns_are_rotations_about_up(num_quarters):
    faces = tuple((i, 0, 0) for i in range(6))
    part = box_of_faces((0.2, 0.0, 0.5), (0.6, 1.0, 1.5), faces)
    angle = num_quarters * math.pi / 2
    rotation = np.array(
        [[math.cos(angle), 0, math.sin(angle)], [0, 1, 0], [-math.sin(angle), 0, math.cos(angle)]]
    )
    corners, colours, _ = quads_of_parts([part])
    turned, turned_colours, _ = quads_of_parts([quarter_turned(part, num_quarters)])

    def by_face(points, tints):  # (face middle, colour), in any order
        rows = np.concatenate([points.mean(1), tints[:, :1]], axis=1).round(6) + 0.0
        return sorted(rows.tolist())

    assert by_face(corners @ rotation.T, colours) == by_face(turned, turned_colours)


def test_moving_adds_the_offset():
    part = moved(Part("box", (1, 2, 3), (1, 1, 1), (0, 0, 0)), (0.5, -1, 2))
    assert part.centre == (1.5, 1, 5)
