"""A batched run says how many outcomes batching changed; one slot per forward changes none."""

import zlib
from itertools import product

import pytest
from scipy.stats import binom
from worlds import PRIMITIVE, PixelPolicy, body_of, evaluate_config, report_of

from vla_nav.evaluation import runs
from vla_nav.evaluation.conditions import conditions_named
from vla_nav.evaluation.replays import batching, exact_bounds, replayed_units, sentence
from vla_nav.evaluation.results import REPLAYS, read_results
from vla_nav.evaluation.runs import evaluate_from
from vla_nav.evaluation.subject import Subject


class RoundingPolicy(PixelPolicy):
    """Takes another action now and then when it decides for several slots at once."""

    def act(self, observations):
        actions = super().act(observations)
        for slot in actions:
            text = f"{self._texts[slot]} {self._asked[slot]}".encode()
            if len(observations) > 1 and zlib.crc32(text) % 40 == 0:
                actions[slot] = self.space.decode((1,)).action
        return actions


@pytest.fixture
def play(world, tmp_path, monkeypatch):
    """Evaluate a policy class in `tmp_path/<name>`; the report."""

    def run(policy, name, *overrides):
        options = ["evaluation.rows=[policy,expert]", "evaluation.decision=primitive", *overrides]
        config = evaluate_config(world, tmp_path / name, *options)
        subject = Subject(policy, body_of(config), PRIMITIVE, "weights", ())
        monkeypatch.setattr(runs, "load_subject", lambda config, rows: subject)
        assert evaluate_from(config) == 0
        return report_of(tmp_path / name)

    return run


def test_the_share_that_batching_changes_is_that_of_two_whole_runs(play, tmp_path):
    """The oracle: the same policy evaluated batched and evaluated one by one."""
    said = play(RoundingPolicy(), "batched", "evaluation.num_replays=null")["batching"]
    single = play(RoundingPolicy(), "single", "evaluation.deterministic=true")["batching"]
    assert single == {"is_deterministic": True}
    one, other = (read_results(tmp_path / name) for name in ("batched", "single"))
    differing = [k for k in one if one[k]["primitives"] != other[k]["primitives"]]
    assert 0 < len(differing) < 15
    assert said["num_replayed"] == said["num_expected"] == 15
    assert said["num_differing"] == len(differing)
    assert said["share"] == len(differing) / 15
    assert said["differing"] == sorted(key[-1] for key in differing)
    # The replays are the other run's outcomes, and no part of the results.
    replays = read_results(tmp_path / "batched", REPLAYS)
    assert replays == {key: other[key] for key in replays}


def test_a_policy_that_does_not_round_has_a_share_of_none(play, capsys, tmp_path):
    said = play(PixelPolicy(), "same", "evaluation.num_replays=6")["batching"]
    assert (said["num_replayed"], said["num_differing"], said["share"]) == (6, 0, 0.0)
    assert said["share_high"] == pytest.approx(1 - 0.025 ** (1 / 6))  # nothing seen in 6 trials
    page, shown = (tmp_path / "same/report.html").read_text(), capsys.readouterr().out
    for text in (page, shown):
        assert "0 of 6 episodes replayed one slot per forward differ" in text
        assert "decisions/s, policy " in text
        assert "frames/s" in text


def test_shards_replay_the_same_episodes_as_one_run(play, tmp_path):
    whole = play(RoundingPolicy(), "whole", "evaluation.num_replays=7")["batching"]
    for shard in (1, 0, 2):
        options = ["evaluation.num_shards=3", f"evaluation.shard={shard}"]
        if shard != 2:
            with pytest.raises(FileNotFoundError):  # the last one writes the report
                play(RoundingPolicy(), "parts", "evaluation.num_replays=7", *options)
    parts = play(RoundingPolicy(), "parts", "evaluation.num_replays=7", *options)["batching"]
    assert parts["num_replayed"] == whole["num_replayed"] == 7
    keys = [read_results(tmp_path / name, REPLAYS).keys() for name in ("whole", "parts")]
    assert keys[0] == keys[1]


def test_a_second_start_replays_nothing_again(play, tmp_path):
    policy = PixelPolicy()
    play(policy, "twice", "evaluation.num_replays=3")
    num_asked = len(policy.batch_sizes)
    play(policy, "twice", "evaluation.num_replays=3")
    assert len(policy.batch_sizes) == num_asked
    play(policy, "twice", "evaluation.num_replays=5")
    assert set(policy.batch_sizes[num_asked:]) == {1}


def test_none_replayed_is_said(play):
    said = play(PixelPolicy(), "none", "evaluation.num_replays=0")["batching"]
    assert said["share"] is None
    assert "none was replayed" in sentence(said)


def test_runs_without_a_network_say_nothing_of_batches(world, tmp_path):
    assert evaluate_from(evaluate_config(world, tmp_path)) == 0
    assert report_of(tmp_path)["batching"] is None
    assert not list(tmp_path.glob("replays-*"))
    assert replayed_units(conditions_named(["random", "expert"]), (), 3) == ()


def test_bounds_hold_the_shares_that_are_not_refuted():
    for total in (1, 7, 30):
        for count, tenth in product(range(total + 1), range(1, 10)):
            share = tenth / 10
            low, high = exact_bounds(count, total)
            is_refuted = min(binom.cdf(count, total, share), binom.sf(count - 1, total, share))
            assert (low <= share <= high) == (is_refuted >= 0.025)


def test_only_what_was_played_twice_counts():
    def record(primitives, sr):
        return {"primitives": primitives, "sr": sr}

    keys = [("policy", "d", "s", "", str(number)) for number in range(4)]
    records = dict(zip(keys, [record("12", 0.0)] * 4, strict=True))
    replays = {keys[0]: record("12", 0.0), keys[1]: record("10", 0.0), keys[2]: record("1", 1.0)}
    replays[("policy", "d", "s", "", "of another selection")] = record("3", 1.0)
    said = batching(records, replays, is_deterministic=False, num_expected=4)
    assert (said["num_replayed"], said["num_differing"], said["num_other_success"]) == (3, 2, 1)
    assert said["row"] == "policy"
