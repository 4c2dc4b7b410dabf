"""`mmqjp why` and `mmqjp why-not`: show why an output came about, and why there is none."""

from __future__ import annotations

import json
from pathlib import Path

import click

from mmqjp.commands.console import console
from mmqjp.commands.formats import clock_of, utc_option
from mmqjp.commands.manage_queries import client, store_options
from mmqjp.present.output_why import OutputWhy
from mmqjp.present.query_funnels import QueryFunnels
from mmqjp.present.why_not_result import WhyNot
from mmqjp.present.why_not_text import print_funnels, print_why_not
from mmqjp.present.why_text import print_why
from mmqjp.service.beside import WHY, WHY_NOT


@click.command()
@click.argument("id")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@utc_option
@store_options
def why(id: str, as_json: bool, utc: bool, state: Path, wait: float) -> None:
    """Show why an output came about: its documents, the values that joined them, the conditions that held.

    \b
    Examples:
      mmqjp why e3c019be --state state/
      mmqjp why 9 --state state/ --json

    ID is the id of an output as output lines have it, the beginning of one, or its number (seq). A running service
    answers beside its work.
    """
    found = client(state, wait).ask(WHY, {"id": id})
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False))
    else:
        print_why(OutputWhy.from_dict(found), clock_of("table", utc=utc), console())


@click.command("why-not")
@click.argument("query")
@click.argument("documents", nargs=-1, metavar="[DOC]...")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@utc_option
@store_options
def why_not(query: str, documents: tuple[str, ...], as_json: bool, utc: bool, state: Path, wait: float) -> None:
    """Show why documents give no output of a query, or how far the kept documents get in it.

    \b
    Examples:
      mmqjp why-not same_story "Old pier reopens" https://example.org/pier --state state/
      mmqjp why-not same_story --state state/

    QUERY is a name. A DOC is a document's id, as output lines have it, or the address or title of an item if only one
    has it. The first thing that is in the way is told: of one DOC also which kept documents came nearest, and without
    any, how many of the newest 10,000 kept documents get past each part of the query. A running service answers beside
    its work.
    """
    found = client(state, wait).ask(WHY_NOT, {"query": query, "documents": list(documents)})
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False))
    elif documents:
        print_why_not(WhyNot.from_dict(found), clock_of("table", utc=utc), console())
    else:
        print_funnels(QueryFunnels.from_dict(found), console())
