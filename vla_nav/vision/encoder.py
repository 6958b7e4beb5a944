"""Any timm model as an encoder of frames: uint8 pixels to full and pooled vision tokens.

    pixels (F, H, W, 3) uint8
      -> resize to image_size (bilinear, back to uint8), normalise with the model's mean and std
      -> feature map (F, h, w, D)
      -> full tokens:   adaptive mean over g x g cells, num_tokens = g*g (or all h*w)
         and, with `fold`, r x c neighbouring cells joined into one token of r*c*D channels
      -> pooled tokens: adaptive mean of the full grid over p x p cells, num_pooled = p*p
    tokens (F, num_full + num_pooled, D): full first, then pooled, each row by row

A frozen encoder runs without gradients in `dtype`, and its output can be cached under
`fingerprint()`. A trainable one keeps float32 weights and computes under autocast to `dtype`.
Batch normalisation always uses its stored statistics: with those of a batch, a frame's tokens
would depend on the other frames, and a packed tree would not equal its flat paths.

Axes: F frames, H x W pixels, h x w grid, D feature channels.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
import xxhash
from torch import Tensor, nn

from vla_nav.errors import UserError, unknown_name
from vla_nav.vision.frames import resize_frames
from vla_nav.vision.timm_models import as_size, create_model, data_config, first_line
from vla_nav.vision.tokens import as_grid, fold_grid, grid_side, pool_grid

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class TimmEncoder(nn.Module):
    """A timm model that turns frames into vision tokens.

    name: a timm model, `list_models()` or with a tag such as `vit_small_patch16_224.augreg_in1k`.
    weights: see `vision/weights.py`; null means random, drawn from `seed`.
    image_size: pixels, one number or (height, width); null means the model's own.
    num_tokens: full tokens per frame, a square number; null means the model's whole grid.
    fold: (rows, columns) of that grid whose cells become the channels of one token.
    num_pooled: pooled tokens per frame, a square number, or 0 for none.
    feature_index: take this stage of the model (negative counts from the end) and drop the later
        ones; null means the model's final features.
    model_kwargs: further arguments of the model's constructor (embed_dim, depth, ...).
    """

    def __init__(
        self,
        name: str,
        *,
        weights: str | None = None,
        image_size: int | tuple[int, int] | None = None,
        num_tokens: int | None = None,
        fold: tuple[int, int] | None = None,
        num_pooled: int = 1,
        dtype: str = "float32",
        freeze: bool = True,
        seed: int = 0,
        feature_index: int | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if dtype not in DTYPES:
            raise unknown_name("vision.dtype", dtype, DTYPES)
        self.name, self.is_frozen, self.dtype = name, freeze, DTYPES[dtype]
        self.feature_index = feature_index
        self.model_kwargs = dict(model_kwargs or {})
        self.model = create_model(name, weights, image_size, seed, self.model_kwargs)
        settings = data_config(self.model)
        self.image_size = as_size(image_size) or settings["input_size"][-2:]
        self.mean, self.std = tuple(settings["mean"]), tuple(settings["std"])  # of RGB in [0, 1]
        if feature_index is not None:
            self._keep_stages_up_to(feature_index)
        self.requires_grad_(not freeze)
        self.train(not freeze)
        self.grid, num_channels = self._probe()
        self._full_side = _side_of("num_tokens", num_tokens) if num_tokens is not None else None
        self._pooled_side = _side_of("num_pooled", num_pooled) if num_pooled else 0
        full_grid = (self._full_side, self._full_side) if self._full_side else self.grid
        self.fold = _checked_fold(fold, full_grid)
        self.feature_dim = num_channels * self.fold[0] * self.fold[1]
        self.num_full = full_grid[0] * full_grid[1] // (self.fold[0] * self.fold[1])
        self.num_pooled = self._pooled_side**2
        if freeze:
            self.model.to(self.dtype)

    @property
    def parameter_dtype(self) -> torch.dtype:
        """The dtype of the weights, which is also that of the tokens."""
        return next(self.model.parameters()).dtype

    @property
    def row_shape(self) -> tuple[int, int]:
        """The shape of one frame's tokens: (num_full + num_pooled, feature_dim)."""
        return self.num_full + self.num_pooled, self.feature_dim

    def forward(self, pixels: Tensor) -> Tensor:
        """The same as `encode`."""
        return self.encode(pixels)

    def encode(self, pixels: Tensor) -> Tensor:
        """Frames (F, H, W, 3) uint8 -> tokens (F, num_full + num_pooled, D), full tokens first."""
        if pixels.dtype != torch.uint8 or pixels.ndim != 4 or pixels.shape[3] != 3:
            raise ValueError(
                f"frames of shape {tuple(pixels.shape)} and type {pixels.dtype}; "
                "allowed: (F, H, W, 3) uint8"
            )
        if pixels.shape[0] == 0:
            return torch.empty(
                (0, *self.row_shape), dtype=self.parameter_dtype, device=pixels.device
            )
        is_mixed = not self.is_frozen and self.dtype != torch.float32
        with (
            torch.set_grad_enabled(torch.is_grad_enabled() and not self.is_frozen),
            torch.autocast(pixels.device.type, dtype=self.dtype, enabled=is_mixed),
        ):
            grid = self._grid(self._normalised(pixels))
            full = fold_grid(
                pool_grid(grid, self._full_side) if self._full_side else grid, *self.fold
            )
            tokens = [full.flatten(1, 2)]
            if self._pooled_side:
                tokens.append(pool_grid(full, self._pooled_side).flatten(1, 2))
            return torch.cat(tokens, dim=1).to(self.parameter_dtype)

    def fingerprint(self) -> str:
        """Names what `encode` computes: `<model>-<32 hex digits>`.

        A digest over the weights (names, shapes, dtype, bytes), the model's arguments, the
        preprocessing and the pooling. Library versions and the device are not part of it.
        """
        digest = xxhash.xxh3_128(json.dumps(self.describe(), sort_keys=True).encode())
        for key, value in sorted(self.model.state_dict().items()):
            if key.endswith("num_batches_tracked"):
                continue
            value = value.detach().contiguous().cpu()
            digest.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.reshape(-1).view(torch.uint8).numpy())
        return f"{self.name}-{digest.hexdigest()}"

    def describe(self) -> dict[str, Any]:
        """Everything but the weights that the tokens depend on, as plain JSON values."""
        return {
            "encoder": self.name,
            "image_size": list(self.image_size),
            "mean": list(self.mean),
            "std": list(self.std),
            "resize": "bilinear, antialiased, uint8",
            "num_full": self.num_full,
            "fold": list(self.fold),
            "num_pooled": self.num_pooled,
            "feature_dim": self.feature_dim,
            "feature_index": self.feature_index,
            "dtype": str(self.dtype if self.is_frozen else self.parameter_dtype),
            "model_kwargs": json.loads(json.dumps(self.model_kwargs, default=str)),
        }

    def train(self, mode: bool = True) -> TimmEncoder:
        """Training mode, except that a frozen model and batch normalisation stay in evaluation."""
        super().train(mode)
        for module in self.model.modules():
            if self.is_frozen or isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.training = False
        return self

    def _probe(self) -> tuple[tuple[int, int], int]:
        """The model's grid (h, w) and number of channels, found by running it on one image."""
        try:
            with torch.no_grad():
                grid = self._grid(torch.zeros(1, 3, *self.image_size))  # (1, h, w, D)
        except UserError:
            raise
        except (AssertionError, RuntimeError, ValueError, TypeError) as error:
            raise UserError(
                f"vision.image_size={list(self.image_size)}: '{self.name}' cannot take images of "
                f"this size: {first_line(error)}"
            ) from None
        return (grid.shape[1], grid.shape[2]), grid.shape[3]

    def _normalised(self, pixels: Tensor) -> Tensor:
        """uint8 (F, H, W, 3) -> (F, 3, *image_size) in the weights' dtype, channels last."""
        resized = resize_frames(pixels, self.image_size).permute(0, 3, 1, 2)
        mean, std = (
            torch.tensor(values, device=pixels.device).view(3, 1, 1)
            for values in (self.mean, self.std)
        )
        # (x / 255 - mean) / std in two passes over the pixels, in place
        return resized.float().mul_(1 / (255 * std)).sub_(mean / std).to(self.parameter_dtype)

    def _grid(self, images: Tensor) -> Tensor:
        """Normalised images (F, 3, H, W) -> the model's feature map (F, h, w, D)."""
        if self.feature_index is not None:
            (features,) = self.model.forward_intermediates(
                images, indices=[self._kept_stage], intermediates_only=True
            )
            return features.permute(0, 2, 3, 1)  # timm returns (F, D, h, w) here
        embed = getattr(self.model, "patch_embed", None)
        try:
            return as_grid(
                self.model.forward_features(images),
                channels=self.model.num_features,
                num_prefix=getattr(self.model, "num_prefix_tokens", 0),
                grid=getattr(embed, "grid_size", None),
            )
        except ValueError as error:
            raise UserError(
                f"vision.name={self.name}: {error}; choose another timm model"
            ) from None

    def _keep_stages_up_to(self, feature_index: int) -> None:
        if not hasattr(self.model, "prune_intermediate_layers"):
            raise UserError(
                f"vision.feature_index={feature_index}: timm gives no intermediate features of "
                f"'{self.name}'; set feature_index to null"
            )
        num_stages = len(self.model.feature_info)
        if not -num_stages <= feature_index < num_stages:
            raise UserError(
                f"vision.feature_index={feature_index}: '{self.name}' has {num_stages} stages; "
                f"allowed: {-num_stages} to {num_stages - 1}, or null"
            )
        self._kept_stage = feature_index % num_stages
        self.model.prune_intermediate_layers([self._kept_stage])


def _side_of(key: str, num_tokens: int) -> int:
    side = grid_side(num_tokens)
    if side is None:
        raise UserError(
            f"vision.{key}={num_tokens}: not a square number; allowed: 1, 4, 9, 16, 25, 36, ..."
        )
    return side


def _checked_fold(fold: tuple[int, int] | None, grid: tuple[int, int]) -> tuple[int, int]:
    rows, columns = fold or (1, 1)
    if rows < 1 or columns < 1 or grid[0] % rows or grid[1] % columns:
        raise UserError(
            f"vision.fold={[rows, columns]}: does not divide the grid of {grid[0]} x {grid[1]} "
            "tokens; allowed: divisors of its rows and columns, or null"
        )
    return rows, columns
