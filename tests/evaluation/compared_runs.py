"""Copies of an evaluation with something changed, and `vla-nav compare` on them."""

import json
import shutil

from worlds import run_command

from vla_nav.evaluation.comparison import refuse_mixing
from vla_nav.evaluation.comparison_runs import read_groups, rows_of


def copied(run, folder, *, facts=None, records=None, drop=0):
    """A copy of a run with other facts (dotted keys), records edited, the last ones dropped."""
    shutil.copytree(run, folder)
    about = json.loads((folder / "run.json").read_text())
    for key, value in (facts or {}).items():
        node, *rest = key.split(".")
        (about[node] if rest else about)[rest[0] if rest else node] = value
    (folder / "run.json").write_text(json.dumps(about))
    (path,) = folder.glob("results-*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if records is not None:
            records(line)
    kept = lines[: len(lines) - drop]
    path.write_text("".join(json.dumps(line) + "\n" for line in kept))
    return folder


def checked(*folders, rows=("expert",), allow=()):
    groups = read_groups([str(folder) for folder in folders])
    return groups, refuse_mixing(groups, rows_of(groups, rows), allow)


def command(tmp_path, *folders, options=()):
    return run_command(
        "compare",
        f"compare.runs=[{','.join(map(str, folders))}]",
        f"paths.output_dir={tmp_path}/out",
        *options,
    )


def table(tmp_path):
    return json.loads((tmp_path / "out" / "compare.json").read_text())
