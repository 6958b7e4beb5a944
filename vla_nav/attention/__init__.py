"""Attention over packed trees: the visibility rule, block lists, and the backends."""

from vla_nav.attention.mask import dense_mask, is_visible
from vla_nav.attention.registry import backend
from vla_nav.attention.types import Backend, Plan

__all__ = ["Backend", "Plan", "backend", "dense_mask", "is_visible"]
