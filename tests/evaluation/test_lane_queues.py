"""Which lane plays what: every unit once, scenes together, no more than a worker keeps."""

import random
from types import SimpleNamespace

import pytest

from vla_nav.evaluation.lane_queues import LaneQueues, Turn


def units_of(sizes):
    """`sizes[n]` units of scene n, mixed."""
    units = [
        SimpleNamespace(number=f"{scene}-{number}", episode=SimpleNamespace(scene_id=str(scene)))
        for scene, size in enumerate(sizes)
        for number in range(size)
    ]
    random.Random(sum(sizes)).shuffle(units)
    return units


@pytest.mark.parametrize("sizes", [[1], [5, 5, 5], [1] * 30, [40, 1, 1, 1], [3, 7, 2, 9, 4, 1, 8]])
@pytest.mark.parametrize(("num_lanes", "max_scenes"), [(1, 1), (1, 6), (3, 1), (4, 2), (8, 6)])
@pytest.mark.parametrize("num_slots", [1, 5])
def test_every_unit_is_played_once_within_the_scenes_a_worker_keeps(
    sizes, num_lanes, max_scenes, num_slots
):
    """Lanes of `num_slots` agents that end in random order, until nothing is left."""
    rng = random.Random(num_lanes)
    queues = LaneQueues(units_of(sizes), num_lanes=num_lanes, max_scenes=max_scenes)
    playing = [[] for _ in range(num_lanes)]
    played = []
    while True:
        for lane, units in enumerate(playing):
            while len(units) < num_slots:
                turn = queues.take(lane, {unit.episode.scene_id for unit in units})
                if turn is None:
                    break
                units.append(turn.unit)
            assert len({unit.episode.scene_id for unit in units}) <= max_scenes
        busy = [units for units in playing if units]
        if not busy:
            break
        units = rng.choice(busy)
        played.append(units.pop(rng.randrange(len(units))).number)
    assert sorted(played) == sorted(unit.number for unit in units_of(sizes))


def test_a_scene_is_not_dealt_to_two_lanes_and_idle_lanes_help():
    queues = LaneQueues(units_of([4, 4]), num_lanes=2, max_scenes=6)
    first = [queues.take(0, set()).unit.episode.scene_id for _ in range(4)]
    assert len(set(first)) == 1
    other = queues.take(0, set(first)).unit.episode.scene_id  # its own are gone: it takes lane 1's
    assert other not in first


def test_what_is_put_back_comes_next_and_keeps_its_count():
    queues = LaneQueues(units_of([3]), num_lanes=1, max_scenes=1)
    turn = queues.take(0, set())
    queues.put_back(0, Turn(turn.unit, 2))
    assert queues.take(0, set()) == (turn.unit, 2)
