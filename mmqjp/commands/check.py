"""`mmqjp check`: finds every mistake in query files, and summarizes the queries of correct ones."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import click
from rich import box
from rich.table import Table
from rich.text import Text

from mmqjp.commands.console import console, counted
from mmqjp.commands.debug import debug_option
from mmqjp.commands.failure import FAILED, Failure
from mmqjp.commands.options import read_script
from mmqjp.commands.progress import progress_shown
from mmqjp.explain.terms import leaf_sides, names_of_others
from mmqjp.queries.model import HiddenStream, Subscription
from mmqjp.queries.registry import Registry
from mmqjp.session import Session
from xscl import Script

MOST_LISTED = 1_000
"""How many queries of a file are listed. The others are counted."""

COLUMNS = ("query", "kind", "reads", "disjuncts", "value joins", "templates", "shares a row with")
NAME_WIDTH = 40


@click.command()
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@debug_option
def check(files: tuple[Path, ...]) -> None:
    """Check query files: print every mistake with its place and a hint, or a summary of the queries.

    \b
    Example:
      mmqjp check stories.xscl
    """
    failed = False
    for path in files:
        try:
            script = read_script(path)[1]
            summary = summarise(script)
        except Failure as failure:
            failure.show()
            failed = True
            continue
        click.echo(f"{path}: {counted(len(script.queries), 'query', 'queries')}, no mistakes")
        console().print(summary)
        if more := len(script.queries) - summary.row_count:
            click.echo(f"and {counted(more, 'query', 'queries')} more")
    if failed:
        raise click.exceptions.Exit(FAILED)


def summarise(script: Script) -> Table:
    """A table with a row for each query of a script, but at most MOST_LISTED. All are registered in a new, empty
    engine."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    longest = max(map(len, script.names()[:MOST_LISTED]))
    for name in COLUMNS:
        width = min(longest, NAME_WIDTH) if name == "query" else None
        table.add_column(name, overflow="fold", min_width=width)
    with Session("duckdb") as engine:
        with progress_shown():
            engine.ensure(script)
        for subscription in islice(engine.registry.subscriptions.values(), MOST_LISTED):
            table.add_row(*map(Text, _row(engine.registry, subscription)))
    return table


def _row(registry: Registry, subscription: Subscription) -> tuple[str, ...]:
    normal = subscription.normal
    owners: list[Subscription | HiddenStream] = [subscription, *registry.inner_joins(subscription)]
    blocks = list(leaf_sides(normal.conjuncts[0]))
    kind = f"chain of {len(blocks)}" if len(blocks) > 2 else normal.op or "filter"
    joins = sorted({len(conjunct.joins) for conjunct in normal.conjuncts})
    templates = sorted({target.template for owner in owners for target in owner.targets})
    sharers = (t for owner in owners for target in owner.targets for t in registry.of_row(target.row))
    return (
        subscription.name,
        kind,
        ", ".join(dict.fromkeys(block.stream for block in blocks)),
        str(len(normal.conjuncts)),
        "-".join(map(str, dict.fromkeys((joins[0], joins[-1])))),
        ", ".join(map(str, templates)),
        names_of_others(sharers, owners) or "-",
    )
