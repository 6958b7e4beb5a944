"""Languages of RxR-CE: filters by dialect or whole, and a row for each in the report."""

import gzip
import json

import pytest
from worlds import evaluate_config, made_episode, results_of

from vla_nav.errors import UserError
from vla_nav.evaluation.languages import count_languages, is_wanted, language_groups, language_of
from vla_nav.evaluation.runs import evaluate_from
from vla_nav.evaluation.selection import select

LANGUAGES = ("en-US", "en-IN", "hi-IN", "te-IN", "en-US")


def spoken(name, language):
    about = {} if language is None else {"instruction": {"language": language}}
    return made_episode(name, scene=f"s{name}/s.glb", metadata=about)


@pytest.fixture(scope="module")
def rxr_world(world, tmp_path_factory):
    """The small world's episodes with a language each, in turn; the file."""
    source = world / "episodes" / "val_unseen" / "val_unseen.json.gz"
    content = json.loads(gzip.decompress(source.read_bytes()))
    for number, episode in enumerate(content["episodes"]):
        text = episode["instruction"]["instruction_text"]
        language = LANGUAGES[number % len(LANGUAGES)]
        episode["instruction"] = {"instruction_text": text, "language": language}
    path = tmp_path_factory.mktemp("rxr") / "val_unseen_guide.json.gz"
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    return path


def run(world, episodes, folder, *overrides):
    options = [
        f"data.episodes={episodes}",
        "evaluation.rows=[random,expert]",
        "evaluation.allow_mismatch=true",  # the houses' body is not that of RxR-CE
        *overrides,
    ]
    assert evaluate_from(evaluate_config(world, folder, *options)) == 0
    return json.loads((folder / "report.json").read_text())


def test_a_dialect_is_itself_and_its_language():
    assert is_wanted("en-IN", ["en"])
    assert is_wanted("en-IN", ["hi-IN", "en-IN"])
    assert not is_wanted("en-IN", ["en-US"])
    assert not is_wanted("hi-IN", ["en"])
    assert not is_wanted(None, ["en"])
    assert language_groups(LANGUAGES)["en"] == ("en-IN", "en-US")
    assert "hi" not in language_groups(LANGUAGES)  # one dialect needs no second row


def test_episodes_are_counted_and_chosen_by_language():
    episodes = [spoken(str(i), language) for i, language in enumerate([*LANGUAGES, None])]
    assert language_of(episodes[-1]) is None
    assert count_languages(episodes) == {"en-IN": 1, "en-US": 2, "hi-IN": 1, "te-IN": 1}
    chosen = select(episodes, source="x", seed=0, languages=["en"])
    assert {episode.episode_id for episode in chosen} == {"0", "1", "4"}
    with pytest.raises(UserError, match=r"languages=\['de'\] keeps none of the 6.*en-IN, en-US"):
        select(episodes, source="x", seed=0, languages=["de"])
    with pytest.raises(UserError, match="none is stated"):
        select([spoken("0", None)], source="x", seed=0, languages=["en"])


def test_the_report_has_a_row_per_language_that_add_up(world, rxr_world, tmp_path, capsys):
    report = run(world, rxr_world, tmp_path)
    records = results_of(tmp_path)
    rows = {(row["name"], row["language"]): row for row in report["languages"]}
    assert {language for _, language in rows} == {"en", "en-IN", "en-US", "hi-IN", "te-IN"}
    whole = {row["name"]: row for row in report["rows"]}
    for name in ("random", "expert"):
        parts = [rows[name, language] for language in ("en", "hi-IN", "te-IN")]
        assert sum(row["n"] for row in parts) == whole[name]["n"] == 15
        assert sum(row["num_expected"] for row in parts) == 15
        mean = sum(row["n"] * row["ne_m"] for row in parts) / 15
        assert mean == pytest.approx(whole[name]["ne_m"])
        own = [r["ne_m"] for k, r in records.items() if k[0] == name and r["language"] == "hi-IN"]
        assert rows[name, "hi-IN"]["ne_m"] == pytest.approx(sum(own) / len(own))
    assert "random te-IN" in capsys.readouterr().out
    assert "<h2>Languages</h2>" in (tmp_path / "report.html").read_text()


def test_english_alone_is_its_two_dialects(world, rxr_world, tmp_path):
    report = run(world, rxr_world, tmp_path, "evaluation.languages=[en]")
    assert report["rows"][0]["n"] == 9
    assert {record["language"] for record in results_of(tmp_path).values()} == {"en-IN", "en-US"}


def test_data_without_languages_have_no_language_rows(world, tmp_path):
    options = ["evaluation.num_episodes=1", "evaluation.rows=[random]"]
    assert evaluate_from(evaluate_config(world, tmp_path, *options)) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["languages"] == []
    assert "<h2>Languages</h2>" not in (tmp_path / "report.html").read_text()
