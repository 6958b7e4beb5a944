"""What an encoder promises, on timm's small test models and random pictures."""

import pytest
import torch

from vla_nav.errors import UserError
from vla_nav.vision.encoder import TimmEncoder
from vla_nav.vision.tokens import pool_grid

SMALL_VIT = {"patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}
ENCODERS = {
    "vit": {"name": "vit_tiny_patch16_224", "image_size": 32, "model_kwargs": SMALL_VIT},
    "conv": {"name": "test_convnext", "image_size": 64},
    "batch_norm": {"name": "test_resnet", "image_size": 48},
    "channels_last": {"name": "test_mambaout", "image_size": 64},
    "stage": {"name": "test_convnext", "image_size": 48, "feature_index": 2},
    "oblong": {"name": "test_vit", "image_size": (32, 48)},
}


def make(kind: str, **overrides) -> TimmEncoder:
    return TimmEncoder(**{**ENCODERS[kind], **overrides})


def pictures(num_frames: int, height: int = 37, width: int = 50, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(
        0, 256, (num_frames, height, width, 3), dtype=torch.uint8, generator=generator
    )


@pytest.mark.parametrize("kind", ENCODERS)
def test_tokens_have_the_announced_shape(kind):
    encoder = make(kind, num_pooled=1)
    tokens = encoder.encode(pictures(3))
    assert encoder.num_full == encoder.grid[0] * encoder.grid[1]
    assert tokens.shape == (3, encoder.num_full + 1, encoder.feature_dim)
    assert tokens.shape[1:] == encoder.row_shape
    assert tokens.isfinite().all()
    assert encoder.encode(pictures(0)).shape == (0, *encoder.row_shape)


@pytest.mark.parametrize("kind", ENCODERS)
def test_a_frame_does_not_see_the_other_frames(kind):
    encoder = make(kind, freeze=False)  # as in training, where a batch's statistics would be used
    encoder.train()
    frames = pictures(9)
    others = frames.clone()
    others[1:] = pictures(8, seed=1)
    assert torch.equal(encoder.encode(frames)[0], encoder.encode(others)[0])


@pytest.mark.parametrize("kind", ENCODERS)
def test_batch_size_changes_features_by_rounding_only(kind):
    encoder = make(kind)
    frames = pictures(13)
    together = encoder.encode(frames)
    alone = torch.cat([encoder.encode(frame[None]) for frame in frames])
    # Libraries choose other blockings for other batch sizes, so float32 sums run in another order.
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5 * together.abs().max().item())


@pytest.mark.parametrize("kind", ENCODERS)
def test_tokens_tell_frames_and_places_apart(kind):
    encoder = make(kind)
    full = encoder.encode(pictures(2))[:, : encoder.num_full]
    spread = full.abs().max()
    assert (full[0] - full[1]).abs().max() > 1e-3 * spread
    if encoder.num_full > 1:
        assert (full[:, 0] - full[:, -1]).abs().max() > 1e-3 * spread


def test_full_tokens_pool_the_grid_and_pooled_tokens_pool_the_full_ones():
    whole = make("vit", num_pooled=0)
    pooled = make("vit", num_tokens=4, num_pooled=1)
    assert (whole.num_full, pooled.num_full, pooled.num_pooled) == (16, 4, 1)
    frames = pictures(5)
    grid = whole.encode(frames).unflatten(1, whole.grid)
    tokens = pooled.encode(frames)
    assert torch.equal(tokens[:, :4], pool_grid(grid, 2).flatten(1, 2))
    torch.testing.assert_close(tokens[:, 4], tokens[:, :4].mean(1))


def test_tokens_run_row_by_row():
    encoder = TimmEncoder("test_convnext", image_size=96, num_pooled=0, feature_index=0)
    assert encoder.grid == (24, 24)
    black = torch.zeros(1, 96, 96, 3, dtype=torch.uint8)
    marked = black.clone()
    marked[:, 88:92, 4:8] = 255  # near the lower left corner
    change = (encoder.encode(marked) - encoder.encode(black)).abs().sum(-1).view(24, 24)
    row, column = divmod(int(change.argmax()), 24)
    assert abs(row - 22) <= 1
    assert abs(column - 1) <= 1


def test_normalisation_is_the_models_own():
    encoder = make("vit")
    seen = []
    encoder.model.patch_embed.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    frames = pictures(2, 32, 32)
    encoder.encode(frames)
    expected = (frames.permute(0, 3, 1, 2).double() / 255 - 0.5) / 0.5
    torch.testing.assert_close(seen[0].double(), expected, rtol=0, atol=1e-6)


def test_frozen_encoders_give_no_gradient_and_stay_in_evaluation_mode():
    encoder = make("batch_norm")
    encoder.train()
    assert not any(module.training for module in encoder.model.modules())
    assert not encoder.encode(pictures(2)).requires_grad
    assert not any(p.requires_grad for p in encoder.parameters())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_weight_of_a_trainable_encoder_gets_a_gradient(dtype):
    encoder = make("stage", freeze=False, dtype=dtype)
    tokens = encoder.encode(pictures(3))
    assert tokens.dtype == torch.float32
    (
        tokens * torch.randn(tokens.shape, generator=torch.Generator().manual_seed(0))
    ).sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_training_does_not_move_stored_statistics():
    encoder = make("batch_norm", freeze=False)
    encoder.train()
    before = {k: v.clone() for k, v in encoder.state_dict().items() if "running" in k}
    encoder.encode(pictures(4)).sum().backward()
    assert before
    assert all(torch.equal(encoder.state_dict()[k], v) for k, v in before.items())


def test_double_precision_follows_the_weights():
    encoder = make("vit", freeze=False)
    exact = encoder.encode(pictures(2))
    assert encoder.double().encode(pictures(2)).dtype == torch.float64
    torch.testing.assert_close(
        encoder.encode(pictures(2)).float(), exact, rtol=1e-4, atol=1e-4
    )  # float32 rounding through two blocks


def test_random_weights_come_from_the_seed_alone():
    torch.manual_seed(5)
    first = make("vit", seed=3)
    state = torch.random.get_rng_state()
    torch.manual_seed(6)
    second = make("vit", seed=3)
    assert first.fingerprint() == second.fingerprint()
    torch.manual_seed(5)
    make("vit", seed=4)
    assert torch.equal(state, torch.random.get_rng_state())


def test_fingerprint_changes_with_everything_that_changes_the_tokens():
    variants = [
        make("vit"),
        make("vit", seed=1),
        make("vit", image_size=40),
        make("vit", num_tokens=4),
        make("vit", num_pooled=4),
        make("vit", num_pooled=0),
        make("vit", dtype="bfloat16"),
        make("vit", feature_index=0),
        make("vit", feature_index=1),
        make("vit", model_kwargs={**SMALL_VIT, "num_heads": 3}),
        make("conv"),
    ]
    touched = make("vit")
    with torch.no_grad():
        touched.model.blocks[1].mlp.fc2.bias[7] += 1e-3
    other_mean = make("vit")
    other_mean.mean = (0.4, 0.5, 0.5)
    fingerprints = [encoder.fingerprint() for encoder in (*variants, touched, other_mean)]
    assert len(set(fingerprints)) == len(fingerprints)


def test_fingerprint_does_not_change_with_use():
    encoder = make("batch_norm", freeze=False)
    before = encoder.fingerprint()
    encoder.train()
    encoder.encode(pictures(2)).sum().backward()
    encoder.to(memory_format=torch.channels_last)
    assert encoder.fingerprint() == before
    assert before.startswith("test_resnet-")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "test_vit", "fold": [7, 1]}, r"vision.fold=\[7, 1\]: does not divide the grid"),
        ({"name": "vit_smal_patch16_224"}, r"did you mean 'vit_small_patch16_224'\?"),
        ({"name": "test_vit.nothing"}, "Invalid pretrained tag"),
        ({"name": "test_vit", "dtype": "float31"}, "allowed: bfloat16, float16, float32"),
        ({"name": "test_vit", "num_tokens": 5}, "vision.num_tokens=5: not a square"),
        ({"name": "test_vit", "num_pooled": 2}, "vision.num_pooled=2: not a square"),
        ({"name": "test_vit", "image_size": 0}, "vision.image_size=0"),
        ({"name": "test_vit", "image_size": 40}, r"vision.image_size=\[40, 40\]: 'test_vit'"),
        ({"name": "test_vit", "feature_index": 6}, "allowed: -6 to 5"),
        ({"name": "test_vit", "model_kwargs": {"widht": 3}}, "unexpected keyword argument 'widht'"),
        ({"name": "test_vit", "weights": "/no/such.pth"}, "no such file"),
    ],
)
def test_wrong_settings_give_one_line_with_the_key(arguments, message):
    with pytest.raises(UserError, match=message) as caught:
        TimmEncoder(**arguments)
    assert "\n" not in str(caught.value)


def test_other_pixels_are_refused():
    encoder = make("vit")
    for wrong in (torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.zeros(2, 32, 32, 3)):
        with pytest.raises(ValueError, match="allowed: \\(F, H, W, 3\\) uint8"):
            encoder.encode(wrong)
