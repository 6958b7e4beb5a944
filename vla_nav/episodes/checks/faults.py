"""The code of what a reader refuses: readers raise, the doctor counts.

A reader checks what it must to build an `Episode`, so a non-unit rotation or a foreign ground truth
never reaches the checks. Its error names the key; the phrase tells faults of one key apart.
"""

from __future__ import annotations

_FAULTS = (  # start of the key, phrase of the message, code
    ("start_rotation", "norm", "D101"),
    ("ground_truth", "is not in the file", "D201"),
    ("ground_truth", "from the episode's start_position", "D203"),
    ("ground_truth", "locations do not fit", "D204"),
    ("ground_truth", "key forward_steps", "D204"),
    ("ground_truth", "list of points", "D204"),
    ("ground_truth", "has STOP before the end", "D205"),
    ("ground_truth", "key actions must be", "D217"),
    ("ground_truth", "non-finite", "D104"),
    ("info.role", "asked for was", "D404"),
    ("info.geodesic_distance", "finite", "D302"),
    ("", "its time stamps or its fps are wrong", "D509"),
    ("", "the video is cut short", "D509"),
    ("", "nan; allowed", "D104"),
    ("", "inf; allowed", "D104"),
    ("", "[nan", "D104"),
    ("", "[inf", "D104"),
    ("", ", nan", "D104"),
    ("", ", inf", "D104"),
    ("", "-inf", "D104"),
)


def fault_code(key: str, message: str) -> str:
    """The code of a reader's error about `key`; D001 where it has no code of its own."""
    for start, phrase, code in _FAULTS:
        if key.startswith(start) and phrase in message:
            return code
    return "D001"
