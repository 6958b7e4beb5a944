"""Measurements: the shapes that are timed, and timing them on a device."""
