"""`mmqjp demo`: runs the packaged queries over the packaged feeds, and shows what matched and why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import as_file, files
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from time import perf_counter

import click

from feeds.confined import prepare
from feeds.feed import entry_rows
from feeds.fetch.fetcher import Job, Settings, own_agent
from feeds.files import FEED_SUFFIXES
from feeds.tail import read_documents
from mmqjp.answers.output import Output
from mmqjp.commands.command_line import Failure, debug_option
from mmqjp.commands.console import console
from mmqjp.commands.feeds import fetch_once, read_lists
from mmqjp.commands.formats import chosen_engine, open_engine, tz_option
from mmqjp.commands.options import engine_option, plan_option, read_script
from mmqjp.engine import Session
from mmqjp.present.item import TimeFormat, item_of
from mmqjp.present.newest import shown_outputs
from mmqjp.present.terminal import print_heading, print_match
from mmqjp.service.drops import fetch_directory
from mmqjp.state.engine_choice import DUCKDB, SPARK
from mmqjp.tables.schema import FROM_OUTSIDE
from xscl.syntax import Script


@click.command()
@click.option("--both", is_flag=True, help="Run it on duckdb and then on spark, with the times, and compare the lines.")
@click.option("--serve", "serves", is_flag=True, help="Show it in a browser, until Ctrl-C.")
@click.option("--master", metavar="URL", help="The Spark master. Default: Spark runs on this machine.")
@plan_option
@engine_option
@tz_option
@debug_option
def demo(both: bool, serves: bool, engine: str, plan: str, master: str | None, clock: TimeFormat) -> None:
    """Run the packaged example: standing queries over a few small feeds, with their matches and the reasons.

    \b
    Examples:
      mmqjp demo
      mmqjp demo --both
      mmqjp demo --serve
    """
    if serves:
        if both:
            raise click.UsageError("choose either --both or --serve")
        from mmqjp.commands.serve import serve

        with packaged_feeds() as directory, feeds_served(directory) as addresses, TemporaryDirectory() as state:
            # All are fetched before the service starts, so that it reports matches in the order of their times.
            settings = Settings(own_agent(), spacing=0, allow_private=True)
            fetch_once(Job(read_lists(addresses).feeds, fetch_directory(Path(state)), settings))
            click.echo("mmqjp: all matches are on the page Live, and each query has a page of its own", err=True)
            options = ["--state", state, "--queries", directory / "demo.xscl", "--engine", engine, "--plan", plan]
            options += ["--allow-private", "--address", "127.0.0.1:0", "--open"]
            options += [] if master is None else ["--master", master]
            serve.main(list(map(str, options)), prog_name="mmqjp serve", standalone_mode=False)
        return
    prepare(entry_rows)
    chosen = DUCKDB if both else chosen_engine(engine, master=master).engine
    out = console()
    with example_run(chosen, None if both else master, plan) as found:
        text, script = found.text, found.script
        rows = found.session.sql(FROM_OUTSIDE, trusted=True).to_pylist()
        feeds = len({item_of(row["id"], row["stream"], row["t0"], row["xml"]).site for row in rows})
        count = sum(not query.hidden for query in script.all_queries)
        out.print(f"{count} standing queries, {len(rows)} entries of {feeds} feeds, on {chosen}.")
        about = purposes(text, script)
        order, matches = list(about), shown_outputs(found.session, found.outputs)
        out.print(f"Times are in {clock.zone_at(found.outputs[-1].t1)}.\n")
        by_query = sorted(matches, key=lambda match: order.index(match.output.query))
        for name, some in groupby(by_query, key=lambda match: match.output.query):
            print_heading(name, about[name], out)
            for match in some:
                print_match(match, clock, out)
                out.print()
    count = len(found.outputs)
    if both:
        out.print(f"{count} matches on {DUCKDB} in {found.seconds:.1f} s. The same on {SPARK} ...")
        with example_run(SPARK, master, plan) as again:
            if again.lines != found.lines:
                raise Failure(f"{SPARK} gives different lines: {len(again.outputs)} matches; please report this")
        out.print(f"The same {count} matches on {SPARK} in {again.seconds:.1f} s, most of it for starting Spark.")
        out.print("Now try your own queries and feeds:")
    else:
        out.print(f"{count} matches. Now try your own queries and feeds:")
    out.print("  mmqjp run --queries FILE.xscl --documents DIRECTORY --feeds")
    out.print("See the same in a browser:")
    out.print("  mmqjp demo --serve")


@dataclass(frozen=True, slots=True)
class DemoRun:
    """Result of the packaged example: text, queries, outputs, lines, and seconds from opening to the last output."""

    session: Session
    text: str
    script: Script
    outputs: list[Output]
    lines: bytes
    seconds: float


@contextmanager
def example_run(engine: str, master: str | None, plan: str) -> Iterator[DemoRun]:
    start = perf_counter()
    with packaged_feeds() as directory, open_engine(engine, plan=plan, master=master, settle=None) as opened:
        text, script = read_script(directory / "demo.xscl")
        opened.ensure(script)
        opened.process(read_documents([directory], feeds="item"))
        opened.finish()
        outputs = list(opened.lines())
        lines = b"".join(output.to_line() for output in outputs)
        yield DemoRun(opened, text, script, outputs, lines, perf_counter() - start)


@contextmanager
def packaged_feeds() -> Iterator[Path]:
    with as_file(files("mmqjp.demo")) as directory:
        yield directory


class _FeedHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        return


@contextmanager
def feeds_served(directory: Path) -> Iterator[list[str]]:
    """Serves the feeds of a directory on this machine in the block. Yields their addresses, in order of their names."""
    names = sorted(path.name for path in directory.iterdir() if path.suffix in FEED_SUFFIXES)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_FeedHandler, directory=str(directory))) as server:
        thread = Thread(target=server.serve_forever, name="mmqjp demo", daemon=True)
        thread.start()
        try:
            yield [f"http://127.0.0.1:{server.server_port}/{name}" for name in names]
        finally:
            server.shutdown()
            thread.join()


def purposes(text: str, script: Script) -> dict[str, str]:
    found = {}
    for name, query in zip(script.names(), script.all_queries, strict=True):
        comment: list[str] = []
        for line in reversed(text[: query.span.start].splitlines()):
            if not line.startswith("--"):
                break
            comment.insert(0, line.removeprefix("--").strip())
        found[name] = " ".join(comment)
    return found
