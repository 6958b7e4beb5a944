"""Whole houses and their files."""

import json

import numpy as np
import pytest
import trimesh

from vla_nav.errors import UserError
from vla_nav.simulators.houses import (
    HouseOptions,
    export_house,
    generate_house,
    house_meshes,
    house_metadata,
)
from vla_nav.simulators.houses.palette import ROOM_SCHEMES


def num_triangles(house):
    return sum(len(faces) for _, faces, _ in house_meshes(house).values())


def test_one_seed_gives_the_same_bytes_and_another_other_ones(tmp_path):
    files = [
        export_house(generate_house(seed, name="house"), tmp_path / str(i))
        for i, seed in enumerate((7, 7, 8))
    ]
    for suffix in (".glb", ".json"):
        first, second, other = (file.with_suffix(suffix).read_bytes() for file in files)
        assert first == second
        assert first != other


def test_the_glb_holds_every_node_under_its_name_and_colours(tmp_path):
    house = generate_house(3)
    file = export_house(house, tmp_path)
    scene = trimesh.load_scene(file)
    meshes = house_meshes(house)
    assert set(scene.graph.nodes_geometry) == set(meshes) == {node.name for node in house.nodes}
    for name, (vertices, faces, rgba) in meshes.items():
        loaded = scene.geometry[scene.graph[name][1]]
        assert len(loaded.faces) == len(faces)
        np.testing.assert_allclose(loaded.bounds, [vertices.min(0), vertices.max(0)], atol=1e-4)
        assert set(map(tuple, loaded.visual.vertex_colors)) == set(map(tuple, rgba))


def test_metadata_describes_the_house(tmp_path):
    house = generate_house(4, HouseOptions(num_floors=2))
    file = export_house(house, tmp_path)
    metadata = json.loads(file.with_suffix(".json").read_text())
    assert metadata == json.loads(json.dumps(house_metadata(house)))
    assert [floor["y"] for floor in metadata["floors"]] == [0.0, 2.8]
    rooms = {room["name"] for room in metadata["rooms"]}
    for item in metadata["objects"]:
        assert item["room"] in rooms
        assert item["name"] in metadata["semantic"]
    for door in metadata["doors"]:
        assert set(door["rooms"]) <= rooms
    ids = list(metadata["semantic"].values())
    assert 0 not in ids
    assert len(ids) == len(set(ids))


def test_detail_reaches_twenty_thousand_triangles_without_changing_the_surface():
    plain, fine = generate_house(0), generate_house(0, HouseOptions(detail=3))
    assert num_triangles(plain) < 8_000
    assert num_triangles(fine) == 9 * num_triangles(plain) > 20_000
    for name, (vertices, _, _) in house_meshes(plain).items():
        refined = house_meshes(fine)[name][0]
        np.testing.assert_allclose(
            [vertices.min(0), vertices.max(0)], [refined.min(0), refined.max(0)], atol=1e-9
        )


def test_room_kinds_differ_in_their_colours():
    floors = np.array([scheme.floor for scheme in ROOM_SCHEMES.values()], dtype=float)
    walls = np.array([scheme.wall for scheme in ROOM_SCHEMES.values()], dtype=float)
    both = np.concatenate([floors, walls], axis=1)
    apart = np.linalg.norm(both[:, None] - both[None], axis=2)
    assert apart[~np.eye(len(both), dtype=bool)].min() > 45  # variation moves each by up to 16


@pytest.mark.parametrize("has_ceiling", [True, False])
def test_ceilings_are_an_option(has_ceiling):
    house = generate_house(1, HouseOptions(has_ceiling=has_ceiling))
    assert any(node.name.endswith("_ceiling") for node in house.nodes) == has_ceiling


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"num_floors": 3}, "num_floors"),
        ({"num_rooms": (4, 8)}, "num_rooms"),
        ({"num_rooms": (7, 6)}, "num_rooms"),
        ({"num_objects": (1, 2)}, "num_objects"),
        ({"detail": 0}, "detail"),
    ],
)
def test_options_that_cannot_be_built_are_refused(options, key):
    with pytest.raises(UserError, match=f"houses.{key}="):
        HouseOptions(**options)
