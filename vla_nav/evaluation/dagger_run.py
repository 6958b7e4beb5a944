"""What `vla-nav record record.source=dagger` adds to a recording: the policy, and older episodes.

    record.onto     a recorded set  --copied, frames and all--> the new set      D
    data.episodes   12, 13, ...     --walked with the policy--> 12@1, 13@1, ...  D_1
                                                                the new set:     D + D_1

A round's set is whole by itself: written to `demo/round1/recorded/train` it is trained on with
`data.path=demo/round1`, and `tree.group=rollouts` makes one tree of all walks of an episode.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.episodes.rollouts import further_walk
from vla_nav.episodes.types import Episode
from vla_nav.errors import UserError, unknown_name
from vla_nav.evaluation.dagger import Mixture
from vla_nav.evaluation.recording import Recorded, RecordSettings

if TYPE_CHECKING:
    from vla_nav.models.checkpoint import LoadedPolicy
    from vla_nav.models.policy import VLAPolicy

SOURCES = ("expert", "dagger")
DEVICES = ("auto", "cpu", "cuda")


class Dagger(NamedTuple):
    """Who walks beside the expert. onto: the recorded set that is kept beside the new walks."""

    checkpoint: str
    digest: str
    device: str
    seed: int
    mixture: Mixture
    onto: str | None

    def describe(self) -> dict[str, Any]:
        """What the new set states of its origin."""
        kept = None if self.onto is None else LeRobotDataset(self.onto).fingerprint()
        return {**self.mixture.describe(), "policy": self.digest, "onto": kept}


class Kept(NamedTuple):
    """The episodes of an older set, by number, that are copied into the new one."""

    root: str
    keys: tuple[tuple[str, str, str, str], ...]
    num_steps: tuple[int, ...]


def dagger_of(config: Mapping[str, Any], settings: RecordSettings) -> Dagger | None:
    """The policy to walk with, checked; None for `record.source=expert`."""
    options, checkpoint = config["record"], config["checkpoint"]
    if options["source"] not in SOURCES:
        raise unknown_name("record.source", options["source"], SOURCES)
    if options["source"] == "expert":
        for key, value in (("checkpoint", checkpoint), ("record.onto", options["onto"])):
            if value is not None:
                raise UserError(
                    f"{key}={value}: record.source=expert uses none; set record.source=dagger, or "
                    f"leave {key} out"
                )
        return None
    if checkpoint is None:
        raise UserError(
            "checkpoint: has no value, and record.source=dagger walks with a policy; give "
            "checkpoint=<policy folder>"
        )
    device = _device(options["device"])
    mixture = Mixture(
        beta=options["beta"],
        mixture=options["mixture"],
        round=options["round"],
        num_slots=options["num_slots"],
    )
    loaded = _load(checkpoint, "cpu")
    _require_fit(loaded, settings, checkpoint)
    digest = loaded.digest
    return Dagger(str(checkpoint), digest, device, settings.seed, mixture, options["onto"])


def rollouts_of(episodes: Sequence[Episode], dagger: Dagger) -> list[Episode]:
    """The walks to record: one of each episode, named by the round."""
    return [further_walk(episode, dagger.mixture.round) for episode in episodes]


def kept_of(
    dagger: Dagger,
    rollouts: Sequence[Episode],
    settings: RecordSettings,
    storage: str,
    *,
    backend: str,
) -> Kept | None:
    """The older set that goes into the new one; `UserError` where the two do not fit."""
    if dagger.onto is None:
        return None
    old = LeRobotDataset(dagger.onto)
    stated, first = old.conventions, rollouts[0]
    found = [
        (name, have, want)
        for name, have, want in (
            ("data.dataset", stated.dataset, first.dataset),
            ("data.split", stated.split, first.split),
            ("record.decision", str(stated.decision), str(settings.decision)),
            ("simulators.embodiment", stated.embodiment, settings.embodiment),
            ("record.storage", stated.storage, storage),
            ("simulators.backend", stated.recording.get("backend", backend), backend),
        )
        if have != want
    ]
    if found:
        name, have, want = found[0]
        raise UserError(
            f"record.onto={dagger.onto}: recorded with {name} {have}, now it is {want}; record "
            "with the first value, or leave record.onto out"
        )
    if storage != "png":
        raise UserError(
            f"record.onto={dagger.onto}: its frames are video, which cannot be copied without "
            "loss; record both sets with record.storage=png"
        )
    keys = tuple(old.keys())
    twice = set(keys) & {episode.key for episode in rollouts}
    if twice:
        raise UserError(
            f"record.round={dagger.mixture.round}: {dagger.onto} has that round already (episode "
            f"{min(twice)[-1]}); give the next number"
        )
    return Kept(str(dagger.onto), keys, tuple(old.num_steps.tolist()))


def copied(root: str, numbers: Sequence[int]) -> Iterator[Recorded]:
    """Episodes of a recorded set, with their frames."""
    old = _opened(root)
    for number in numbers:
        episode = old[number]
        keys = {key for step in episode.steps for key in step.frames.values()}
        yield Recorded(episode, {key: old.frames.read(key) for key in sorted(keys)})


def policy_of(dagger: Dagger) -> VLAPolicy:
    """This process's policy. It decides on one thread: with more, sums split differently, and the
    data would depend on the machine's cores."""
    import torch

    torch.set_num_threads(1)
    return _load(dagger.checkpoint, dagger.device).policy(seed=dagger.seed)


@lru_cache(maxsize=1)
def _opened(root: str) -> LeRobotDataset:
    return LeRobotDataset(root)


@lru_cache(maxsize=1)
def _load(checkpoint: str, device: str) -> LoadedPolicy:
    from vla_nav.models.checkpoint import load_policy

    return load_policy(checkpoint, device=device)


def _require_fit(loaded: LoadedPolicy, settings: RecordSettings, checkpoint: str) -> None:
    """Body and rule are part of the data; a policy out of its own would teach nothing."""
    from vla_nav.models.checkpoint import embodiment_differences

    found = embodiment_differences(loaded.embodiment, settings.embodiment)
    if loaded.decision != settings.decision:
        found.append(f"decision {loaded.decision} != {settings.decision}")
    if found:
        raise UserError(
            f"checkpoint={checkpoint}: trained under other conditions (trained != now): "
            f"{'; '.join(found)}; record with simulators.embodiment and record.decision of its "
            "training"
        )
    if loaded.prompt.layout.history == "summary":
        raise UserError(
            f"checkpoint={checkpoint}: trained with tree.history=summary, and a recording has no "
            "source of summaries; train another history"
        )


def _device(name: str) -> str:
    import torch

    if name not in DEVICES:
        raise unknown_name("record.device", name, DEVICES)
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("record.device=cuda: there is no CUDA device here; use auto or cpu")
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name


def require_own_folder(root: Path, there: Mapping[str, Any], dagger: Dagger | None) -> None:
    """Refuse to write rollouts where a finished recording of another kind is."""
    if dagger is None or there.get("dagger") is not None:
        return
    name = f"_round{dagger.mixture.round}"
    own = root.with_name(root.name + name)
    if root.parent.name == "recorded":  # <data.path>/recorded/<split>: the split keeps its name
        data = root.parent.parent
        own = data.with_name(data.name + name) / "recorded" / root.name
    raise UserError(
        f"{root}: holds the expert's recording; give the rollouts a folder of their own, "
        f"data.recorded={own}, and record.onto={root} to keep these episodes beside them"
    )
