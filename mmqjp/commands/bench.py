"""`mmqjp bench`: runs one of the benchmarks."""

from __future__ import annotations

import sys
from importlib import import_module

import click

from mmqjp.commands.command_line import debug_option

_OF_OTHERS = {
    "adversarial": "stage1", "expert": "whole_path", "latency": "services", "serve": "services", "flat-state": "state",
}  # fmt: skip
"""Modules of benchmarks whose module has another name."""

_NAMES = """stage1 adversarial registration whole-path technical rss state cluster realistic expert peers fanout near
absence latency serve feeds patterns flat-state"""

MODULES = {name: _OF_OTHERS.get(name, name.replace("-", "_")) for name in _NAMES.split()}
"""Benchmark modules, each with a `main`; imported only when run."""


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("name", type=click.Choice(list(MODULES)), metavar="NAME")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[OPTION]...")
@debug_option
def bench(name: str, arguments: tuple[str, ...]) -> None:
    """Run a benchmark and print a table.

    \b
    stage1        finding patterns in documents, compared with lxml, Saxon and elementpath
    adversarial   finding patterns in documents designed to be slow
    registration  registering many queries
    whole-path    documents in, matches out, compared with one query at a time
    technical     joining two fixed documents, as the thesis does
    rss           joining the items of a feed, as the thesis does
    state         a batch beside up to 10 million stored documents
    realistic     lifelike queries with windows: the joins and the whole path
    expert        bytes to output lines, compared with a program written by hand
    peers         beside Apache Flink, Pathway and Spark's stream-stream joins
    fanout        many queries over the same matches, compared with one of them
    near          near-equal headlines, compared with equal ones
    absence       what did not come, in one channel and in many
    latency       from the appearance of a file to its output line, of a running service
    serve         the page of a running service: what visitors cost the engine, and how long they wait
    feeds         feeds to documents, and which library takes the time
    patterns      event patterns: many statements over one stream, as the thesis measures them
    flat-state    a long run on DuckDB, to check that it stays small

    \b
    The options after NAME go to the benchmark; mmqjp bench NAME --help shows them.

    \b
    Examples:
      mmqjp bench stage1 --quick
      mmqjp bench stage1 --csv stage1.csv --json stage1.json --plot stage1
      mmqjp bench whole-path --queries 1000
      mmqjp bench technical --engine spark --quick
      mmqjp bench rss --csv rss.csv --json rss.json --plot rss
    """
    sys.argv = [f"mmqjp bench {name}", *arguments]
    getattr(import_module(f"bench.{MODULES[name]}"), f"bench_{name.replace('-', '_')}")()
