"""Furniture of recognisable kinds: how large each is, where it stands, which rooms have it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vla_nav.simulators.houses import furniture_shapes as shapes_of
from vla_nav.simulators.houses.shapes import Colour, Part

Builder = Callable[[float, float, float, Colour], list[Part]]


@dataclass(frozen=True, slots=True)
class FurnitureKind:
    """Size ranges (least, most) in metres; `is_central` stands free in the room, else at a wall."""

    width_m: tuple[float, float]
    depth_m: tuple[float, float]
    height_m: tuple[float, float]
    is_central: bool
    build: Builder


FURNITURE: dict[str, FurnitureKind] = {
    "sofa": FurnitureKind((1.7, 2.2), (0.85, 0.95), (0.8, 0.9), False, shapes_of.sofa),
    "armchair": FurnitureKind((0.85, 0.95), (0.85, 0.9), (0.85, 0.95), False, shapes_of.sofa),
    "bed": FurnitureKind((1.4, 1.8), (2.0, 2.1), (0.9, 1.1), False, shapes_of.bed),
    "table": FurnitureKind((1.2, 1.6), (0.8, 0.95), (0.72, 0.76), True, shapes_of.table),
    "round table": FurnitureKind((1.0, 1.3), (1.0, 1.3), (0.72, 0.76), True, shapes_of.round_table),
    "chair": FurnitureKind((0.45, 0.5), (0.45, 0.5), (0.9, 1.0), False, shapes_of.chair),
    "desk": FurnitureKind((1.2, 1.5), (0.65, 0.75), (0.72, 0.76), False, shapes_of.desk),
    "lamp": FurnitureKind((0.5, 0.6), (0.5, 0.6), (1.6, 1.8), False, shapes_of.lamp),
    "plant": FurnitureKind((0.5, 0.65), (0.5, 0.65), (1.2, 1.6), False, shapes_of.plant),
    "bookshelf": FurnitureKind((1.0, 1.5), (0.35, 0.4), (1.9, 2.1), False, shapes_of.bookshelf),
    "cabinet": FurnitureKind((0.9, 1.3), (0.45, 0.5), (0.9, 1.1), False, shapes_of.cabinet),
    "wardrobe": FurnitureKind((1.2, 1.6), (0.55, 0.6), (1.95, 2.1), False, shapes_of.cabinet),
    "fridge": FurnitureKind((0.7, 0.8), (0.65, 0.7), (1.8, 2.0), False, shapes_of.fridge),
    "stove": FurnitureKind((0.65, 0.75), (0.6, 0.65), (0.88, 0.92), False, shapes_of.stove),
    "counter": FurnitureKind((1.6, 2.2), (0.6, 0.65), (0.88, 0.92), False, shapes_of.counter),
    "sink": FurnitureKind((0.7, 0.9), (0.45, 0.5), (0.82, 0.88), False, shapes_of.sink),
    "toilet": FurnitureKind((0.42, 0.46), (0.68, 0.72), (0.85, 0.9), False, shapes_of.toilet),
    "bathtub": FurnitureKind((1.6, 1.8), (0.75, 0.8), (0.55, 0.6), False, shapes_of.bathtub),
    "washing machine": FurnitureKind(
        (0.62, 0.7), (0.6, 0.65), (0.86, 0.9), False, shapes_of.washing_machine
    ),
    "television": FurnitureKind((1.3, 1.6), (0.42, 0.48), (1.3, 1.45), False, shapes_of.television),
    "piano": FurnitureKind((1.4, 1.5), (0.65, 0.75), (1.15, 1.25), False, shapes_of.piano),
    "tent": FurnitureKind((1.2, 1.4), (1.2, 1.4), (1.5, 1.7), True, shapes_of.tent),
    "ball": FurnitureKind((0.65, 0.8), (0.65, 0.8), (0.65, 0.8), False, shapes_of.ball),
    "toy box": FurnitureKind((0.9, 1.1), (0.5, 0.6), (0.45, 0.55), False, shapes_of.toy_box),
    "treadmill": FurnitureKind((0.75, 0.85), (1.6, 1.8), (1.3, 1.4), False, shapes_of.treadmill),
    "bench": FurnitureKind((1.2, 1.5), (0.4, 0.5), (0.45, 0.5), False, shapes_of.bench),
}

# What belongs into a room of a kind: the first are always tried, the rest drawn at random.
ROOM_FURNITURE: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "kitchen": (("fridge", "counter", "stove"), ("table", "chair", "plant", "cabinet")),
    "living room": (("sofa", "television"), ("armchair", "lamp", "plant", "piano", "bookshelf")),
    "bedroom": (("bed", "wardrobe"), ("lamp", "armchair", "cabinet", "chair", "plant")),
    "bathroom": (("bathtub", "sink", "toilet"), ("washing machine", "cabinet", "plant")),
    "dining room": (("table", "cabinet"), ("chair", "chair", "lamp", "plant", "piano")),
    "office": (("desk", "bookshelf"), ("chair", "lamp", "cabinet", "plant", "sofa")),
    "library": (("bookshelf", "bookshelf"), ("armchair", "round table", "lamp", "desk", "sofa")),
    "playroom": (("tent", "toy box"), ("ball", "chair", "bookshelf", "bench", "armchair")),
    "gym": (("treadmill", "bench"), ("ball", "cabinet", "plant", "lamp", "washing machine")),
    "corridor": ((), ("plant", "lamp")),
}
