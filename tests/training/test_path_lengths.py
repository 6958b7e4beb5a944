"""The longest path of recorded episodes against the positions of the backbone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.training.tiny import ENCODER, OPTIONS, make_data, recipe, settings, train
from vla_nav.actions.waypoint import WaypointSpace
from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.errors import UserError
from vla_nav.models.assembly import ModelConfig, build_prompt
from vla_nav.models.backbone import BackboneConfig
from vla_nav.models.prompt import Layout, PromptBuilder
from vla_nav.training.mixture import Source
from vla_nav.training.path_lengths import context_bounds, longest_path, require_positions
from vla_nav.training.schedule import Budget
from vla_nav.training.settings import ValidationSettings
from vla_nav.tree import PrefixTree, every_layout, flatten

LAYOUTS = every_layout(window=2, uniform=3, summary_keep=1)
KEY = "models.backbone.options.max_position_embeddings"


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("routes"), num_episodes=5, num_instructions=2)


@pytest.fixture(scope="module")
def longer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of more steps than those of `routes`."""
    return make_data(tmp_path_factory.mktemp("longer"), num_episodes=4, steps=(9, 12), seed=3)


def recorded(data: Path) -> LeRobotDataset:
    return LeRobotDataset(data / "recorded" / "train")


def prompt(data: Path, layout: Layout) -> PromptBuilder:
    return build_prompt(
        ModelConfig(backbone=BackboneConfig(options=OPTIONS)),
        action_space=WaypointSpace(),
        embodiment=recorded(data).embodiment,
        layout=layout,
        num_full=4,
        num_pooled=1,
    )


def lengths_of_trees(episodes: LeRobotDataset, builder: PromptBuilder) -> np.ndarray:
    """(E,) the longest context of every episode's tree with the longest action, by its paths."""
    found = []
    for episode in episodes:
        paths, keys = builder.paths(episode)
        flat = flatten(PrefixTree.from_paths(paths, num_frames=len(keys)))
        found.append(max(int((~path.tokens().is_supervised).sum()) for path in flat))
    return np.array(found) + builder.action_space.max_length


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_the_longest_path_is_that_of_the_built_trees(routes: Path, layout: Layout) -> None:
    episodes, builder = recorded(routes), prompt(routes, layout)
    real = lengths_of_trees(episodes, builder)
    bounds = context_bounds(episodes, builder)
    assert (bounds >= real).all()
    # A shorter executed action (STOP) and a last step without label make it shorter.
    spare = 3 * episodes.num_steps.max() if layout.actions == "visible" else 0
    assert (bounds - real).max() <= spare
    found = longest_path(episodes, builder)
    assert found.num_tokens == real.max()
    names = ["/".join(key) for key in episodes.keys()]  # noqa: SIM118 (no mapping)
    assert real[names.index(found.name)] == real.max()


def test_one_position_less_than_the_longest_path_is_refused(routes: Path, longer: Path) -> None:
    class Set:
        def __init__(self, data: Path, layout: Layout) -> None:
            self.episodes, self.builder = recorded(data), prompt(data, layout)

    sets = [Set(data, Layout("full", "hidden")) for data in (routes, longer)]
    most = max(lengths_of_trees(one.episodes, one.builder).max() for one in sets)
    assert most == longest_path(sets[1].episodes, sets[1].builder).num_tokens
    with pytest.raises(UserError, match=rf"^{KEY}={most - 1}: .*toy/train//.* has {most} tokens"):
        require_positions(sets, most - 1)
    # 12 steps of 4 tokens: one step more than the longest episode has room, then twice as many.
    assert "after about 13 decisions; the longest recorded episode has 12" in str(
        require_positions(sets, most + 4)
    )
    assert require_positions(sets, most + 4 * 12) is None
    moving = Set(longer, Layout("window", "hidden", window=2))
    alone = longest_path(moving.episodes, moving.builder).num_tokens
    assert require_positions([moving], alone) is None


@pytest.mark.parametrize("place", ["mixture", "validation", "alone"])
def test_training_refuses_before_there_is_a_folder(
    place: str, routes: Path, longer: Path, tmp_path: Path
) -> None:
    layout = Layout("full", "hidden")
    short = longest_path(recorded(routes), prompt(routes, layout)).num_tokens
    options = {**OPTIONS, "max_position_embeddings": short}
    made = recipe(
        routes,
        model=ModelConfig(backbone=BackboneConfig(options=options)),
        layout=layout,
        settings=settings(
            budget=Budget(max_steps=1), validation=ValidationSettings(holdout_share=0.0)
        ),
    )
    if place == "mixture":
        made = replace(made, mixture=(Source(str(routes), "train"), Source(str(longer), "train")))
    elif place == "alone":
        made = replace(made, data_path=str(longer))
    else:
        make_data(routes, num_episodes=2, steps=(9, 12), seed=4, split="val")
        validated = ValidationSettings(split="val", every_steps=5)
        made = replace(made, settings=settings(validation=validated))
    run = tmp_path / "run"
    with pytest.raises(UserError, match=KEY):
        train(made, run)
    assert not run.exists()


def test_training_tells_how_far_the_policy_may_go(
    routes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = Layout("full", "hidden")
    most = longest_path(recorded(routes), prompt(routes, layout)).num_tokens
    options = {**OPTIONS, "max_position_embeddings": most}
    made = recipe(
        routes,
        model=ModelConfig(backbone=BackboneConfig(options=options)),
        encoder=ENCODER,
        layout=layout,
        settings=settings(
            budget=Budget(max_steps=1), validation=ValidationSettings(holdout_share=0.0)
        ),
    )
    assert train(made, tmp_path / "run")["steps"] == 1
    (line,) = [text for text in capsys.readouterr().err.splitlines() if text.startswith(KEY)]
    num_steps = recorded(routes).num_steps.max()
    assert f"after about {num_steps} decisions; the longest recorded episode has" in line
