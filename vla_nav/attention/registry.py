"""Attention backends by name; a backend's module is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module

from vla_nav.attention.types import Backend
from vla_nav.errors import unknown_name

_MODULES = {
    "reference": "vla_nav.attention.reference",
    "sdpa": "vla_nav.attention.sdpa",
    "flex": "vla_nav.attention.flex",
    "flash": "vla_nav.attention.flash",
}


def backend(name: str, *, device: str | None = None) -> Backend:
    """The backend `name`, checked against `device` ("cpu", "cuda") where it is given.

    Raises `UserError` for an unknown name, or a backend that cannot run (and train) there.
    """
    if name not in _MODULES:
        raise unknown_name("attention backend", name, _MODULES)
    found: Backend = import_module(_MODULES[name]).BACKEND
    if device is not None:
        found.check_device(device)
    return found
