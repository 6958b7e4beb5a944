"""Where the time went: rates over starts that overlap, files torn by a kill, the console's line."""

import json

import pytest

from vla_nav.evaluation.throughput import (
    Timing,
    note_timing,
    read_timings,
    sentence,
    total,
    with_rates,
)


def start(began_s, wall_s, **more):
    values = {"policy_s": wall_s / 2, "simulators_s": wall_s, "lanes_s": 2 * wall_s}
    counts = {"num_episodes": 10, "num_frames": 300, "num_decisions": 200, "num_calls": 20}
    return Timing(began_s=began_s, wall_s=wall_s, **{**values, **counts, **more})


def test_rates_are_over_the_time_in_which_anything_was_played():
    """Two shards at once for 10 s, a pause, then 5 s: 15 s, not 25 and not 35."""
    whole = with_rates(total([start(100.0, 10.0), start(100.0, 10.0), start(120.0, 5.0)]))
    assert whole["elapsed_s"] == 15.0
    assert whole["wall_s"] == 25.0
    assert whole["episodes_per_s"] == pytest.approx(30 / 15)
    assert whole["frames_per_s"] == pytest.approx(900 / 15)
    assert whole["decisions_per_s"] == pytest.approx(600 / 15)
    assert whole["policy_share"] == 0.5
    assert whole["simulators_share"] == 0.5
    assert whole["decisions_per_call"] == 10.0
    assert whole["num_starts"] == 3


def test_peaks_are_not_added():
    assert total([Timing(peak_worker_mib=90.0), Timing(peak_worker_mib=70.0)]).peak_worker_mib == 90


def test_nothing_played_has_no_rates_and_no_line(tmp_path):
    assert with_rates(total([]))["frames_per_s"] is None
    assert sentence(with_rates(total([]))) == ""
    note_timing(tmp_path, Timing(), shard=0, num_shards=1)
    assert not list(tmp_path.iterdir())


def test_the_line_names_what_happened_and_nothing_else():
    line = sentence(with_rates(total([start(0.0, 10.0, num_restarts=2)])))
    assert line == (
        "10 episodes in 10.0 s, 30.0 frames/s, 20.0 decisions/s, policy 50 % of the time, "
        "simulators 50 % busy, 2 workers restarted"
    )
    expert = start(0.0, 10.0, num_frames=0, num_decisions=0)
    assert sentence(with_rates(expert)) == "10 episodes in 10.0 s, simulators 50 % busy"


def test_every_start_of_every_shard_is_read_and_a_torn_line_passed_over(tmp_path):
    for shard, began_s in ((1, 5.0), (0, 3.0), (0, 9.0)):
        note_timing(tmp_path, start(began_s, 1.0), shard=shard, num_shards=2)
    path = tmp_path / "timing-001-of-002.jsonl"
    assert {"host", "pid"} <= json.loads(path.read_text()).keys()
    whole = path.read_bytes()
    for size in range(1, len(whole) - 1):
        path.write_bytes(whole + whole[:size])
        assert [one.began_s for one in read_timings(tmp_path)] == [3.0, 5.0, 9.0]
