"""`mmqjp sharing`: what the registered queries of a store share, and what it costs."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich import box
from rich.table import Table
from rich.text import Text

from common.whole_file import whole_file
from mmqjp.commands.console import console, counted
from mmqjp.commands.manage_queries import client, store_options
from mmqjp.explain.sharing import SharedTemplate, Sharing
from mmqjp.explain.sharing_picture import sharing_picture
from mmqjp.explain.svg import as_file
from mmqjp.service.commands import SHARING
from mmqjp.text import printable_line

NAMES = 3
"""How many names of queries the table has for each template."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print what is shared as JSON.")
@click.option(
    "--svg", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
    help="Also draw queries, rows and templates into a file.",
)  # fmt: skip
@store_options
def sharing(as_json: bool, svg: Path | None, state: Path, wait: float) -> None:
    """Show which templates and rows of R_T the registered queries share, what they cost, and what one more would.

    \b
    Examples:
      mmqjp sharing --state state/
      mmqjp sharing --state state/ --svg sharing.svg

    The costliest templates come first. A running service answers between two batches.
    """
    found = Sharing.from_dict(client(state, wait).ask(SHARING, {}))
    if svg is not None:
        with whole_file(svg) as file:
            file.write(as_file(sharing_picture(found)).encode())
    if as_json:
        click.echo(json.dumps(found.to_dict(), ensure_ascii=False))
        return
    forms = f"{counted(found.queries, 'query', 'queries')}, {found.forms:,} of them different but for names and windows"
    click.echo(forms)
    rows = f"{counted(found.rows, 'row')} of R_T in {counted(found.templates, 'template')}"
    click.echo(f"they have {rows}, over {counted(found.patterns, 'step')} of patterns")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("template", "rows", "subscribers", "last batch", "one more row", "queries"):
        table.add_column(column, overflow="fold", justify="left" if column == "queries" else "right")
    for one in found.shown:
        table.add_row(*map(Text, _row(one)))
    console().print(table)
    if more := found.templates - len(found.shown):
        click.echo(f"and {counted(more, 'template')} more")


def _row(one: SharedTemplate) -> tuple[str, ...]:
    names = list(dict.fromkeys(name for row in one.most_shared for name in row.names))
    rest = " and more" if len(names) > NAMES or one.subscribers > len(names) else ""
    return (
        str(one.template),
        f"{one.rows:,}",
        f"{one.subscribers:,}",
        _milliseconds(one.milliseconds),
        _milliseconds(one.one_more),
        printable_line(", ".join(names[:NAMES]) + rest),
    )


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f} ms"
