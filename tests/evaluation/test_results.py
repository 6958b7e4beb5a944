"""Result files against kills, second writers, damage and other runs."""

import errno
import json

import pytest

from vla_nav.errors import UserError
from vla_nav.evaluation.results import ResultsFile, claim_folder, key_of, missing, read_results


def record(episode_id, **more):
    return {
        "row": "expert",
        "dataset": "d",
        "split": "s",
        "role": "",
        "episode_id": str(episode_id),
        **more,
    }


def test_a_line_torn_at_any_byte_is_cut_and_can_be_written_again(tmp_path):
    with ResultsFile(tmp_path) as results:
        results.append(record(1, sr=1.0))
        results.append(record(2, sr=0.0))
    whole = results.path.read_bytes()
    first = whole.index(b"\n") + 1
    for size in range(first, len(whole)):  # everything but the last newline may be missing
        results.path.write_bytes(whole[:size])
        assert [key[-1] for key in read_results(tmp_path)] == ["1"]
        with ResultsFile(tmp_path) as again:
            again.append(record(2, sr=0.0))
        assert again.path.read_bytes() == whole


def test_a_full_disk_names_the_results_file(tmp_path, monkeypatch):
    def refuse(descriptor, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    with ResultsFile(tmp_path) as results:
        monkeypatch.setattr("os.write", refuse)
        with pytest.raises(OSError, match="No space left") as caught:
            results.append(record(1))
    assert caught.value.filename == str(results.path)


def test_two_processes_cannot_write_one_shard(tmp_path):
    with ResultsFile(tmp_path, shard=1, num_shards=2):
        with pytest.raises(UserError, match="another process"):
            ResultsFile(tmp_path, shard=1, num_shards=2)
        with ResultsFile(tmp_path, shard=0, num_shards=2):
            pass
    with ResultsFile(tmp_path, shard=1, num_shards=2):
        pass


def test_shards_are_read_together_and_what_is_missing_is_known(tmp_path):
    for shard in range(3):
        with ResultsFile(tmp_path, shard=shard, num_shards=3) as results:
            results.append(record(shard))
    records = read_results(tmp_path)
    expected = [key_of(record(i)) for i in range(5)]
    assert [key[-1] for key in missing(expected, records)] == ["3", "4"]


def test_a_key_that_stands_there_twice_is_refused(tmp_path):
    for shard in range(2):
        with ResultsFile(tmp_path, shard=shard, num_shards=2) as results:
            results.append(record(7))
    with pytest.raises(UserError, match="already recorded"):
        read_results(tmp_path)


@pytest.mark.parametrize("damage", [b"{not json}\n", b'{"row": "x"}\n', b"\xff\xfe\n", b"3\n"])
def test_damage_in_mid_file_is_named_with_its_line(tmp_path, damage):
    line = json.dumps(record(1)).encode() + b"\n"
    (tmp_path / "results-000-of-001.jsonl").write_bytes(line + damage + line)
    with pytest.raises(UserError, match="line 2: not a result"):
        read_results(tmp_path)


def test_a_folder_belongs_to_one_run(tmp_path):
    claim_folder(tmp_path, {"seed": 0, "checkpoint": "a"})
    claim_folder(tmp_path, {"seed": 0, "checkpoint": "a"})
    with pytest.raises(UserError, match=r"checkpoint was 'a', is now 'b'.*output_dir"):
        claim_folder(tmp_path, {"seed": 0, "checkpoint": "b"})


def test_numbers_that_json_lacks_are_never_written(tmp_path):
    with ResultsFile(tmp_path) as results, pytest.raises(ValueError, match="not JSON compliant"):
        results.append(record(1, ne_m=float("nan")))
    assert results.path.read_bytes() == b""
