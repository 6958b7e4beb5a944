"""The page of a profile: one HTML file with its pictures inside, no network needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from vla_nav.files import atomic_path
from vla_nav.profiling.profile_pictures import as_bytes, pictures
from vla_nav.profiling.profile_report import GROUPS
from vla_nav.profiling.profile_table import bytes_text, fact_rows, region_rows
from vla_nav.profiling.regions import PHASES

_TEMPLATE = "profile_page.html.j2"


def write_page(target: Path, result: Mapping[str, Any]) -> list[Path]:
    """Write the page, and its pictures beside it as PNG and SVG; all paths."""
    paths, inside = [target], {}
    for name, figure in pictures(result).items():
        for ending in ("png", "svg"):
            path = target.with_name(f"profile_{name}.{ending}")
            content = as_bytes(figure, ending)
            with atomic_path(path) as temporary:
                temporary.write_bytes(content)
            paths.append(path)
        text = content.decode("utf-8")
        inside[name] = Markup(text[text.index("<svg") :])
    page = (
        _environment()
        .get_template(_TEMPLATE)
        .render(
            result=result,
            groups=GROUPS,
            regions=region_rows(result),
            facts=fact_rows(result),
            phases=PHASES,
            pictures=inside,
        )
    )
    with atomic_path(target) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return paths


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["ms"] = lambda value: "" if not value else f"{value:.2f}"
    environment.filters["percent"] = lambda value: f"{100 * value:.1f} %"
    environment.filters["bytes"] = bytes_text
    environment.filters["pretty"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment
