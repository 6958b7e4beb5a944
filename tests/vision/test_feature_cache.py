"""The cache returns what was written, in any order, with repeats, over any cuts."""

import multiprocessing
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from vla_nav.errors import UserError
from vla_nav.vision.cache import FeatureCache
from vla_nav.vision.cache_writer import CacheWriter

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.uint8]


def random_keys(count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    keys = [rng.bytes(16).hex() for _ in range(count)]
    # zeros at either end and neighbours: where fixed-width byte strings and halves go wrong
    special = ["0" * 32, "0" * 31 + "1", "1" + "0" * 31, "f" * 32, "1" + "0" * 28 + "100"]
    return [*special, *keys][:count] if seed % 2 else keys


def random_rows(count: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (200 * torch.rand(count, *shape, generator=generator)).to(dtype)


def write(
    folder: Path,
    keys: list[str],
    rows: torch.Tensor,
    *,
    rows_per_shard: int,
    fingerprint: str = "enc-1",
    num_shards: int | None = None,
) -> None:
    """Write rows under keys; with `num_shards`, stop there without finishing, as a kill would."""
    place = {key: index for index, key in enumerate(keys)}
    with CacheWriter.locked(folder):
        writer = CacheWriter(
            folder,
            fingerprint=fingerprint,
            row_shape=tuple(rows.shape[1:]),
            dtype=rows.dtype,
            encoder={"encoder": "test"},
            rows_per_shard=rows_per_shard,
        )
        for planned in writer.plan(keys)[:num_shards]:
            writer.write(planned, rows[[place[key] for key in planned.keys]])
        if num_shards is None:
            writer.finish()


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != ".lock"}


@settings(max_examples=30, deadline=None)
@given(
    count=st.integers(1, 40),
    rows_per_shard=st.integers(1, 50),
    dtype=st.sampled_from(DTYPES),
    shape=st.sampled_from([(3,), (2, 5), (1, 1), (4, 3, 3)]),
    seed=st.integers(0, 2**20),
    data=st.data(),
)
def test_features_are_the_rows_written(
    tmp_path_factory, count, rows_per_shard, dtype, shape, seed, data
):
    folder = tmp_path_factory.mktemp("cache")
    keys = random_keys(count, seed)
    rows = random_rows(len(keys), shape, dtype, seed)
    write(folder, keys, rows, rows_per_shard=rows_per_shard)
    cache = FeatureCache.open(folder, "enc-1", verify="digests")
    wanted = data.draw(st.lists(st.integers(0, len(keys) - 1), max_size=60))
    found = cache.features([keys[i] for i in wanted])
    assert len(cache) == len(keys)
    assert found.dtype == dtype
    assert torch.equal(found, rows[wanted])
    assert torch.equal(cache.read(cache.rows(keys)), rows)


def test_shards_are_ordinary_safetensors_files(tmp_path):
    keys, rows = random_keys(5, 0), random_rows(5, (2, 3), torch.bfloat16, 0)
    write(tmp_path, keys, rows, rows_per_shard=3)
    with safe_open(tmp_path / "shard-00001.safetensors", "pt") as handle:
        assert torch.equal(handle.get_tensor("features"), rows[3:])
        assert bytes(handle.get_tensor("keys")[0].tolist()).hex() == keys[3]


def test_repeats_are_stored_once(tmp_path):
    keys, rows = random_keys(4, 0), random_rows(4, (2,), torch.float32, 0)
    with CacheWriter.locked(tmp_path):
        writer = CacheWriter(
            tmp_path, fingerprint="e", row_shape=(2,), dtype=torch.float32, encoder={},
            rows_per_shard=10,
        )  # fmt: skip
        (planned,) = writer.plan([*keys, *reversed(keys), keys[2]])
        assert list(planned.keys) == keys
        writer.write(planned, rows)
        writer.finish()
    assert len(FeatureCache.open(tmp_path, "e")) == 4


def test_a_change_of_the_result_does_not_reach_the_cache(tmp_path):
    keys, rows = random_keys(4, 0), random_rows(4, (2,), torch.float32, 0)
    write(tmp_path, keys, rows, rows_per_shard=10)
    cache = FeatureCache.open(tmp_path, "enc-1")
    cache.features(keys).fill_(-1)
    assert torch.equal(cache.features(keys), rows)


def test_a_cache_travels_to_another_process_without_its_rows(tmp_path):
    keys, rows = random_keys(400, 0), random_rows(400, (50,), torch.float32, 0)
    write(tmp_path, keys, rows, rows_per_shard=150)
    sent = pickle.dumps(FeatureCache.open(tmp_path, "enc-1"))
    assert len(sent) < 1000
    assert torch.equal(pickle.loads(sent).features(keys[::7]), rows[::7])


def test_a_missing_frame_says_to_encode(tmp_path):
    keys, rows = random_keys(6, 0), random_rows(6, (2,), torch.float32, 0)
    write(tmp_path, keys[:4], rows[:4], rows_per_shard=3)
    cache = FeatureCache.open(tmp_path, "enc-1")
    with pytest.raises(UserError, match=rf"{keys[4]}.*2 of 3.*run `vla-nav encode`"):
        cache.features([keys[0], keys[4], keys[5]])
    assert keys[0] in cache
    assert keys[4] not in cache
    with pytest.raises(UserError, match="'xyz': a frame key is 32 hexadecimal digits"):
        cache.features([keys[0], "xyz"])
    with pytest.raises(UserError, match="32 hexadecimal digits"):
        cache.features([keys[0][:-2], keys[1] + "00"])  # right in sum


@pytest.mark.parametrize("num_shards", [0, 1, 2, 3])
def test_an_interrupted_cache_finishes_to_the_same_bytes(tmp_path, num_shards):
    keys, rows = random_keys(10, 1), random_rows(10, (3, 2), torch.bfloat16, 0)
    write(tmp_path / "whole", keys, rows, rows_per_shard=3)
    cut = tmp_path / "cut"
    write(cut, keys, rows, rows_per_shard=3, num_shards=num_shards)
    with pytest.raises(UserError, match="no finished feature cache here; run `vla-nav encode`"):
        FeatureCache.open(cut, "enc-1")
    (cut / "shard-00003.safetensors.tmp-123").write_bytes(b"half a shard")
    write(cut, keys, rows, rows_per_shard=3)
    assert contents(cut) == contents(tmp_path / "whole")


def test_frames_added_later_leave_the_old_shards_alone(tmp_path):
    keys, rows = random_keys(10, 1), random_rows(10, (3,), torch.float32, 0)
    write(tmp_path, keys[:7], rows[:7], rows_per_shard=3)
    before = contents(tmp_path)
    write(tmp_path, keys, rows, rows_per_shard=3)
    after = contents(tmp_path)
    assert all(after[name] == data for name, data in before.items() if name.startswith("shard"))
    assert sorted(set(after) - set(before)) == ["index-10.safetensors", "shard-00003.safetensors"]
    assert torch.equal(FeatureCache.open(tmp_path, "enc-1").features(keys), rows)


def test_a_finished_cache_is_not_written_again(tmp_path):
    keys, rows = random_keys(5, 0), random_rows(5, (3,), torch.float32, 0)
    write(tmp_path, keys, rows, rows_per_shard=2)
    before = contents(tmp_path)
    write(tmp_path, keys, rows, rows_per_shard=2)
    assert contents(tmp_path) == before


def test_a_cache_of_another_encoder_is_refused(tmp_path):
    keys, rows = random_keys(5, 0), random_rows(5, (3,), torch.float32, 0)
    write(tmp_path, keys, rows, rows_per_shard=2)
    before = contents(tmp_path)
    with pytest.raises(UserError, match=r"cache\.json: this cache is of encoder enc-1, asked for"):
        FeatureCache.open(tmp_path, "enc-2")
    with pytest.raises(UserError, match="this cache is of encoder enc-1"):
        write(tmp_path, keys, rows, rows_per_shard=2, fingerprint="enc-2")
    assert contents(tmp_path) == before


def test_a_shard_of_another_encoder_is_refused(tmp_path):
    keys, rows = random_keys(5, 0), random_rows(5, (3,), torch.float32, 0)
    write(tmp_path / "a", keys, rows, rows_per_shard=2)
    write(tmp_path / "b", keys, rows, rows_per_shard=2, fingerprint="enc-2")
    name = "shard-00001.safetensors"
    (tmp_path / "a" / name).write_bytes((tmp_path / "b" / name).read_bytes())
    with pytest.raises(UserError, match=f"{name}: a shard of another cache"):
        FeatureCache.open(tmp_path / "a", "enc-1")


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _truncate_to_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def _garble_header(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[0:8] = b"\xff" * 8
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    "damage", [_truncate, _truncate_to_header, _empty, _lengthen, _garble_header, Path.unlink]
)
def test_a_damaged_shard_is_named_and_left_as_it_is(tmp_path, damage):
    keys, rows = random_keys(7, 0), random_rows(7, (3,), torch.float32, 0)
    write(tmp_path, keys, rows, rows_per_shard=3)
    path = tmp_path / "shard-00001.safetensors"
    damage(path)
    before = contents(tmp_path)
    with pytest.raises(UserError, match=r"shard-00001.*run `vla-nav encode` again") as caught:
        FeatureCache.open(tmp_path, "enc-1")
    assert "\n" not in str(caught.value)
    if path.exists():  # encoding again does not replace it either; deleting it is the user's step
        with pytest.raises(UserError, match="shard-00001"):
            write(tmp_path, keys, rows, rows_per_shard=3)
        assert contents(tmp_path) == before
        path.unlink()
    write(tmp_path, keys, rows, rows_per_shard=3)
    assert torch.equal(FeatureCache.open(tmp_path, "enc-1", verify="digests").features(keys), rows)


@pytest.mark.parametrize("place", [-1, -40, -200])
def test_a_flipped_bit_is_found_by_digests(tmp_path, place):
    keys, rows = random_keys(7, 0), random_rows(7, (30,), torch.float32, 0)
    write(tmp_path, keys, rows, rows_per_shard=3)
    path = tmp_path / "shard-00001.safetensors"
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(bytes(data))
    if place == -200:  # in a feature: the sizes are right
        FeatureCache.open(tmp_path, "enc-1")
    else:  # in a key, which the index has otherwise
        with pytest.raises(UserError, match=r"index-7\.safetensors: .* damaged"):
            FeatureCache.open(tmp_path, "enc-1")
    with pytest.raises(UserError, match=r"shard-00001.*does not match its digest"):
        FeatureCache.open(tmp_path, "enc-1", verify="digests")


@pytest.mark.parametrize("name", ["index-7.safetensors", "cache.json"])
def test_a_damaged_index_or_manifest_is_named(tmp_path, name):
    keys, rows = random_keys(7, 0), random_rows(7, (3,), torch.float32, 0)
    write(tmp_path, keys, rows, rows_per_shard=3)
    _truncate(tmp_path / name)
    with pytest.raises(UserError, match=name):
        FeatureCache.open(tmp_path, "enc-1")


@pytest.mark.parametrize("tensor", ["keys", "rows"])
def test_an_index_that_points_elsewhere_is_named(tmp_path, tensor):
    """One flipped byte would hand out another frame's features."""
    keys, rows = random_keys(7, 0), random_rows(7, (3,), torch.float32, 0)
    write(tmp_path, keys, rows, rows_per_shard=3)
    path = tmp_path / "index-7.safetensors"
    index = load_file(path)
    index[tensor].view(np.uint8).reshape(-1)[0] ^= 1
    save_file(index, path)
    with pytest.raises(
        UserError, match=r"index-7\.safetensors: the index is missing, damaged or not"
    ):
        FeatureCache.open(tmp_path, "enc-1")


def test_a_folder_with_another_programs_manifest_is_refused(tmp_path):
    (tmp_path / "cache.json").write_text('{"format": "something else"}')
    with pytest.raises(UserError, match=r"cache\.json: not the manifest"):
        FeatureCache.open(tmp_path)


def _hold(folder: Path, held, release) -> None:
    with CacheWriter.locked(folder):
        held.set()
        release.wait(60)


def test_one_process_writes_at_a_time(tmp_path):
    context = multiprocessing.get_context("fork")
    held, release = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(tmp_path, held, release))
    process.start()
    assert held.wait(60)
    with (
        pytest.raises(UserError, match="`vla-nav encode` is at work here in another process"),
        CacheWriter.locked(tmp_path),
    ):
        pass
    release.set()
    process.join()
    with CacheWriter.locked(tmp_path):
        pass


def test_a_process_that_outlives_the_writer_does_not_hold_the_cache(tmp_path):
    context = multiprocessing.get_context("fork")
    end, go = context.Event(), context.Event()
    with CacheWriter.locked(tmp_path):  # where loader workers are started
        survivor = context.Process(target=end.wait, args=(60,))
        survivor.start()
    go.set()
    process = context.Process(target=_hold, args=(tmp_path, context.Event(), go))
    process.start()
    process.join()
    end.set()
    survivor.join()
    assert process.exitcode == 0


def test_the_size_estimate_covers_what_is_written_and_little_more(tmp_path):
    keys, rows = random_keys(300, 0), random_rows(300, (5, 16), torch.bfloat16, 0)
    with CacheWriter.locked(tmp_path):
        writer = CacheWriter(
            tmp_path, fingerprint="e", row_shape=(5, 16), dtype=torch.bfloat16, encoder={},
            rows_per_shard=70,
        )  # fmt: skip
        plan = writer.plan(keys)
        estimate = writer.estimate_bytes(plan)
        for planned in plan:
            writer.write(planned, rows[: len(planned.keys)])
        writer.finish()
    written = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert written <= estimate <= 1.2 * written


def test_a_full_disk_is_reported_before_any_work(tmp_path, monkeypatch):
    import shutil

    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=2**20))
    with CacheWriter.locked(tmp_path):
        writer = CacheWriter(
            tmp_path, fingerprint="e", row_shape=(2**20,), dtype=torch.float32, encoder={},
            rows_per_shard=4,
        )  # fmt: skip
        with pytest.raises(UserError, match="the feature cache needs 12 MiB and 1 MiB are free"):
            writer.require_space(writer.plan(random_keys(3, 0)))
    assert contents(tmp_path) == {}
