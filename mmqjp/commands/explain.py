"""`mmqjp explain`: how the queries of a file are run, and what they share."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

import click

from mmqjp.commands.errors import Failure
from mmqjp.commands.options import debug_option, read_script
from mmqjp.engine import Engine
from mmqjp.explanation import explanation

SHOWN = 10
"""How many of a file's names an error lists."""


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--query", metavar="NAME", help="Only the queries of this name.")
@debug_option
def explain(file: Path, query: str | None) -> None:
    """Explain how queries are run: normal form, join graph, minor, template, Datalog, SQL, and what is shared.

    \b
    Example:
      mmqjp explain stories.xscl --query same_story

    A file's queries are registered together, so what they share is seen also where one of them is shown.
    """
    script = read_script(file)[1]
    with Engine("duckdb") as engine:
        engine.ensure(script)
        names = engine.queries()
        if query is not None and query not in names:
            close = get_close_matches(query, names, 1)
            known = f"did you mean {close[0]}?" if close else f"it has {', '.join(list(names)[:SHOWN])}"
            raise Failure(f"{file} has no query named {query}; {known}")
        click.echo("\n".join(explanation(engine.registry, query)))
