"""`mmqjp bench`: runs one of the benchmarks."""

from __future__ import annotations

import sys
from importlib import import_module

import click

from mmqjp.commands.debug import debug_option

MODULES = {
    "stage1": "bench.stage1",
    "adversarial": "bench.adversarial",
    "registration": "bench.registration",
    "whole-path": "bench.__main__",
    "technical": "bench.technical",
    "rss": "bench.rss",
    "realistic": "bench.realistic",
    "feeds": "bench.feeds",
    "flat-state": "bench.flat_state",
}
"""The benchmarks, by the modules with their `main`. None is imported but to be run."""


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("name", type=click.Choice(list(MODULES)), metavar="NAME")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[OPTION]...")
@debug_option
def bench(name: str, arguments: tuple[str, ...]) -> None:
    """Run a benchmark, which prints a table.

    \b
    stage1        finding patterns in documents, beside lxml, Saxon and elementpath
    adversarial   finding patterns in documents made to hurt
    registration  taking in many queries
    whole-path    documents in, matches out, beside one query at a time
    technical     joining two fixed documents, as the thesis does
    rss           joining the items of a feed, as the thesis does
    realistic     lifelike queries with windows: the joins, and the whole path
    feeds         from feeds to documents, and whose time that is
    flat-state    whether a long run on DuckDB stays small

    \b
    What follows the name goes to the benchmark; --help there shows its options.

    \b
    Examples:
      mmqjp bench stage1 --quick
      mmqjp bench stage1 --csv stage1.csv --json stage1.json --plot stage1
      mmqjp bench whole-path --queries 1000
      mmqjp bench technical --engine spark --quick
      mmqjp bench rss --csv rss.csv --json rss.json --plot rss
    """
    sys.argv = [f"mmqjp bench {name}", *arguments]
    import_module(MODULES[name]).main()
