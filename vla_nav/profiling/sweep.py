"""The trees of the sweep: how the gain follows depth, branching factor and overlap.

    depth       a caterpillar of few to many frames: bounds grow with it
    branching   factor^depth frames: the same number of frames, less and less deep
    overlap     leaves that grow from a tenth of a frame to many times it: POR falls

POR = 1 - tree tokens / flat tokens (tree/stats.py).
"""

from __future__ import annotations

SWEEP = {
    "depth": ("4x128+12", "8x128+12", "16x128+12", "32x128+12", "64x128+12"),
    "branching": ("1^30x128+12", "2^4x128+12", "5^2x128+12", "30^1x128+12"),
    "overlap": ("16x64+16", "16x64+64", "16x64+256", "16x64+1024"),
}


def sweep_cases() -> tuple[str, ...]:
    """All of them, axis by axis."""
    return tuple(case for cases in SWEEP.values() for case in cases)
