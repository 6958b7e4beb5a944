"""Half-turn stairs between two floors: up along one flight, a landing, back along the other.

  corridor of floor 0       corridor of floor 1
v +--- door ---+-----------+--- door ---+--> u      seen from above; numbers are steps
| |    foot    | w |       |    top     |
| |     1      | a |       |     15     |
| |     2      | l |       |     14     |
v |    ...     | l |       |     ...    |
  +------------+---+-------+------------+
  |               landing 8             |
  +-------------------------------------+
"""

from __future__ import annotations

from vla_nav.simulators.houses.plan import CEILING_M, STOREY_M, WALL_M, Rect, Step

FLIGHT_M = 1.1  # width of one flight of stairs
_NUM_RISERS = 8  # of each of the two flights: 16 x 0.175 m = STOREY_M
_TREAD_M = 0.28
_FOOT_M = 0.3  # level ground between the corridor's wall and the first riser
_LANDING_M = 1.1
_GAP_M = 0.1  # the wall between the flights
STAIRS_WIDTH_M = 2 * FLIGHT_M + _GAP_M
STAIRS_DEPTH_M = _FOOT_M + (_NUM_RISERS - 1) * _TREAD_M + _LANDING_M


def draw_stairs(v0: float) -> list[Step]:
    """Solids of the stairs in plan coordinates: the corridor side at v = `v0`, u from 0."""
    first, rise = v0 + _FOOT_M, STOREY_M / (2 * _NUM_RISERS)
    landing = first + (_NUM_RISERS - 1) * _TREAD_M
    second_u = FLIGHT_M + _GAP_M
    steps = [
        Step(Rect(FLIGHT_M, v0, second_u, landing), 0.0, STOREY_M + CEILING_M, is_wall=True),
        Step(
            Rect(0, landing, STAIRS_WIDTH_M, landing + _LANDING_M),
            0.0,
            _NUM_RISERS * rise,
            is_wall=False,
        ),
        Step(
            Rect(second_u, v0 - WALL_M / 2, STAIRS_WIDTH_M, first), STOREY_M - 0.1, STOREY_M, False
        ),
    ]
    for i in range(_NUM_RISERS - 1):
        low, high = first + i * _TREAD_M, first + (i + 1) * _TREAD_M
        up = Rect(0, low, FLIGHT_M, high)
        steps.append(Step(up, 0.0, (i + 1) * rise, is_wall=False))
        back = Rect(second_u, low, STAIRS_WIDTH_M, high)
        steps.append(Step(back, 0.0, STOREY_M - (i + 1) * rise, is_wall=False))
    return steps


def door_u(floor: int) -> float:
    """Where the stairwell opens to the corridor of a floor: the middle of that floor's flight."""
    return FLIGHT_M / 2 if floor == 0 else 1.5 * FLIGHT_M + _GAP_M
