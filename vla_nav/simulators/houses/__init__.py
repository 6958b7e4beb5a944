"""Seeded procedural houses with furniture, routes through them and instructions for the routes."""

from vla_nav.simulators.houses.export import export_house, house_meshes, house_metadata
from vla_nav.simulators.houses.house import House, HouseOptions, generate_house

__all__ = [
    "House",
    "HouseOptions",
    "export_house",
    "generate_house",
    "house_meshes",
    "house_metadata",
]
