"""A data set on disk: the same for any number of workers, whole after a kill, never mixed."""

import re
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from vla_nav.commands.compose import compose_config, plain, run
from vla_nav.episodes.vlnce import read_vlnce
from vla_nav.errors import UserError
from vla_nav.simulators.houses import dataset
from vla_nav.simulators.houses.dataset import SPLITS, house_seed, write_dataset
from vla_nav.simulators.houses.dataset_options import (
    MAX_HOUSES,
    DatasetOptions,
    dataset_options,
)

CONFIG = {
    "num_train": 3,
    "num_val_unseen": 1,
    "episodes_per_house": 5,
    "num_rooms": [5, 5],
    "num_objects": [4, 4],
}


def write(path, num_workers=0, seed=0, **changes):
    options = dataset_options(CONFIG | changes)
    return write_dataset(path, options, run_seed=seed, num_workers=num_workers)


def files_of(path: Path):
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("houses") / "data"
    assert write(path) == {"train": 15, "val_unseen": 5}
    return path


def test_episodes_read_back_as_vln_ce(written):
    for split, num_episodes in (("train", 15), ("val_unseen", 5)):
        file = written / "episodes" / split / f"{split}.json.gz"
        episodes = list(read_vlnce(file, dataset="houses", split=split, role=""))
        assert len(episodes) == num_episodes
        assert len({episode.episode_id for episode in episodes}) == num_episodes
        for episode in episodes:
            assert (written / "scenes" / episode.scene_id).exists()
            assert episode.goals[0].radius_m == 3.0
            assert episode.metadata["info"]["geodesic_distance"] >= 6
            assert len(episode.reference_path) >= 2


def test_phrasings_of_a_route_share_its_trajectory(written):
    file = written / "episodes" / "train" / "train.json.gz"
    by_route = {}
    for episode in read_vlnce(file, dataset="houses", split="train", role=""):
        by_route.setdefault(episode.metadata["trajectory_id"], []).append(episode)
    assert len(by_route) == 9
    for episodes in by_route.values():
        assert len({episode.start_pose for episode in episodes}) == 1
        assert len({episode.goals for episode in episodes}) == 1
        assert len({episode.instruction for episode in episodes}) == len(episodes)


def test_workers_do_not_change_a_byte(written, tmp_path):
    write(tmp_path / "data", num_workers=2)
    assert files_of(tmp_path / "data") == files_of(written)


def test_a_second_start_writes_nothing(written, monkeypatch):
    before = {file: file.stat().st_mtime_ns for file in written.rglob("*")}
    monkeypatch.setattr(dataset, "_make_house", lambda job: pytest.fail("made a house again"))
    assert write(written) == {"train": 15, "val_unseen": 5}
    assert {file: file.stat().st_mtime_ns for file in written.rglob("*")} == before


def test_a_killed_run_is_continued(written, tmp_path, monkeypatch):
    path, make_house, made = tmp_path / "data", dataset._make_house, []

    def make_two_then_die(job):
        if len(made) == 2:
            (job.scene_folder).mkdir(parents=True)
            (job.scene_folder / f"{job.name}.glb.tmp-123").write_bytes(b"half")
            raise KeyboardInterrupt
        made.append(job.name)
        make_house(job)

    monkeypatch.setattr(dataset, "_make_house", make_two_then_die)
    with pytest.raises(KeyboardInterrupt):
        write(path)
    assert not list(path.rglob("*.json.gz"))
    again = []
    monkeypatch.setattr(dataset, "_make_house", lambda job: (again.append(job), make_house(job)))
    write(path)
    assert len(again) == 2
    assert files_of(path) == files_of(written)


def test_more_houses_keep_the_first_ones(written, tmp_path):
    write(tmp_path / "data", num_train=1, num_val_unseen=0)
    write(tmp_path / "data")
    assert files_of(tmp_path / "data") == files_of(written)


def test_a_lost_scene_is_made_again(written, tmp_path):
    write(tmp_path / "data")
    next((tmp_path / "data" / "scenes" / "train").rglob("*.glb")).unlink()
    write(tmp_path / "data")
    assert files_of(tmp_path / "data") == files_of(written)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: b"", lambda data: data + b" "]
)
def test_a_damaged_file_is_named_and_made_anew_once_deleted(written, tmp_path, damage):
    copy = tmp_path / "data"
    shutil.copytree(written, copy)
    whole = files_of(copy)
    name = next(file for file in whole if file.endswith(".glb"))
    (copy / name).write_bytes(damage(whole[name]))
    damaged = files_of(copy)
    with pytest.raises(UserError, match=re.escape(name) + ": not what was written.*delete it"):
        write(copy)
    assert files_of(copy) == damaged
    (copy / name).unlink()
    write(copy)
    assert files_of(copy) == whole


def test_other_options_are_refused_and_change_nothing(written):
    before = files_of(written)
    for changes in ({"side_door_share": 0.9}, {"episodes_per_house": 6}):
        key = next(iter(changes))
        with pytest.raises(UserError, match=rf"houses.json.*{key}"):
            write(written, **changes)
    with pytest.raises(UserError, match="seed=0, now asked for 1"):
        write(written, seed=1)
    assert files_of(written) == before


def test_splits_and_runs_never_share_a_house():
    seeds = {
        house_seed(run, split, index)
        for run in range(3)
        for split in SPLITS
        for index in (0, 1, MAX_HOUSES - 1)
    }
    assert len(seeds) == 18


def test_train_and_held_out_houses_differ(written):
    names = {split: {f.name for f in (written / "scenes" / split).iterdir()} for split in SPLITS}
    assert names["train"] & names["val_unseen"] == {"houses.json"}
    glbs = [file.read_bytes() for file in written.rglob("*.glb")]
    assert len(set(glbs)) == len(glbs) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_train": -1}, "houses.num_train=-1"),
        ({"episodes_per_house": 0}, "houses.episodes_per_house=0"),
        ({"num_floor": 2}, "unknown key 'houses.num_floor' (did you mean 'houses.num_floors'?)"),
        ({"route": {"min_geodesic": 7}}, "did you mean 'houses.route.min_geodesic_m'?"),
    ],
)
def test_bad_options_give_one_line(changes, message):
    with pytest.raises(UserError, match=re.escape(message)):
        dataset_options(CONFIG | changes)


def test_the_shipped_configuration_has_exactly_the_options_and_their_defaults():
    config = plain(compose_config("houses", ["data.path=unused"]).houses)
    options = dataset_options(config)
    assert options == DatasetOptions(num_train=300, num_val_unseen=25)
    house = asdict(options.house)
    assert set(config) == (set(asdict(options)) - {"house"}) | set(house)


def test_a_disk_that_is_too_small_is_told_before_anything_is_written(tmp_path):
    with pytest.raises(UserError, match=r"needs \d+ MiB"):
        write(tmp_path / "data", num_train=20_000, detail=16)
    assert not (tmp_path / "data").exists()


def test_fewer_episodes_than_asked_for_are_told(tmp_path, capsys):
    """A house of few rooms has only so many routes that differ."""
    words = [f"data.path={tmp_path}/w", f"paths.output_dir={tmp_path}/out", "num_workers=0"]
    words += ["houses.num_train=0", "houses.num_val_unseen=1", "houses.num_rooms=[5,5]"]
    assert run("houses", [*words, "houses.episodes_per_house=200"]) == 0
    found = re.search(
        r"val_unseen: (\d+) episodes in \S+ of 200 asked for", capsys.readouterr().out
    )
    assert found is not None
    assert int(found[1]) < 200
    words[0] = f"data.path={tmp_path}/few"
    assert run("houses", [*words, "houses.episodes_per_house=4"]) == 0
    assert "asked for" not in capsys.readouterr().out
