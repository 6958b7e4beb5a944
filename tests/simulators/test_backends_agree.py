"""Two backends, one GLB: the same walks, lengths, depths and edges in generated and built scenes.

house.glb --+--> mesh (this process)      x, z exactly where nothing is touched; y within the
            +--> habitat (its worker)     navigation mesh's quantisation; geodesics within 5 %;
                                          depth within 2 cm; edge maps correlate at least 0.9
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import trimesh
from backends import Bench, make_bench
from mesh_scenes import SceneBuilder, crowded_hall

from vla_nav.commands.cli import main
from vla_nav.episodes.types import (
    MOVE_FORWARD,
    TURN_LEFT,
    TURN_RIGHT,
    Camera,
    Pose,
    wrap_angle,
)
from vla_nav.simulators.remote import RemoteSimulator

pytestmark = pytest.mark.habitat

CAMERA = Camera("front", 160, 120, 79.0, 1.25, has_depth=True)
PITCHED = Camera("down", 128, 128, 90.0, 1.4, pitch_deg=-15.0, has_depth=True)
FREE_M = 0.13  # half a step
HEIGHT_STEP_M = 0.2  # habitat's navigation mesh; agents stand up to one step above the floor


@pytest.fixture(scope="module")
def benches(tmp_path_factory) -> Iterator[tuple[Bench, Bench]]:
    """The mesh backend and habitat."""
    pair = [make_bench(name, tmp_path_factory.mktemp(name)) for name in ("mesh", "habitat")]
    yield pair[0], pair[1]
    for bench in pair:
        bench.close()


@pytest.fixture(scope="module")
def scenes(tmp_path_factory) -> dict[str, Path]:
    """Two procedural houses as `vla-nav houses` writes them, and a hall full of obstacles."""
    path = tmp_path_factory.mktemp("houses")
    code = main(
        [
            "houses",
            f"data.path={path}",
            "houses.num_train=0",
            "houses.num_val_unseen=2",
            "houses.episodes_per_house=2",
            "num_workers=0",
            f"paths.output_dir={path}/runs",
        ]
    )
    assert code == 0
    houses = sorted((path / "scenes").rglob("*.glb"))
    assert len(houses) == 2
    hall = coloured(crowded_hall(2)).write(path / "hall.glb")
    return {"house_0": houses[0], "house_1": houses[1], "hall": hall}


def coloured(scene: SceneBuilder) -> SceneBuilder:
    """Every part in a colour of its own, so that its edges show in the image."""
    rng = np.random.default_rng(0)
    for mesh in scene.scene.geometry.values():
        material = trimesh.visual.material.PBRMaterial(
            baseColorFactor=[*rng.integers(40, 255, 3).tolist(), 255]
        )
        mesh.visual = trimesh.visual.TextureVisuals(material=material)
    return scene


def both(
    benches, scene: Path, *, mesh_options=None, habitat_options=None, **body
) -> tuple[RemoteSimulator, RemoteSimulator]:
    """The scene in the mesh backend and in habitat."""
    mesh, habitat = benches
    return (
        mesh.open(scene, options=mesh_options, **body),
        habitat.open(scene, options=habitat_options, **body),
    )


def ground_points(mesh: RemoteSimulator, habitat: RemoteSimulator, count: int, seed: int):
    """Points of the mesh backend's walkable area on the lowest floor, in both areas."""
    rng = np.random.default_rng(seed)
    points = []
    while len(points) < count:
        point = mesh.random_point(rng)
        there = habitat.snap(point)
        if there is None or abs(point[1]) > 0.05 or there[1] > 0.5:
            continue
        if math.hypot(there[0] - point[0], there[2] - point[2]) < 0.01:
            points.append(point)
    return points


@pytest.mark.parametrize("name", ["house_0", "house_1", "hall"])
@pytest.mark.parametrize("turn_deg", [30, 15])
def test_free_walks_take_both_to_the_same_place(benches, scenes, name, turn_deg):
    mesh, habitat = both(benches, scenes[name], turn_deg=turn_deg)
    rng = np.random.default_rng(12)
    num_steps = 0
    for point in ground_points(mesh, habitat, 30, seed=1):
        start = Pose.from_yaw(point, rng.uniform(-math.pi, math.pi))
        here = mesh.reset(start)
        # Both start on the very same x and z; the height is each backend's own.
        there = habitat.reset(start)
        there = Pose((point[0], there.position[1], point[2]), there.rotation)
        habitat.place(there)
        for action in rng.choice([MOVE_FORWARD, TURN_LEFT, TURN_RIGHT], 40, p=[0.6, 0.2, 0.2]):
            here, there = (one.act(int(action)).pose for one in (mesh, habitat))
            if not (is_free(mesh, here) and is_free(habitat, there)):
                break  # obstacles are rounded differently: from a touch on the walks differ
            num_steps += action == MOVE_FORWARD
            assert in_plan(here, there) < 1e-4  # float32
            assert -0.02 <= there.position[1] - here.position[1] <= HEIGHT_STEP_M + 0.02
            assert abs(wrap_angle(here.yaw_rad - there.yaw_rad)) < 1e-4
    assert num_steps > 60


def is_free(simulator: RemoteSimulator, pose: Pose) -> bool:
    """Whether an agent there has half a step of room in every direction."""
    for angle in np.linspace(0, 2 * math.pi, 12, endpoint=False):
        x, y, z = pose.position
        around = x + FREE_M * math.cos(angle), y, z + FREE_M * math.sin(angle)
        found = simulator.snap(around)
        if found is None or math.hypot(found[0] - around[0], found[2] - around[2]) > 1e-3:
            return False
    return True


def in_plan(a: Pose, b: Pose) -> float:
    """Distance in x and z."""
    return math.hypot(a.position[0] - b.position[0], a.position[2] - b.position[2])


# habitat's cells of 0.05 m close passages up to 0.2 m wider than the agent; the hall has some, and
# is compared on cells of 0.03 m.
@pytest.mark.parametrize(
    ("name", "options"), [("house_0", {}), ("house_1", {}), ("hall", {"cell_m": 0.03})]
)
def test_geodesic_distances_agree(benches, scenes, name, options):
    mesh, habitat = both(benches, scenes[name], habitat_options=options)
    points = ground_points(mesh, habitat, 60, seed=2)
    errors = []
    for start, goal in zip(points[::2], points[1::2], strict=True):
        here = mesh.geodesic_distance(start, [goal])
        there = habitat.geodesic_distance(start, [goal])
        assert math.isfinite(here) == math.isfinite(there), f"{start} to {goal}: {here}, {there}"
        if math.isfinite(here) and here > 1.0:
            errors.append(there / here - 1)
    print(f"{name}: mean {np.mean(errors):+.4f}, worst {max(errors, key=abs):+.4f}")
    assert len(errors) >= 20
    assert np.abs(errors).max() < 0.05


def views(benches, scene: Path, shading: str):
    """Pairs of observations from the very same poses, of the mesh backend and habitat."""
    options = {"shading": shading}
    mesh, habitat = both(benches, scene, mesh_options=options, cameras=(CAMERA, PITCHED))
    rng = np.random.default_rng(4)
    for point in ground_points(mesh, habitat, 8, seed=3):
        pose = Pose.from_yaw(point, rng.uniform(-math.pi, math.pi))
        for simulator in (mesh, habitat):
            simulator.reset(pose)
            simulator.place(pose)
        here, there = mesh.observe(), habitat.observe()
        for camera in (CAMERA.name, PITCHED.name):
            yield here.rgb[camera], there.rgb[camera], here.depth[camera], there.depth[camera]


@pytest.mark.parametrize("name", ["house_0", "house_1", "hall"])
def test_depth_and_colours_are_the_same_from_the_same_pose(benches, scenes, name):
    correlations, same_depth, same_rgb = [], [], []
    for rgb, other_rgb, depth, other_depth in views(benches, scenes[name], "flat"):
        apart = np.abs(depth - other_depth)
        on_edge = near_edge(depth) | near_edge(other_depth)
        assert apart[~on_edge].max(initial=0) < 0.02
        same_depth.append(np.mean(apart < 0.02))
        same_rgb.append(np.mean(np.abs(rgb.astype(int) - other_rgb).max(axis=-1) <= 2))
        correlations.append(edge_correlation(rgb, other_rgb))
    assert np.mean(same_depth) > 0.995  # the rest: pixels whose centre lies on an edge
    assert np.mean(same_rgb) > 0.99
    assert min(correlations) >= 0.9, np.round(correlations, 3)


@pytest.mark.parametrize("name", ["house_0", "house_1", "hall"])
def test_edges_agree_under_the_default_shading_too(benches, scenes, name):
    correlations = [
        edge_correlation(rgb, other) for rgb, other, *_ in views(benches, scenes[name], "lambert")
    ]
    print(f"{name}: mean {np.mean(correlations):.3f}, least {min(correlations):.3f}")
    assert np.mean(correlations) >= 0.85  # measured 0.91, 0.89 and 0.98


def edge_correlation(rgb: np.ndarray, other: np.ndarray) -> float:
    """Correlation of two images' edge maps; 1 where both look at a blank wall."""
    maps = edges(rgb).ravel(), edges(other).ravel()
    if max(np.ptp(one) for one in maps) == 0:
        return 1.0
    return float(np.corrcoef(*maps)[0, 1])


def near_edge(depth: np.ndarray) -> np.ndarray:
    """(H, W) bool: a neighbour of the pixel is 5 % nearer or farther, or hits nothing."""
    padded = np.pad(depth, 1, mode="edge")
    height, width = depth.shape
    result = depth == 0
    for row in range(3):
        for column in range(3):
            other = padded[row : row + height, column : column + width]
            result |= np.abs(other - depth) > 0.05 * np.maximum(depth, 0.2)
    return result


def edges(rgb: np.ndarray) -> np.ndarray:
    """(H - 2, W - 2) Sobel magnitude over the channels, of the image smoothed by 3 x 3."""
    image = rgb.astype(np.float64)
    image = sum(
        np.roll(np.roll(image, row, 0), column, 1) for row in (-1, 0, 1) for column in (-1, 0, 1)
    )
    left, right = image[:, :-2], image[:, 2:]
    across = right - left
    across = across[:-2] + 2 * across[1:-1] + across[2:]
    up, down = image[:-2], image[2:]
    along = down - up
    along = along[:, :-2] + 2 * along[:, 1:-1] + along[:, 2:]
    return np.sqrt((across**2 + along**2).sum(axis=-1))[1:-1, 1:-1]
