"""The drawing as files: tree.png, tree.svg and tree.html, one page that needs nothing else.

tree.html    the SVG inside, the numbers in a table, and a script of a few lines: the node under
             the pointer keeps its colour, and so do its ancestors, which are what it sees
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader

from vla_nav.files import atomic_path
from vla_nav.verification.drawing import figure_of, png_bytes, svg_bytes
from vla_nav.verification.drawing_words import (
    Drawing,
    legend_entries,
    mask_words,
    pack_words,
    tree_words,
    weight_words,
)

NAMES = ("tree.png", "tree.svg", "tree.html")


def write_drawing(drawing: Drawing, folder: Path) -> tuple[Path, ...]:
    """Write the three files into `folder`; their paths."""
    figure = figure_of(drawing)
    svg = svg_bytes(figure)
    contents = (png_bytes(figure), svg, page_of(drawing, svg.decode()).encode())
    targets = tuple(folder / name for name in NAMES)
    for target, content in zip(targets, contents, strict=True):
        with atomic_path(target) as temporary:
            temporary.write_bytes(content)
    return targets


def page_of(drawing: Drawing, svg: str) -> str:
    """The page around the SVG of the same drawing."""
    environment = Environment(
        loader=PackageLoader("vla_nav.verification", "."), autoescape=True, trim_blocks=True
    )
    template = environment.get_template("drawing.html.j2")
    inline = svg[svg.index("<svg") :]
    return template.render(
        drawing=drawing,
        svg=re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r"\1", inline, count=1),
        legend=legend_entries(drawing),
        words=(
            ("The tree", tree_words(drawing)),
            ("The pack", pack_words(drawing)),
            ("The loss weights", weight_words(drawing)),
            ("The mask", mask_words(drawing)[0]),
            ("Its blocks", mask_words(drawing)[1]),
        ),
        numbers=_numbers(drawing),
        nodes=json.dumps(_nodes(drawing)),
    )


def _numbers(drawing: Drawing) -> list[tuple[str, str]]:
    stats, blocks, tree = drawing.stats, drawing.blocks, drawing.tree
    cut = drawing.partitions
    return [
        ("steps", f"{drawing.num_steps:,}"),
        ("paths K (flat training samples)", f"{stats.num_paths:,}"),
        ("nodes of the tree", f"{tree.num_nodes:,}"),
        ("N_flat, tokens of all paths", f"{stats.num_flat_tokens:,}"),
        ("N_tree, tokens of the tree", f"{stats.num_tree_tokens:,}"),
        ("token bound N_flat / N_tree", f"{stats.token_bound:.2f}"),
        ("POR = 1 - N_tree / N_flat", f"{stats.potential_overlap:.4f}"),
        ("attended pairs, flat and tree", f"{stats.num_flat_pairs:,} and {stats.num_tree_pairs:,}"),
        (
            "frames encoded, flat and tree",
            f"{stats.num_flat_frames:,} and {stats.num_tree_frames:,}",
        ),
        ("targets", f"{len(tree.target_index):,}"),
        ("sum of their weights", f"{tree.loss_weights.sum():g}"),
        (
            f"blocks of {blocks.size}: full, partial, dead",
            f"{blocks.num_full:,}, {blocks.num_partial:,}, {blocks.num_dead:,}",
        ),
        ("visible share of the live blocks", f"{blocks.live_density:.3f}"),
        *(
            []
            if cut is None
            else [
                (f"partitions ({cut.mode})", f"{len(cut.parts):,}"),
                ("gateway keys, summed over them", f"{cut.gateway_tokens:,}"),
                ("tokens computed twice", f"{cut.recomputed_tokens:,}"),
            ]
        ),
    ]


def _nodes(drawing: Drawing) -> dict[str, Any]:
    """What the page's script needs: parents, extents and texts by first token of a run."""
    tree = drawing.tree
    return {
        "parent": tree.node_parent.tolist(),
        "start": tree.node_start.tolist(),
        "depth": tree.position_ids[tree.node_start[:-1]].tolist(),
        "end": tree.subtree_end[tree.node_start[:-1]].tolist(),
        "texts": {str(start): text for start, text in drawing.texts.items()},
    }
