"""Which episode is drawn, and as what: recorded, an episode file's, or generated ones.

    data.path/recorded/<split>  or  an episode file with ground truth  or  nothing (generated)
      -> episode -> prompt -> paths under the layout -> prefix tree -> Drawing

No model is made and no frame is read: the encoder's token counts are enough.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from vla_nav.actions.types import ActionSpace
from vla_nav.episodes.types import Embodiment, Episode
from vla_nav.errors import UserError, unknown_name
from vla_nav.models.assembly import ModelConfig, build_prompt
from vla_nav.models.prompt import Layout, PromptBuilder
from vla_nav.training.episode_file import open_episodes
from vla_nav.training.grouping import GROUPS, grouped
from vla_nav.training.made_summaries import MadeSummaries, episode_paths
from vla_nav.training.recorded_split import require_conventions
from vla_nav.training.settings import PartitionSettings
from vla_nav.training.shapes import FrameTokens
from vla_nav.training.stats_partitions import cut_tree
from vla_nav.tree import PrefixTree
from vla_nav.verification.drawing_tokens import FRAME, LABEL, POOLED, token_kinds, token_runs
from vla_nav.verification.drawing_words import Drawing
from vla_nav.verification.generated import (
    INSTRUCTIONS,
    parting_walk,
    plain_embodiment,
    walked_episode,
)

_SUMMARIES = MadeSummaries(num_tokens=8, every=8)


@dataclass(frozen=True)
class DrawRecipe:
    """What to draw. data_path None: a generated episode of `num_steps` decisions, number `episode`.
    episode: an index, or an id (of recorded episodes `id` or `dataset/split/role/id`)."""

    model: ModelConfig
    frame_tokens: FrameTokens
    action_space: ActionSpace
    layout: Layout
    supervise: str = "own"
    group: str = "episode"
    data_path: str | None = None
    split: str = "train"
    role: str = ""
    turn_deg: float = 15.0
    episode: int | str | None = None
    num_steps: int = 16
    block_size: int | None = None
    partition: PartitionSettings = field(default_factory=PartitionSettings)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.group not in GROUPS:
            raise unknown_name("tree.group", self.group, GROUPS)
        for name, value in (("steps", self.num_steps), ("block_size", self.block_size)):
            is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            if not is_count and not (name == "block_size" and value is None):
                raise UserError(f"draw.{name}={value}: allowed: whole numbers from 1 on")


def drawing_of(recipe: DrawRecipe) -> Drawing:
    """The drawing of the asked episode. Raises `UserError` for an episode that is not there."""
    if recipe.data_path is None:
        group = _generated(recipe)
        title = f"A generated episode of {recipe.num_steps} steps"
        return _drawn(recipe, _builder(recipe, group[0].embodiment), group, title)
    episodes = open_episodes(
        recipe.data_path,
        recipe.split,
        action_space=recipe.action_space,
        role=recipe.role,
        turn_deg=recipe.turn_deg,
        prompt=recipe.model.prompt,
    )
    builder = _builder(recipe, episodes.embodiment)
    require_conventions(episodes, builder)
    chosen = _find(episodes, recipe.episode)
    members = next(part for part in grouped(episodes, recipe.group) if chosen in part)
    group = [episodes[index] for index in members]
    title = f"Episode {'/'.join(part for part in group[0].key if part)}"
    return _drawn(recipe, builder, group, title)


def drawing_of_group(recipe: DrawRecipe, group: list[Episode], *, title: str) -> Drawing:
    """The drawing of given episodes with steps, which share one tree. Raises `UserError` where the
    recipe does not fit them."""
    return _drawn(recipe, _builder(recipe, group[0].embodiment), group, title)


def _generated(recipe: DrawRecipe) -> list[Episode]:
    """A walk of an expert that is always obeyed; as a trajectory, under several instructions; as
    rollouts, with a walk that parts from it halfway."""
    described: dict[str, Any] = recipe.action_space.describe()
    embodiment = plain_embodiment(
        float(described.get("turn_deg", 15.0)),
        float(described.get("step_m", 0.25)),
        has_depth=recipe.model.prompt.depth,
    )
    episode = walked_episode(
        _index(recipe.episode),
        num_steps=recipe.num_steps,
        embodiment=embodiment,
        seed=recipe.seed,
        perturbed=0.0,
        relabelled=0.0,
    )
    if recipe.group == "episode":
        return [episode]
    if recipe.group == "rollouts":
        half, number = recipe.num_steps // 2, _index(recipe.episode) + 1
        return [episode, parting_walk(episode, number, parts_at=half, seed=recipe.seed)]
    others = [text for text in INSTRUCTIONS if text != episode.instruction]
    return [episode, *(replace(episode, instruction=text) for text in others)]


def _builder(recipe: DrawRecipe, embodiment: Embodiment | None) -> PromptBuilder:
    assert embodiment is not None
    return build_prompt(
        recipe.model,
        action_space=recipe.action_space,
        embodiment=embodiment,
        layout=recipe.layout,
        num_full=recipe.frame_tokens.full,
        num_pooled=recipe.frame_tokens.pooled,
    )


def _drawn(recipe: DrawRecipe, builder: PromptBuilder, group: list[Episode], title: str) -> Drawing:
    paths, num_frames = episode_paths(
        builder, group, supervise=recipe.supervise, summaries=_SUMMARIES
    )
    if not paths:
        raise UserError(f"episode {'/'.join(group[0].key)}: no step has an expert label")
    tree = PrefixTree.from_paths(paths, num_frames=num_frames)
    kinds = token_kinds(tree, builder.vocabulary, num_full=builder.num_full)
    texts = {}
    for run in token_runs(tree, kinds):
        ids = tree.token_ids[run.start : run.stop].tolist()
        texts[run.start] = _words(builder, run.kind, run.frame, ids)
    instruction = group[0].instruction.strip()
    short = instruction if len(instruction) <= 110 else f"{instruction[:107]}..."
    kind = "walk" if recipe.group == "rollouts" else "instruction"
    plural = "s" if len(group) > 2 else ""
    others = f" and {len(group) - 1} more {kind}{plural}" if len(group) > 1 else ""
    return Drawing(
        title=f"{title}: “{short}”{others}",
        layout=f"{recipe.layout.name}, supervise {recipe.supervise}",
        tree=tree,
        kinds=kinds,
        texts=texts,
        num_steps=len(group[0].steps),
        block_size=recipe.block_size,
        partitions=cut_tree(tree, recipe.partition),
    )


def _words(builder: PromptBuilder, kind: int, frame: int, ids: list[int]) -> str:
    """What a run of tokens says."""
    names = builder.action_space.token_names
    if kind in (FRAME, POOLED):
        return f"frame {frame}, {len(ids)} tokens" + (" (pooled)" if kind == POOLED else "")
    if all(token < builder.vocabulary.num_actions for token in ids):
        said = " ".join(names[token] for token in ids)
        return f"{'label' if kind == LABEL else 'executed'}: {said}"
    own = builder.vocabulary.num_own
    text = builder.tokenizer.decode([token - own for token in ids if token >= own])
    return f"{len(ids)} tokens: {text}" if text else f"{len(ids)} special tokens"


def _index(episode: int | str | None) -> int:
    if episode is None:
        return 0
    if isinstance(episode, bool) or not isinstance(episode, int) or episode < 0:
        raise UserError(f"draw.episode={episode}: generated episodes are numbered from 0 on")
    return episode


def _find(episodes: Any, wanted: int | str | None) -> int:
    """The index of an episode by index or id; an id that is a number needs quotes."""
    if wanted is None:
        wanted = 0
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        if not 0 <= wanted < len(episodes):
            raise UserError(
                f"draw.episode={wanted}: {episodes.root} has {len(episodes)} episodes; allowed: "
                f"0 to {len(episodes) - 1}, or an id in quotes"
            )
        return wanted
    keys = episodes.keys()
    found = [i for i, key in enumerate(keys) if wanted in (key[-1], "/".join(key))]
    if len(found) != 1:
        fault = "no such episode" if not found else f"{len(found)} episodes have this id"
        raise UserError(
            f"draw.episode={wanted}: {fault} in {episodes.root}; give an index (0 to "
            f"{len(keys) - 1}) or dataset/split/role/id, such as {'/'.join(keys[0])}"
        )
    return found[0]
