"""Attention over packed trees: the visibility rule, block lists, the backends and their gate."""

from vla_nav.attention.mask import dense_mask, is_visible
from vla_nav.attention.parity import Parity, require_parity
from vla_nav.attention.registry import backend
from vla_nav.attention.types import Backend, Plan

__all__ = ["Backend", "Parity", "Plan", "backend", "dense_mask", "is_visible", "require_parity"]
