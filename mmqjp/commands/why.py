"""`mmqjp why`: shows why an output came about."""

from __future__ import annotations

import json
from pathlib import Path

import click

from mmqjp.commands.console import console
from mmqjp.commands.formats import clock_of, utc_option
from mmqjp.commands.manage_queries import client, store_options
from mmqjp.present.output_why import OutputWhy
from mmqjp.present.why_text import print_why
from mmqjp.service.beside import WHY


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
