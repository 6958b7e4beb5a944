"""What a scene file may make the loader read and decode, checked before it does.

    scene file ───── size ──────────────┐
    files it names ─ size, image header ┼─> trimesh ─> image header, sum ─> decoded textures
    images in a glTF ────── image header┘

A few kilobytes of PNG can state a picture of gigabytes, and a sparse file of gigabytes takes no
room on disk; both are refused by their headers and sizes alone.
"""

from __future__ import annotations

import base64
import io
import json
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError
from trimesh.resolvers import FilePathResolver

from vla_nav.errors import UserError

# trimesh reads a file whole and holds its arrays beside it; the scenes of MP3D and HM3D are up to
# a few hundred MB.
MAX_FILE_BYTES = 1 << 30
# 192 MiB as RGB.
MAX_TEXTURE_PIXELS = 8192 * 8192
# 3 GiB as RGB, held twice while the renderer joins them: 256 textures of 2048 x 2048.
MAX_SCENE_PIXELS = 1 << 30
_PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tga", ".tif", ".tiff")


def check_file_size(path: Path, num_bytes: int) -> None:
    """Raise `UserError` for a file that is too large to be read whole."""
    if num_bytes > MAX_FILE_BYTES:
        raise UserError(
            f"{path}: {num_bytes} bytes; a scene file has at most {MAX_FILE_BYTES}; "
            "split or simplify the scene, or download it again"
        )


def check_own_images(path: Path) -> None:
    """Raise `UserError` for an image within a glb or glTF whose header states too many pixels."""
    for index, data in _own_images(path):
        _check_picture(f"{path}: image {index}", data)


class Resolver(FilePathResolver):
    """Gives trimesh the files that a scene names, within the limits.

    trimesh renders a scene without what it cannot read; `refusal` keeps why, to be raised.
    """

    refusal: UserError | None = None

    def get(self, name: str) -> bytes:
        path = self.absolute(name)
        try:
            if path.is_file():
                check_file_size(path, path.stat().st_size)
            data = super().get(name)
            if path.suffix.lower() in _PICTURE_SUFFIXES:
                _check_picture(str(path), data)
        except UserError as error:
            self.refusal = self.refusal or error
            raise
        return data


class Textures:
    """Decodes the images of one scene, each once, up to the limits on one and on their sum."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._num_pixels = 0
        self._decoded: dict[int, tuple[Image.Image, np.ndarray]] = {}

    def decode(self, image: Image.Image) -> np.ndarray:
        """(H, W, 3) uint8; the same array for the same image."""
        if id(image) in self._decoded:
            return self._decoded[id(image)][1]
        _check_size(f"{self._path}: a texture", *image.size)
        self._num_pixels += image.size[0] * image.size[1]
        if self._num_pixels > MAX_SCENE_PIXELS:
            raise UserError(
                f"{self._path}: textures of more than {MAX_SCENE_PIXELS} pixels in all; "
                "export the scene with smaller textures"
            )
        try:
            pixels = np.asarray(image.convert("RGB"))
        except (OSError, SyntaxError, ValueError, EOFError, struct.error) as error:
            raise UserError(
                f"{self._path}: a texture is damaged ({type(error).__name__}: {error}); "
                "write or download the scene again"
            ) from None
        self._decoded[id(image)] = image, pixels  # the image too, so that its id stays its own
        return pixels


def _own_images(path: Path) -> Iterator[tuple[int, bytes]]:
    """(index, file content) of the images within a glb or glTF: in the binary chunk or as text.

    What cannot be found is left out: trimesh says what is wrong with the file.
    """
    num_bytes = path.stat().st_size
    with path.open("rb") as file:
        try:
            length, start = num_bytes, num_bytes
            if path.suffix.lower() == ".glb":
                length = struct.unpack("<4sIIII", file.read(20))[3]
                start = 20 + length + 8  # of the binary chunk
            tree = json.loads(file.read(min(length, num_bytes)))
            images, views = list(tree.get("images", ())), tree.get("bufferViews")
        except (ValueError, AttributeError, TypeError, RecursionError, struct.error):
            return
        for index, image in enumerate(images):
            try:
                if "bufferView" in image:
                    view = views[image["bufferView"]]
                    file.seek(start + view.get("byteOffset", 0))
                    data = file.read(min(view["byteLength"], num_bytes))
                else:
                    data = base64.b64decode(image["uri"].partition("base64,")[2])
            except (LookupError, AttributeError, TypeError, ValueError, OSError, OverflowError):
                continue
            yield index, data


def _check_picture(where: str, data: bytes) -> None:
    try:
        with warnings.catch_warnings():  # Pillow's own size warning: the limit here is ours
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(data))
    except Image.DecompressionBombError as error:  # Pillow's limit, well above ours
        raise UserError(
            f"{where}: {error}; a texture has at most {MAX_TEXTURE_PIXELS} pixels "
            "(8192 x 8192); export the scene with smaller textures"
        ) from None
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, EOFError, struct.error):
        return  # no picture that Pillow reads: trimesh leaves it out
    _check_size(where, *image.size)


def _check_size(where: str, width: int, height: int) -> None:
    if width * height > MAX_TEXTURE_PIXELS:
        raise UserError(
            f"{where}: {width} x {height} pixels; a texture has at most {MAX_TEXTURE_PIXELS} "
            "(8192 x 8192); export the scene with smaller textures"
        )
