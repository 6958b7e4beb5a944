"""`vla-nav view`: a data set or an evaluation run as a page that opens from its folder.

source or run --episode by episode--> tracks --scene, if there is one--> maps, frames, labels
   --> data/episodes/000012.js, written when it is whole; kept by a second start
   --> index.html
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vla_nav.episodes.formats import open_source
from vla_nav.episodes.source import EpisodeSource
from vla_nav.episodes.types import Embodiment, Episode
from vla_nav.errors import UserError
from vla_nav.evaluation.setup import embodiment_of
from vla_nav.simulators.opening import SimulatorSetup
from vla_nav.viewing.content import EXPERT, GROUND_TRUTH, Track, episode_json
from vla_nav.viewing.evaluation_run import EvaluationRun, open_run
from vla_nav.viewing.floors import Floor, episode_floors
from vla_nav.viewing.frame_files import FrameFiles
from vla_nav.viewing.outcomes import FLAGS
from vla_nav.viewing.scene_views import SceneViews, find_scenes
from vla_nav.viewing.site import Site, digest_of
from vla_nav.viewing.subjects import DataSubject, RunSubject, Subject

if TYPE_CHECKING:  # trees need torch, and a page without trees need not wait for it
    from vla_nav.verification.drawing_subject import DrawRecipe

_LISTED_CHARACTERS = 600  # of an instruction in the list; the page of the episode has all of it
_RENDER = ("auto", "never")


@dataclass
class Pages:
    """What turns episodes into the content of the page."""

    subject: Subject
    files: FrameFiles
    scenes: SceneViews | None
    recipe: DrawRecipe | None
    source: EpisodeSource | None
    missing_scenes: dict[str, str]

    def content(self, episode: Episode, tracks: list[Track], *, has_tree: bool) -> dict[str, Any]:
        """Everything of one episode; writes its images."""
        floors = self._scene_floors(episode)
        if self.scenes is not None and episode.scene_id not in self.missing_scenes:
            for track in tracks:
                if track.frames is None:
                    self.scenes.replay(episode, track, self.files)
        if self.source is not None and self.source.frames is not None:
            for track in tracks:
                self._copy_frames(track)
        content = {
            **episode_json(episode),
            "remark": self.subject.remark(episode),
            "tracks": [track.as_json() for track in tracks],
            "floors": [floor.as_json() for floor in episode_floors(episode, tracks, floors)],
            "tree": None,
        }
        if has_tree and self.recipe is not None:
            from vla_nav.viewing.episode_tree import tree_json

            content["tree"] = tree_json(
                self.recipe, episode, _taught(tracks), turn_deg=self.subject.turn_deg
            )
        return content

    def _scene_floors(self, episode: Episode) -> list[Floor]:
        if self.scenes is None or episode.scene_id in self.missing_scenes:
            return []
        try:
            return self.scenes.floors(episode.scene_id)
        except UserError as error:
            self.missing_scenes[episode.scene_id] = str(error)
            return []

    def _copy_frames(self, track: Track) -> None:
        assert self.source is not None
        source = self.source.frames
        if track.frames is None or source is None:
            return
        track.frames = [
            {
                name: self.files.from_source(source, self.source.root, key)
                for name, key in step.items()
            }
            for step in track.frames
        ]


def view_from(config: Mapping[str, Any], recipe: DrawRecipe | None) -> Path:
    """Write the page that `conf/view.yaml` describes; the file to open.

    recipe: how the trees are made, None for none.
    """
    options, data = config["view"], config["data"]
    _check(options)
    root = Path(config["paths"]["output_dir"])
    source, run = None, None
    if options["run"] is not None:
        run = open_run(options["run"], rows=options["rows"], data=data)
        subject: Subject = RunSubject(run)
        scenes = find_scenes(run.data["scenes"], None) if _is_folder(run.data["scenes"]) else None
    else:
        if data["path"] is None:
            raise UserError(
                "nothing to view: give data.path=... (and data.split=...), or view.run=<folder of "
                "an evaluation>"
            )
        source = open_source(
            data["path"], split=data["split"], format=data["format"], role=data["role"]
        )
        subject = DataSubject(source, data["turn_deg"])
        scenes = find_scenes(data["scenes"], data["path"])
    views = None
    if scenes is not None and options["render"] == "auto":
        views = _scene_views(config, root, scenes, run=run, source=source)
    site = Site(
        root,
        subject.identity,
        {
            "title": subject.title,
            "kind": "run" if run else "data",
            "facts": {key: value for key, value in subject.facts.items() if value},
            "flags": FLAGS,
            "report": _report_rows(run),
        },
    )
    pages = Pages(
        subject,
        FrameFiles(root, max_side_px=options["max_side_px"]),
        views,
        recipe,
        source,
        {},
    )
    with closing(views) if views is not None else nullcontext():
        return _write(site, pages, options)


def _write(site: Site, pages: Pages, options: Mapping[str, Any]) -> Path:
    most, num_kept, number = options["max_episodes"], 0, 0
    wanted = {str(name) for name in options["episodes"]}
    chosen = (
        episode
        for episode in pages.subject.episodes()
        if not wanted or episode.episode_id in wanted or "/".join(episode.key) in wanted
    )
    settings = digest_of(
        [
            options["max_side_px"],
            None if pages.recipe is None else str(pages.recipe),
            None if pages.scenes is None else asdict(pages.scenes.body),
        ]
    )
    with _progress() as progress:
        bar = progress.add_task("view", total=len(wanted) or None)
        for number, episode in enumerate(islice(chosen, most), start=1):
            tracks = pages.subject.tracks(episode)
            has_tree = number <= options["num_trees"]
            before = [
                episode_json(episode),
                pages.subject.remark(episode),
                [track.as_json() for track in tracks],
            ]
            digest = digest_of([before, settings, has_tree])
            if site.kept(number - 1, digest):
                num_kept += 1
            else:
                content = pages.content(episode, tracks, has_tree=has_tree)
                site.add(number - 1, digest, _line(content), content)
            progress.advance(bar)
        is_cut = next(chosen, None) is not None
        progress.update(bar, total=number)
    if number == 0:
        raise UserError(
            f"view.episodes={sorted(wanted)}: no such episode in {pages.subject.title}"
            if wanted
            else f"{pages.subject.title}: holds no episodes"
        )
    for scene_id, reason in list(pages.missing_scenes.items())[:3]:
        print(f"no map of {scene_id}: {reason}")
    if missing := pages.files.missing:
        print(f"{len(missing)} frames could not be read, the first: {next(iter(missing.values()))}")
    shown = f"the first {number} episodes (view.max_episodes)" if is_cut else f"{number} episodes"
    print(f"{shown}, {num_kept} of them written before")
    return site.finish(
        is_cut=is_cut,
        num_missing_frames=len(missing),
        missing_scenes=list(pages.missing_scenes.values())[:20],
    )


def _taught(tracks: list[Track]) -> Track | None:
    """The expert's walk among the tracks."""
    experts = [track for track in tracks if track.name in (GROUND_TRUTH, EXPERT)]
    return experts[-1] if experts else None


def _line(content: Mapping[str, Any]) -> dict[str, Any]:
    """What the list shows and searches."""
    tracks = content["tracks"]
    return {
        "key": content["key"],
        "id": content["id"],
        "scene": content["scene"],
        "instruction": content["instruction"][:_LISTED_CHARACTERS],
        "rows": {
            track["name"]: {
                "flags": track["flags"],
                "steps": len(track["actions"]),
                "ne_m": track["scores"].get("ne_m"),
            }
            for track in tracks
        },
    }


def _scene_views(
    config: Mapping[str, Any],
    root: Path,
    scenes: Path,
    *,
    run: EvaluationRun | None,
    source: EpisodeSource | None,
) -> SceneViews:
    """The body is that of the run or of the data, else the configured one."""
    simulators = config["simulators"]
    body: Embodiment | None = None
    if run is not None:
        body = run.body
    elif source is not None:
        body = source.facts.embodiment
    setup = SimulatorSetup.of(simulators)
    if run is not None:
        backend = run.facts.get("backend", setup.backend)
        setup = replace(setup, backend=backend, options=run.facts.get("simulator", {}))
    return SceneViews(
        simulator=setup,
        body=body or embodiment_of(simulators),
        scenes=scenes,
        root=root,
        stop_radius_m=run.facts.get("expert_stop_radius_m", 0.5) if run is not None else 0.5,
    )


def _report_rows(run: EvaluationRun | None) -> list[Mapping[str, Any]]:
    if run is None or run.report is None:
        return []
    shown = ("name", "n", "num_expected", "sr", "osr", "spl", "ne_m", "ndtw", "steps", "collisions")
    return [{key: row.get(key) for key in shown} for row in run.report["rows"]]


def _check(options: Mapping[str, Any]) -> None:
    for key, least in (("max_episodes", 1), ("num_trees", 0), ("max_side_px", 16), ("port", 0)):
        value = options[key]
        if value is None and key == "max_episodes":
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise UserError(f"view.{key}={value}: allowed: whole numbers from {least} on")
    if options["render"] not in _RENDER:
        raise UserError(f"view.render={options['render']}: allowed: {', '.join(_RENDER)}")


def _is_folder(path: str | None) -> bool:
    return bool(path) and Path(str(path)).is_dir()


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
