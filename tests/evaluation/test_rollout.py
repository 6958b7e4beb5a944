"""The episode as a state machine: every request, in order, for hand-made answers."""

import pytest

from vla_nav.episodes.types import MOVE_FORWARD, STOP, TURN_LEFT, Pose
from vla_nav.evaluation.rollout import Decide, Simulate, rollout, until_stop
from vla_nav.simulators.agent import Outcome

START = Pose.from_yaw((1.0, 0.0, 2.0), 0.5)


def drive(decisions, *, max_primitives=500, collides=False):
    """Answer every request; the requests seen and the trajectory."""
    decisions = iter(decisions)
    play = rollout(START, max_primitives=max_primitives)
    requests, pose = [next(play)], START
    while True:
        if isinstance(requests[-1], Simulate):
            poses = []
            for _ in requests[-1].primitives:
                x, y, z = pose.position
                pose = Pose((x + 1.0, y, z), pose.rotation)
                poses.append(pose)
            answer = Outcome(tuple(poses), (collides,) * len(poses), None, None, None)
        else:
            answer = next(decisions)
        try:
            requests.append(play.send(answer))
        except StopIteration as end:
            return requests, end.value


def test_a_decision_is_executed_whole_before_the_next_look():
    requests, done = drive([(TURN_LEFT, MOVE_FORWARD), (MOVE_FORWARD,), (STOP,)])
    assert [type(request) for request in requests] == [
        Simulate, Decide, Simulate, Decide, Simulate, Decide,
    ]  # fmt: skip
    assert requests[0] == Simulate((), False)
    assert requests[2] == Simulate((TURN_LEFT, MOVE_FORWARD), False)
    assert done.primitives == (TURN_LEFT, MOVE_FORWARD, MOVE_FORWARD, STOP)
    assert done.decisions == ((TURN_LEFT, MOVE_FORWARD), (MOVE_FORWARD,), (STOP,))
    assert done.has_stopped
    assert done.positions[:, 0].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_stop_ends_a_decision_and_what_follows_it_is_dropped():
    requests, done = drive([(MOVE_FORWARD, STOP, MOVE_FORWARD)])
    assert requests[-1] == Simulate((MOVE_FORWARD,), True)  # nobody looks after it
    assert done.primitives == (MOVE_FORWARD, STOP)
    assert len(done.poses) == 2


def test_stop_at_once_moves_nothing():
    requests, done = drive([(STOP,)])
    assert len(requests) == 2
    assert (done.poses, done.primitives, done.has_stopped) == ((START,), (STOP,), True)


@pytest.mark.parametrize("cap", [1, 4, 5, 7])
def test_the_cap_cuts_a_decision_in_the_middle(cap):
    requests, done = drive([(MOVE_FORWARD,) * 3] * 9, max_primitives=cap, collides=True)
    assert len(done.primitives) == cap == done.num_collisions
    assert not done.has_stopped
    assert requests[-1].is_last


def test_stop_as_the_last_allowed_primitive_counts():
    _, done = drive([(MOVE_FORWARD, MOVE_FORWARD, STOP)], max_primitives=3)
    assert done.has_stopped
    _, cut = drive([(MOVE_FORWARD, MOVE_FORWARD, STOP)], max_primitives=2)
    assert not cut.has_stopped


def test_no_primitives_end_the_episode_without_stop():
    _, done = drive([(MOVE_FORWARD,), ()])
    assert (done.primitives, done.has_stopped, len(done.poses)) == ((MOVE_FORWARD,), False, 2)
    _, nothing = drive([()])
    assert (nothing.primitives, nothing.decisions, len(nothing.poses)) == ((), (), 1)


def test_until_stop_keeps_what_has_no_stop():
    assert until_stop((1, 2)) == (1, 2)
