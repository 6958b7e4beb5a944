"""What every backend asks of a camera before it renders."""

from __future__ import annotations

from vla_nav.episodes.types import Camera
from vla_nav.errors import UserError

MIN_HFOV_DEG, MAX_HFOV_DEG = 1.0, 179.0


def check_camera(camera: Camera) -> None:
    """Raise `UserError` for a camera that cannot be rendered."""
    if not MIN_HFOV_DEG <= camera.hfov_deg <= MAX_HFOV_DEG:
        raise UserError(
            f"camera '{camera.name}': hfov_deg {camera.hfov_deg:g} is outside "
            f"[{MIN_HFOV_DEG:g}, {MAX_HFOV_DEG:g}] degrees; a pinhole camera sees less than 180, "
            "use several cameras for more"
        )
    if camera.width_px < 1 or camera.height_px < 1:
        raise UserError(
            f"camera '{camera.name}': image size {camera.width_px}x{camera.height_px} "
            "must be at least 1x1 pixels"
        )
