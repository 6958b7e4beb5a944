"""Encoding a data set: each frame once, equal to encoding it directly, whatever interrupts it."""

import multiprocessing
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from painted_frames import PaintedFrames

from vla_nav.episodes.frames import frame_key
from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.episodes.lerobot_writer import LeRobotWriter
from vla_nav.episodes.types import (
    MOVE_FORWARD,
    STOP,
    Camera,
    Embodiment,
    Episode,
    ExpertLabel,
    Goal,
    Pose,
    Step,
)
from vla_nav.errors import UserError
from vla_nav.vision.cache import FeatureCache
from vla_nav.vision.encode_run import encode_split, pick_device
from vla_nav.vision.encoder import TimmEncoder
from vla_nav.vision.encoding import encode_frames, unique_frame_keys
from vla_nav.vision.frames import as_rgb, resize_frames
from vla_nav.vision.pixels import PixelResizer

RUN = {
    "batch_size": 4,
    "shard_mib": 1,
    "cameras": None,
    "device": "cpu",
    "verify": "digests",
    "num_workers": 0,
}


def small_encoder() -> TimmEncoder:
    return TimmEncoder("test_convnext", image_size=32, feature_index=1, num_tokens=4)


@pytest.fixture
def one_thread():
    """A forked process cannot use the threads of its parent, so neither side has any."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def encode(source: PaintedFrames, keys, encoder, folder: Path, **overrides) -> FeatureCache:
    arguments = {
        "batch_size": 4,
        "shard_bytes": 10 * 5 * 24 * 4,
        "device": torch.device("cpu"),
        "num_workers": 0,
        "announce": lambda plan: None,
        "advance": lambda num_frames: None,
    }
    return encode_frames(source, keys, encoder, folder, **{**arguments, **overrides})


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != ".lock"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cached_features_equal_encoding_the_same_batch_directly(tmp_path, dtype):
    source = PaintedFrames(8)
    encoder = TimmEncoder("test_convnext", image_size=32, dtype=dtype)
    cache = encode(source, source.keys, encoder, tmp_path, batch_size=4)
    for batch in (source.keys[:4], source.keys[4:]):
        direct = encoder.encode(torch.from_numpy(source.stack(batch)))
        assert torch.equal(cache.features(batch), direct)
    assert cache.fingerprint == encoder.fingerprint()
    assert cache.encoder["image_size"] == [32, 32]


@pytest.mark.parametrize("batch_size", [1, 3, 7, 64])
def test_batch_size_changes_the_cache_by_rounding_only(tmp_path, batch_size):
    source = PaintedFrames(13)
    encoder = small_encoder()
    cache = encode(source, source.keys, encoder, tmp_path, batch_size=batch_size)
    direct = encoder.encode(torch.from_numpy(source.stack(source.keys)))
    # Libraries choose other blockings for other batch sizes, so float32 sums run in another order.
    torch.testing.assert_close(
        cache.features(source.keys), direct, rtol=1e-4, atol=1e-5 * direct.abs().max().item()
    )


@pytest.mark.parametrize("num_workers", [0, 2])
def test_workers_keep_frames_of_every_size_in_order(tmp_path, num_workers):
    source = PaintedFrames(9, size=(12, 16))
    source.pictures |= PaintedFrames(8, size=(30, 10), seed=1).pictures
    keys = list(source.pictures)
    mixed = [keys[i] for i in np.random.default_rng(0).permutation(len(keys))]
    cache = encode(source, mixed, PixelResizer((12, 16)), tmp_path, num_workers=num_workers)
    for key in keys:
        expected = resize_frames(torch.from_numpy(source.pictures[key])[None], (12, 16))
        assert torch.equal(cache.features([key]), expected)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_unreadable_frame_is_one_line_and_leaves_whole_shards(tmp_path, num_workers):
    source = PaintedFrames(9)
    keys = [*source.keys, "ab" * 16]
    with pytest.raises(UserError, match=f"^painted frames: holds no frame {'ab' * 16}$"):
        encode(source, keys, PixelResizer(8), tmp_path, batch_size=1, shard_bytes=4 * 192,
               num_workers=num_workers)  # fmt: skip
    assert sorted(contents(tmp_path)) == ["shard-00000.safetensors", "shard-00001.safetensors"]


def test_a_second_run_reads_only_frames_that_are_new(tmp_path):
    source = PaintedFrames(12)
    encode(source, source.keys[:7], PixelResizer(8), tmp_path)
    source.num_reads = 0
    encode(source, source.keys[:7], PixelResizer(8), tmp_path)
    assert source.num_reads == 0
    plans = []
    cache = encode(source, source.keys * 2, PixelResizer(8), tmp_path, announce=plans.append)
    assert source.num_reads <= 5 + 1  # the first is read twice, to build the source's index
    assert (plans[0].num_frames, plans[0].num_missing) == (12, 5)
    assert torch.equal(
        cache.features(source.keys),
        resize_frames(torch.from_numpy(source.stack(source.keys)), (8, 8)),
    )


class BlockingFrames(PaintedFrames):
    """Blocks at one frame, after saying so, for as long as the reading process has its parent."""

    def __init__(self, num_frames: int, block_at: int, blocked) -> None:
        super().__init__(num_frames)
        self.blocking_key, self.blocked = self.keys[block_at], blocked

    def read(self, key):
        if key == self.blocking_key:
            self.blocked.set()
            parent = os.getppid()
            while os.getppid() == parent:
                time.sleep(0.05)
        return super().read(key)


def wait_for(is_done) -> None:
    """A worker reads a few batches ahead of the shard that is being written."""
    deadline = time.monotonic() + 60
    while not is_done() and time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.mark.parametrize(("block_at", "num_workers"), [(2, 0), (17, 0), (17, 1), (38, 1)])
def test_a_killed_run_finishes_to_the_same_bytes(tmp_path, one_thread, block_at, num_workers):
    num_frames = 41
    sizes = {"batch_size": 4, "shard_bytes": 8 * 5 * 32 * 4, "num_workers": num_workers}
    context = multiprocessing.get_context("fork")
    source = BlockingFrames(num_frames, block_at, context.Event())
    process = context.Process(
        target=encode, args=(source, source.keys, small_encoder(), tmp_path / "cut"), kwargs=sizes
    )
    process.start()
    assert source.blocked.wait(60)
    wait_for(lambda: len(list((tmp_path / "cut").glob("shard-?????.*"))) == block_at // 8)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert len(list((tmp_path / "cut").glob("shard-?????.*"))) == block_at // 8
    source = PaintedFrames(num_frames)
    for name in ("cut", "whole"):
        encode(source, source.keys, small_encoder(), tmp_path / name, **sizes)
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
    assert len(contents(tmp_path / "whole")) == 6 + 2


def test_a_trainable_encoder_is_not_cached(tmp_path):
    source = PaintedFrames(2)
    encoder = TimmEncoder("test_convnext", image_size=32, freeze=False)
    with pytest.raises(UserError, match=r"vision.freeze=false: .*vision=pixels"):
        encode(source, source.keys, encoder, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


# --- over a recorded data set -----------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """A data set of 3 episodes with an RGB-D camera; the first frame is that of every episode."""
    root = tmp_path_factory.mktemp("data")
    camera = Camera("front", 24, 20, hfov_deg=90.0, height_m=1.2, has_depth=True)
    body = Embodiment((camera,), 0.2, 1.5, turn_deg=30.0, step_m=0.25, is_sliding=True)
    rng = np.random.default_rng(0)
    shared = rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)
    pose = Pose.from_yaw((0.0, 0.0, 0.0), 0.0)
    with LeRobotWriter(
        root / "recorded" / "train", dataset="toy", split="train", embodiment=body,
        decision="primitive",
    ) as writer:  # fmt: skip
        for number in range(3):
            steps, frames = [], {}
            for index, primitive in enumerate((MOVE_FORWARD, MOVE_FORWARD, STOP)):
                rgb = shared if index == 0 else rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)
                depth = rng.uniform(0, 12, (20, 24)).astype(np.float32)
                keys = {"front": frame_key(rgb), "front.depth": frame_key(depth)}
                frames |= {keys["front"]: rgb, keys["front.depth"]: depth}
                label = ExpertLabel((primitive,), (pose,))
                steps.append(Step(pose, keys, (primitive,), (label,)))
            episode = Episode(
                "toy", "train", "", str(number), "scene", "Go on.", pose,
                (Goal(pose.position, 3.0),), np.zeros((2, 3)), body, tuple(steps),
            )  # fmt: skip
            writer.add(episode, frames)
        writer.finalise()
    return root


def test_every_unique_frame_of_a_recorded_split_is_encoded(recorded, capsys):
    cache = encode_split(recorded, "train", PixelResizer((10, 12)), **RUN)
    dataset = LeRobotDataset(recorded / "recorded" / "train")
    keys = unique_frame_keys(dataset, None)
    assert len(cache) == len(keys) == 3 * 3 * 2 - 2
    assert cache.folder == recorded / "cache" / "pixels-10x12" / "train"
    for key in keys:
        frame = torch.from_numpy(as_rgb(dataset.frames.read(key)))
        assert torch.equal(cache.features([key])[0], resize_frames(frame[None], (10, 12))[0])
    said = capsys.readouterr().out
    assert f"{len(keys)} unique frames, 0 encoded already, {len(keys)} to do" in said


def test_cameras_choose_the_frames(recorded):
    dataset = LeRobotDataset(recorded / "recorded" / "train")
    colour, depth = (unique_frame_keys(dataset, [name]) for name in ("front", "front.depth"))
    assert (len(colour), len(depth)) == (7, 9)
    assert set(colour) | set(depth) == set(unique_frame_keys(dataset, None))
    cache = encode_split(recorded, "train", PixelResizer(6), **{**RUN, "cameras": ["front.depth"]})
    assert len(cache) == 9
    with pytest.raises(UserError, match=r"no frames of cameras \['back'\]"):
        encode_split(recorded, "train", PixelResizer(6), **{**RUN, "cameras": ["back"]})


def test_the_features_of_a_split_are_those_of_its_frames(recorded):
    encoder = small_encoder()
    cache = encode_split(recorded, "train", encoder, **{**RUN, "batch_size": 16})
    dataset = LeRobotDataset(recorded / "recorded" / "train")
    keys = unique_frame_keys(dataset, None)
    pixels = np.stack([as_rgb(dataset.frames.read(key)) for key in keys])
    assert torch.equal(cache.features(keys), encoder.encode(torch.from_numpy(pixels)))


def test_wrong_settings_are_refused_before_any_file_is_made(recorded):
    before = sorted(recorded.rglob("*"))
    for key, value in (("batch_size", 0), ("shard_mib", -1), ("device", "gpu9")):
        with pytest.raises(UserError, match=f"encode.{key}={value}"):
            encode_split(recorded, "train", PixelResizer(5), **{**RUN, key: value})
    with pytest.raises(UserError, match="no recorded data set"):
        encode_split(recorded, "val", PixelResizer(5), **RUN)
    assert sorted(recorded.rglob("*")) == before


def test_a_truncated_recording_is_refused_and_left_as_it_is(recorded, tmp_path):
    shutil.copytree(recorded / "recorded", tmp_path / "recorded")
    (path,) = (tmp_path / "recorded" / "train" / "data").rglob("*.parquet")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UserError, match=path.name):
        encode_split(tmp_path, "train", PixelResizer(5), **RUN)
    assert not (tmp_path / "cache").exists()


def test_auto_picks_a_device_that_is_there():
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert pick_device("auto").type == expected
