"""The folder of a page: whole files, resumed, refused when of other data, safe texts, a server."""

import http.client
import json
import shutil
import threading

import pytest
from pages import HOSTILE, content_of, index_of, view_config, write_r2r

from vla_nav.commands.cli import main
from vla_nav.errors import UserError
from vla_nav.viewing import view_run
from vla_nav.viewing.serve import make_server
from vla_nav.viewing.site import script
from vla_nav.viewing.view_run import view_from


def data_config(tmp_path, *overrides: str):
    return view_config(
        tmp_path / "page",
        f"data.path={tmp_path / 'data'}",
        "data.split=val",
        "data.turn_deg=15",
        *overrides,
    )


def test_no_text_can_end_a_script_or_open_a_tag():
    text = script({HOSTILE: [HOSTILE, "\u2028\u2029\ud800"]})
    assert not set("<>&\u2028\u2029") & set(text)
    assert text.isascii()
    assert json.loads(text)[HOSTILE][0] == HOSTILE


def test_a_second_start_keeps_what_did_not_change(tmp_path, capsys):
    write_r2r(tmp_path / "data", 4)
    page = view_from(data_config(tmp_path), None)
    files = sorted((tmp_path / "page/data/episodes").iterdir())
    before = {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in files}
    index = index_of(page)
    files[1].write_bytes(files[1].read_bytes()[:150])  # torn
    files[2].unlink()
    view_from(data_config(tmp_path), None)
    assert "2 of them written before" in capsys.readouterr().out
    for number, file in enumerate(files):
        assert file.read_bytes() == before[file][1]
        assert (file.stat().st_mtime_ns == before[file][0]) == (number in (0, 3))
    assert index_of(page) == index


def test_a_file_torn_behind_its_line_is_written_again(tmp_path):
    write_r2r(tmp_path / "data", 1)
    page = view_from(data_config(tmp_path), None)
    file = tmp_path / "page/data/episodes/000000.js"
    whole = file.read_bytes()
    file.write_bytes(whole[:-40])
    view_from(data_config(tmp_path), None)
    assert file.read_bytes() == whole
    assert content_of(page, 0)["id"] == "1"


def test_a_killed_start_leaves_whole_files_and_the_next_one_finishes(tmp_path, monkeypatch, capsys):
    write_r2r(tmp_path / "data", 6)
    add, done = view_run.Site.add, []

    def add_three(self, *arguments):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(arguments[0])
        add(self, *arguments)

    monkeypatch.setattr(view_run.Site, "add", add_three)
    with pytest.raises(KeyboardInterrupt):
        view_from(data_config(tmp_path), None)
    page = tmp_path / "page/index.html"
    assert not index_of(page)["is_complete"]
    monkeypatch.undo()
    view_from(data_config(tmp_path), None)
    assert "6 episodes, 3 of them written before" in capsys.readouterr().out
    assert index_of(page)["is_complete"]
    assert [line["id"] for line in index_of(page)["episodes"]] == list("123456")
    assert not list((tmp_path / "page").rglob("*.tmp-*"))


def test_the_number_of_episodes_is_bounded_and_said(tmp_path):
    write_r2r(tmp_path / "data", 6)
    page = view_from(data_config(tmp_path, "view.max_episodes=2"), None)
    assert len(index_of(page)["episodes"]) == 2
    assert index_of(page)["is_cut"]
    page = view_from(data_config(tmp_path, "view.episodes=['5']"), None)
    assert [line["id"] for line in index_of(page)["episodes"]] == ["5"]


def test_a_folder_of_other_data_or_of_other_files_is_refused(tmp_path):
    write_r2r(tmp_path / "data", 1)
    view_from(data_config(tmp_path), None)
    write_r2r(tmp_path / "other", 1)
    with pytest.raises(UserError, match=r"view\.json: the page there is of another data set"):
        view_from(data_config(tmp_path, f"data.path={tmp_path / 'other'}"), None)
    (tmp_path / "page/view.json").unlink()
    with pytest.raises(UserError, match="holds other files"):
        view_from(data_config(tmp_path), None)


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("view.max_episodes=0", "view.max_episodes=0"),
        ("view.num_trees=-1", "view.num_trees=-1"),
        ("view.render=always", "view.render=always"),
        ("view.episodes=[none]", "no such episode"),
        ("data.scenes=/no/such", "data.scenes=/no/such"),
        ("data.path=null", "nothing to view"),
    ],
)
def test_wrong_values_are_named(tmp_path, override, named):
    write_r2r(tmp_path / "data", 1)
    with pytest.raises(UserError, match=named):
        view_from(data_config(tmp_path, override), None)


def test_a_run_without_its_episodes_or_of_others_is_refused(run, tmp_path):
    write_r2r(tmp_path / "data", 1)
    file = tmp_path / "data/val/val.json.gz"
    for override, named in (
        ("data.episodes=/gone.json.gz", "its episodes are not at /gone.json.gz"),
        (f"data.episodes={file}", "not the episode file that"),
        ("view.rows=[policy]", "rows there: random, expert"),
    ):
        with pytest.raises(UserError, match=named):
            view_from(view_config(tmp_path / "page", f"view.run={run}", override), None)


def test_a_folder_of_seeds_is_told_from_a_run(run, tmp_path):
    for seed in (2, 10):
        shutil.copytree(run, tmp_path / "seeds" / str(seed))
    for folder, named in (
        ("seeds", r"seeds: holds 2 runs, .*name one of them: \S*/seeds/2, \S*/seeds/10$"),
        ("gone", r"view\.run=\S*/gone: no folder of an evaluation"),
    ):
        with pytest.raises(UserError, match=named):
            view_from(view_config(tmp_path / "page", f"view.run={tmp_path / folder}"), None)
    view_from(view_config(tmp_path / "page", f"view.run={tmp_path}/seeds/10"), None)


def test_a_run_without_scenes_is_shown_by_its_paths(run, tmp_path):
    config = view_config(tmp_path / "page", f"view.run={run}", "view.render=never")
    page = view_from(config, None)
    for track in content_of(page, 0)["tracks"]:
        assert track["frames"] is None
        assert len(track["spots"]) > 1


def test_the_command_draws_the_tree_of_a_ground_truth(tmp_path):
    write_r2r(tmp_path / "data", 1)
    code = main([
        "view", f"data.path={tmp_path / 'data'}", "data.split=val", "data.turn_deg=15",
        "actions=waypoint", "actions.turn_deg=15", f"paths.output_dir={tmp_path / 'page'}",
    ])  # fmt: skip
    assert code == 0
    tree = content_of(tmp_path / "page/index.html", 0)["tree"]
    assert tree["walk"] == "ground truth"
    assert tree["steps"] == [0, 4, 8, 12, 16]  # four forward steps a decision, then STOP
    assert len(tree["parent"]) == len(tree["left"]) == len(tree["lane"])
    num_labels = sum(run[3] == 5 for run in tree["runs"])
    assert num_labels == 5


def test_the_server_answers_its_own_host_and_nothing_outside_its_folder(tmp_path):
    root = tmp_path / "page"
    (root / ".hydra").mkdir(parents=True)
    (root / ".hydra/config.yaml").write_text("secret")
    (root / "index.html").write_text("page")
    (tmp_path / "outside.txt").write_text("secret")
    (root / "link.txt").symlink_to(tmp_path / "outside.txt")
    with make_server(root) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host, port = server.server_address
        assert host == "127.0.0.1"

        def status(path: str, name: str = "") -> int:
            connection = http.client.HTTPConnection(host, port, timeout=10)
            connection.putrequest("GET", path, skip_host=True)
            connection.putheader("Host", name or f"{host}:{port}")
            connection.endheaders()
            found = connection.getresponse().status
            connection.close()
            return found

        assert status("/index.html") == status("/") == 200
        for path in ("/../outside.txt", "/%2e%2e/outside.txt", "/link.txt", "/.hydra/config.yaml"):
            assert status(path) == 404, path
        assert status("/.hydra/") == 404
        assert status("/index.html", "evil.example") == 403
        with pytest.raises(UserError, match=rf"view\.port={port}: is in use"):
            make_server(root, port=port)
        server.shutdown()


def test_the_page_loads_every_script_that_it_has(tmp_path):
    from vla_nav.viewing.site import copy_page

    copy_page(tmp_path)
    names = [line for line in (tmp_path / "index.html").read_text().split('"') if ".js" in line]
    present = {f"page/{file.name}" for file in (tmp_path / "page").glob("*.js")}
    assert set(names) == {*present, "data/index.js"}
