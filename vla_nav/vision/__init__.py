"""From pixels to vision tokens: timm encoders, projector, caches of features and pixels."""

from vla_nav.vision.cache import FeatureCache
from vla_nav.vision.encoder import TimmEncoder
from vla_nav.vision.frames import as_rgb, resize_frames
from vla_nav.vision.pixels import PixelResizer
from vla_nav.vision.projector import Projector

__all__ = [
    "FeatureCache",
    "PixelResizer",
    "Projector",
    "TimmEncoder",
    "as_rgb",
    "resize_frames",
]
