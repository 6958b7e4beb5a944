"""Which episodes are played, by whom; and what is said when none are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import made_episode

from vla_nav.errors import UserError
from vla_nav.evaluation.selection import select, shard_of

EPISODES = [made_episode(str(i), scene=f"val/h{i % 7}/h{i % 7}.glb") for i in range(40)]


def ids(episodes):
    return [episode.episode_id for episode in episodes]


def test_any_count_spreads_over_as_many_scenes_as_it_can():
    for count in (1, 5, 7, 20, 40):
        chosen = select(EPISODES, source="f", seed=0, num_episodes=count)
        per_scene = [
            sum(e.scene_id == scene for e in chosen) for scene in {e.scene_id for e in EPISODES}
        ]
        assert len(chosen) == count
        assert max(per_scene) - min(per_scene) <= 1
    assert len(select(EPISODES, source="f", seed=0)) == 40


def test_a_larger_count_only_adds_and_the_order_of_the_file_does_not_matter():
    few = select(EPISODES, source="f", seed=0, num_episodes=12)
    many = select(EPISODES[::-1], source="f", seed=0, num_episodes=23)
    assert ids(many)[:12] == ids(few)
    assert ids(select(EPISODES, source="f", seed=1, num_episodes=12)) != ids(few)


def test_scenes_by_id_or_by_name():
    by_name = select(EPISODES, source="f", seed=0, scenes=["h3"])
    by_id = select(EPISODES, source="f", seed=0, scenes=["val/h3/h3.glb"])
    assert ids(by_name) == ids(by_id)
    assert {e.scene_id for e in by_name} == {"val/h3/h3.glb"}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"scenes": ["h9"]}, "evaluation.scenes"),
        ({"scenes": ["h1"], "episode_ids": ["3"]}, "evaluation.episode_ids"),
        ({"num_episodes": 0}, "evaluation.num_episodes=0"),
        ({"num_episodes": 41}, "evaluation.num_episodes=41"),
    ],
)
def test_a_filter_that_leaves_nothing_is_named(options, named):
    with pytest.raises(UserError, match=named):
        select(EPISODES, source="val.json.gz", seed=0, **options)


def test_an_empty_file_and_a_repeated_id_are_named():
    with pytest.raises(UserError, match=r"val\.json\.gz: holds no episodes"):
        select([], source="val.json.gz", seed=0)
    with pytest.raises(UserError, match="'1' stands there twice"):
        select([EPISODES[1], EPISODES[1]], source="f", seed=0)


@given(num_shards=st.integers(1, 50), count=st.integers(1, 40))
def test_shards_are_disjoint_and_cover_everything(num_shards, count):
    chosen = select(EPISODES, source="f", seed=0, num_episodes=count)
    shards = [shard_of(chosen, shard=i, num_shards=num_shards) for i in range(num_shards)]
    assert sorted(e for shard in shards for e in ids(shard)) == sorted(ids(chosen))
    sizes = [len(shard) for shard in shards]
    assert max(sizes) - min(sizes) <= 1


def test_a_shard_that_does_not_exist_is_refused():
    for shard, num_shards in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(UserError, match=r"evaluation\.shard"):
            shard_of(EPISODES, shard=shard, num_shards=num_shards)
