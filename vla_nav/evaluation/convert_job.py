"""What a conversion is asked for, its source as it is to be written, and the conventions of both.

    stated by the source:  turn, step, cameras      wanted: an embodiment, or "as stated"
                       `-----------------+-----------------------'
                                    ConvertJob: one set of conventions, or a refusal

No convention is guessed: a format that does not state its turn angle needs it from the user.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from vla_nav.actions.decisions import DecisionRule, stated_rule
from vla_nav.actions.ground_truth_steps import walked
from vla_nav.episodes.conversion import EpisodeKey, Plan
from vla_nav.episodes.formats import open_source
from vla_nav.episodes.lerobot_layout import INFO, check_storage
from vla_nav.episodes.scenes import resolve_scene
from vla_nav.episodes.source import EpisodeSource
from vla_nav.episodes.types import Embodiment, Episode
from vla_nav.errors import UserError, unknown_name
from vla_nav.evaluation.source_body import StatedBody, source_body
from vla_nav.files import read_json
from vla_nav.simulators.opening import SimulatorSetup

STEPS = ("recorded", "ground_truth")


@dataclass(frozen=True)
class ConvertSettings:
    """What is converted, and into what.

    steps: "recorded", or "ground_truth" for episode files. decision: rule of the steps; None: the
    source's own, or the one its steps obey. render: the simulator to render with, None for recorded
    pixels. embodiment: of the data; None: what the source states, and `body` adds.
    """

    path: str
    split: str
    root: Path
    format: str | None = None
    role: str = ""
    dataset: str | None = None
    num_episodes: int | None = None
    steps: str = "recorded"
    decision: str | None = None
    storage: str = "png"
    embodiment: Embodiment | None = None
    body: StatedBody = field(default_factory=StatedBody)
    render: SimulatorSetup | None = None
    scenes: str = ""

    def __post_init__(self) -> None:
        if self.steps not in STEPS:
            raise unknown_name("convert.steps", self.steps, STEPS)
        check_storage(self.storage)
        if self.num_episodes is not None and self.num_episodes < 1:
            raise UserError(
                f"convert.num_episodes={self.num_episodes}: allowed: 1 and more, or null for all"
            )
        if self.decision is not None:
            DecisionRule.parse(self.decision)


class ConvertJob(NamedTuple):
    """Everything a worker process needs besides its unit."""

    settings: ConvertSettings
    dataset: str
    body: Embodiment
    decision: str
    facts: dict[str, Any]
    scenes: dict[str, str]
    has_frames: bool

    def conventions(self) -> dict[str, Any]:
        """What a finished data set must agree with to be the one that is asked for."""
        return {
            "dataset": self.dataset,
            "decision": self.decision,
            "storage": self.settings.storage,
            "embodiment": self.body,
            **self.facts,
        }


def convert_job(settings: ConvertSettings, source: EpisodeSource, found: Plan) -> ConvertJob:
    """The conventions of the data set that is to be; `UserError` where the source states none."""
    facts = source.facts
    body = _body(settings, source)
    for key in ("turn_deg", "step_m"):
        stated, wanted = getattr(facts, key), getattr(body, key)
        if stated is not None and abs(stated - wanted) > 1e-6:
            raise UserError(
                f"{source.root}: states {key}={stated:g}, simulators.embodiment.{key} is "
                f"{wanted:g}; set it to {stated:g}"
            )
    is_rendered = settings.render is not None
    if is_rendered and not facts.is_pose_measured:
        raise UserError(
            f"{source.root}: its poses are dead-reckoned, frames rendered from them would show "
            "other places; set convert.render=false"
        )
    has_frames = source.frames is not None
    if settings.storage == "video" and not (is_rendered or has_frames):
        raise UserError(f"{source.root}: has no frames for convert.storage=video; take png")
    scenes = {}
    if is_rendered:
        scenes = {name: str(resolve_scene(name, Path(settings.scenes))) for name in found.scenes}
    dataset, *_ = found.order[0]
    described = {
        "expert": facts.expert,
        "source": {"format": facts.format, "digest": found.digest},
        "steps": settings.steps,
        "rendered": None
        if settings.render is None
        else {"backend": settings.render.backend, **settings.render.options},
    }
    return ConvertJob(
        settings,
        dataset,
        body,
        _decision(settings, source, found),
        described,
        scenes,
        has_frames,
    )


def _decision(settings: ConvertSettings, source: EpisodeSource, found: Plan) -> str:
    """The rule by which primitives are merged into steps."""
    if settings.decision is not None or settings.steps == "ground_truth":
        return str(DecisionRule.parse(settings.decision or "primitive"))
    if source.facts.format == "recorded":
        return str(read_json(Path(source.root) / INFO)["vla_nav"]["decision"])
    rule = stated_rule(found.decisions)
    if rule is None:
        raise UserError(
            f"{source.root}: no decision rule groups its primitive actions as its steps do; name "
            "the nearest one as convert.decision=turn_then_forward(4) or fixed(3)"
        )
    return str(rule)


@lru_cache(maxsize=2)
def _open_at(path: str, split: str, format: str | None, role: str) -> EpisodeSource:
    return open_source(path, split=split, format=format, role=role)


def opened(settings: ConvertSettings, *, is_again: bool = False) -> EpisodeSource:
    """The source; opened once in a process. is_again: files may have changed since."""
    if is_again:
        _open_at.cache_clear()
    return _open_at(settings.path, settings.split, settings.format, settings.role)


def source_episodes(
    settings: ConvertSettings, left_out: list[tuple[EpisodeKey, str]]
) -> Iterator[Episode]:
    """The source's episodes as they are to be written, but for their frames.

    left_out: is given the episodes of which no steps can be made, with the reasons.
    """
    source = opened(settings)
    rule = DecisionRule.parse(settings.decision or "primitive")
    stated = settings.embodiment or settings.body
    turn_deg = stated.turn_deg if source.facts.turn_deg is None else source.facts.turn_deg
    for episode in islice(source, settings.num_episodes):
        if settings.steps == "ground_truth" and not episode.steps:
            if turn_deg is None:
                raise UserError(
                    f"{source.root}: a {source.facts.format} data set does not state turn_deg; "
                    "give convert.body.turn_deg=..."
                )
            try:
                episode = walked(episode, rule, turn_deg=turn_deg)
            except UserError as error:
                left_out.append((episode.key, str(error)))
                continue
        if settings.dataset is not None:
            episode = replace(episode, dataset=settings.dataset)
        yield episode


def episodes_left(
    settings: ConvertSettings, found: Plan, before: Collection[EpisodeKey]
) -> Iterator[Episode]:
    """The planned episodes that no part holds, each once."""
    waiting = set(found.order).difference(before)
    for episode in source_episodes(settings, []):
        if episode.key in waiting:
            waiting.remove(episode.key)
            yield episode


def _body(settings: ConvertSettings, source: EpisodeSource) -> Embodiment:
    if settings.embodiment is not None:
        return settings.embodiment
    return source_body(source, settings.body, source)
