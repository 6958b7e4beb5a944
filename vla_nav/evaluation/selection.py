"""Which episodes a run plays, and which shard plays which: the same on every machine.

    all episodes --scenes--> --languages--> --episode_ids-->
        one per scene, then a second per scene, ... [:n]

Taking the first n of a round over the scenes spreads any n over as many scenes as possible, and a
larger n only adds episodes. Shards are cut so that a scene stays in one shard where it can.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from vla_nav.episodes.types import Episode
from vla_nav.errors import UserError
from vla_nav.evaluation.languages import count_languages, is_wanted, language_of
from vla_nav.seeding import stable_seed


def select(
    episodes: Sequence[Episode],
    *,
    source: str,
    seed: int,
    num_episodes: int | None = None,
    scenes: Sequence[str] = (),
    episode_ids: Sequence[str] = (),
    languages: Sequence[str] = (),
) -> tuple[Episode, ...]:
    """The episodes to play. Raises `UserError` naming the filter that leaves none.

    source: the file they come from, for the message. num_episodes: None for all of them.
    scenes: scene ids, or the last part of one (`house_0003` for `val/house_0003/house_0003.glb`).
    languages: of the instructions, `en-IN`, or `en` for every dialect.
    """
    if not episodes:
        raise UserError(f"{source}: holds no episodes; nothing to evaluate")
    _refuse_twice(episodes, source)
    _refuse_without_goals(episodes, source)
    kept = list(episodes)
    if scenes:
        kept = [episode for episode in kept if _scene_names(episode) & set(scenes)]
        if not kept:
            known = sorted({episode.scene_id for episode in episodes})
            raise UserError(
                f"evaluation.scenes={list(scenes)} keeps none of the {len(episodes)} episodes of "
                f"{source}; scenes there: {', '.join(known[:8])}{', ...' if len(known) > 8 else ''}"
            )
    if languages:
        found = count_languages(kept)
        before = len(kept)
        kept = [episode for episode in kept if is_wanted(language_of(episode), languages)]
        if not kept:
            raise UserError(
                f"evaluation.languages={list(languages)} keeps none of the {before} episodes of "
                f"{source}; languages there: {', '.join(found) or 'none is stated'}"
            )
    if episode_ids:
        before, wanted = len(kept), {str(name) for name in episode_ids}
        kept = [episode for episode in kept if episode.episode_id in wanted]
        if not kept:
            raise UserError(
                f"evaluation.episode_ids={list(episode_ids)} keeps none of the {before} episodes "
                f"of {source}; ids there look like '{episodes[0].episode_id}'"
            )
    if num_episodes is not None:
        if num_episodes < 1:
            raise UserError(f"evaluation.num_episodes={num_episodes} keeps none; give 1 or more")
        if num_episodes > len(kept):
            raise UserError(
                f"evaluation.num_episodes={num_episodes}: {source} has {len(kept)} that match; "
                "ask for fewer, or leave it null for all"
            )
    return tuple(_round_over_scenes(kept, seed)[:num_episodes])


def shard_of(episodes: Sequence[Episode], *, shard: int, num_shards: int) -> tuple[Episode, ...]:
    """The part of a selection that shard `shard` of `num_shards` plays: disjoint, all covered."""
    if num_shards < 1 or not 0 <= shard < num_shards:
        raise UserError(
            f"evaluation.shard={shard}, evaluation.num_shards={num_shards}: "
            "allowed: 0 <= shard < num_shards"
        )
    by_scene = sorted(episodes, key=lambda episode: (episode.scene_id, episode.key))
    first = shard * len(by_scene) // num_shards
    last = (shard + 1) * len(by_scene) // num_shards
    return tuple(by_scene[first:last])


def _round_over_scenes(episodes: list[Episode], seed: int) -> list[Episode]:
    def rank(episode: Episode) -> int:
        return stable_seed(seed, "select", *episode.key)

    by_scene: dict[str, list[Episode]] = defaultdict(list)
    for episode in sorted(episodes, key=rank):
        by_scene[episode.scene_id].append(episode)
    turns = [
        (turn, stable_seed(seed, "scene", scene), episode)
        for scene, group in by_scene.items()
        for turn, episode in enumerate(group)
    ]
    turns.sort(key=lambda entry: (entry[0], entry[1], entry[2].key))
    return [episode for _, _, episode in turns]


def _scene_names(episode: Episode) -> set[str]:
    stem = episode.scene_id.rsplit("/", 1)[-1].rsplit(".", 1)[0]
    return {episode.scene_id, stem}


def _refuse_twice(episodes: Sequence[Episode], source: str) -> None:
    seen: set[tuple[str, str, str, str]] = set()
    for episode in episodes:
        if episode.key in seen:
            raise UserError(f"{source}: episode_id '{episode.episode_id}' stands there twice")
        seen.add(episode.key)


def _refuse_without_goals(episodes: Sequence[Episode], source: str) -> None:
    without = [episode for episode in episodes if not episode.goals]
    if without:
        raise UserError(
            f"{source}: {len(without)} of {len(episodes)} episodes have no goal (such as "
            f"'{without[0].episode_id}'), as in a test split whose goals are kept back, so there "
            "is nothing to score; evaluate a validation split"
        )
