"""Matches as a page: one file without scripts that a browser shows. All text of documents is escaped."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, BinaryIO

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from mmqjp.present.facts import values, why
from mmqjp.present.marks import marked_title
from mmqjp.present.report import Report, counted, source


def write_page(report: Report, out: BinaryIO) -> None:
    """Writes the matches of a report."""
    newest = report.newest
    context = {
        "report": report,
        "zone": "" if newest is None else report.clock.zone_at(newest),
        "minute": report.clock.minute,
        "iso": report.clock.iso,
    }
    _write("matches.html", context, out)


def write_page_rows(header: Iterable[str], rows: Iterable[Iterable[str]], title: str, out: BinaryIO) -> None:
    """Writes a page with a table of texts."""
    _write("rows.html", {"header": list(header), "rows": rows, "title": title}, out)


def _write(name: str, context: Mapping[str, Any], out: BinaryIO) -> None:
    style = files("mmqjp.present").joinpath("templates/page.css").read_text("utf-8")
    # The policy lets the browser use this style and nothing else, whatever a title might smuggle in.
    digest = b64encode(sha256(style.encode()).digest()).decode()
    styled = {"style": Markup(style), "style_digest": digest}  # our own file
    for part in template(name).generate(**context, **styled):
        out.write(part.encode())


def template(name: str) -> Template:
    """Returns one of the templates of this package, in which all texts are escaped."""
    return _environment().get_template(name)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("mmqjp.present"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    functions: dict[str, Callable[..., object]] = {
        "why": why, "values": values, "marked_title": marked_title, "source": source, "counted": counted,
    }  # fmt: skip
    environment.globals.update(functions)
    return environment
