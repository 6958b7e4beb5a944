"""What differs between two bodies: one text for each value, so that a refusal can name them all.

    differences(15-degree body, 30-degree body)   ["turn_deg 15.0 != 30.0"]

Turn angle, step, size, sliding and cameras are part of the data. A policy that was trained under
one body and is evaluated under another scores low, and nobody understands why.
"""

from __future__ import annotations

from dataclasses import asdict

from vla_nav.episodes.types import Camera, Embodiment

MOTION = ("radius_m", "height_m", "turn_deg", "step_m", "is_sliding")


def motion_differences(one: Embodiment, other: Embodiment) -> list[str]:
    """What differs in size and motion, cameras left out."""
    return [
        f"{name} {getattr(one, name)} != {getattr(other, name)}"
        for name in MOTION
        if getattr(one, name) != getattr(other, name)
    ]


def camera_differences(one: Camera, other: Camera) -> list[str]:
    """What differs between two cameras, their names left out."""
    a, b = asdict(one), asdict(other)
    return [f"{key} {a[key]} != {b[key]}" for key in a if key != "name" and a[key] != b[key]]


def embodiment_differences(trained: Embodiment, other: Embodiment) -> list[str]:
    """What differs between two embodiments, one text each: `turn_deg 15 != 30`."""
    found = motion_differences(trained, other)
    ours, theirs = ({c.name: c for c in e.cameras} for e in (trained, other))
    for name in sorted(ours.keys() | theirs.keys()):
        mine, yours = ours.get(name), theirs.get(name)
        if mine is None or yours is None:
            found.append(f"camera '{name}' is {'missing' if yours is None else 'additional'}")
        else:
            found += [f"camera '{name}' {text}" for text in camera_differences(mine, yours)]
    return found
