"""The options of commands that run a service: `stream`, and `serve`, which shows it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import click

from feeds.entries import EntryForm
from feeds.history import Versions
from mmqjp.answers.patterns.places import DRIVER, EXECUTORS
from mmqjp.answers.quota import Quota
from mmqjp.commands.fetching import FetchOptions, fetch_source_options
from mmqjp.commands.lateness import lateness_option, settle_is_given, settle_option
from mmqjp.commands.options import (
    AtLeast,
    bounds_options,
    duration,
    engine_option,
    feeds_option,
    key_values,
    most_versions_option,
    patterns_option,
    plan_option,
    seconds,
    shared_option,
    time_xpath_option,
    versions_option,
)
from mmqjp.documents.batching import BATCH_BYTES, BATCH_DOCUMENTS
from mmqjp.documents.watermarks import SETTLE as LEAST_SETTLE
from mmqjp.documents.watermarks import Lateness, Timing
from mmqjp.service.metrics import LOOPBACK

AVAILABLE_NOW = "available-now"
LATENESS, SETTLE = "1d", "10min"


def trigger(context: click.Context, parameter: click.Parameter, value: str) -> float | None:
    """The time between two looks at the sources, in seconds; None for a single look."""
    if value == AVAILABLE_NOW:
        return None
    found = duration(context, parameter, value)
    if found is None:
        raise click.BadParameter(f"write a duration like 10s, or {AVAILABLE_NOW} to read what is there and stop")
    return found / 1_000_000


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The values of the options of `stream_options`. Durations are microseconds, unless they say otherwise."""

    paths: tuple[Path, ...]
    source_format: str | None
    source_options: dict[str, str]
    state: Path
    queries_path: Path | None
    lists: tuple[str, ...]
    keep_drops: int | None
    options: FetchOptions
    checkpoint: Path | None
    feeds: EntryForm | None
    versions: Versions
    most_versions: int
    time_xpath: str | None
    trigger: float | None
    output: Path | None
    lateness: Lateness
    settle: Lateness
    patterns: str
    idle_after: int | None
    max_ahead: int | None
    keep: int | None
    keep_ids: int | None
    metrics_port: int | None
    metrics_address: str
    batch_size: int
    batch_bytes: int
    max_document: int | None
    max_nodes: int
    max_matches: int
    max_outputs: int
    max_work: int
    max_partial: int
    log_form: str
    question_timeout: float | None
    shared: bool
    plan: str
    master: str | None
    engine: str

    @property
    def timing(self) -> Timing:
        """When documents are late or from the future."""
        return Timing(self.lateness, self.idle_after, self.max_ahead, self.settle)

    @property
    def quota(self) -> Quota:
        """The bounds of each query."""
        return Quota(self.max_matches, self.max_outputs, self.max_work, self.max_partial)

    @property
    def named_sources(self) -> list[str]:
        """The options given that name what to read."""
        named = {"--source": self.paths, "--fetch": self.lists, "--source-format": self.source_format}
        return [name for name, value in named.items() if value]


_OPTIONS = (
    click.option(
        "--source",
        "paths",
        metavar="PATH",
        multiple=True,
        type=click.Path(path_type=Path),
        help="A directory that files are moved into, or a .jsonl file that grows. May be repeated.",
    ),
    click.option(
        "--source-format", metavar="NAME",
        help="Instead of --source: a streaming source of Spark, like kafka, whose values are documents.",
    ),
    click.option(
        "--source-option", "source_options", metavar="KEY=VALUE", multiple=True, callback=key_values,
        help="An option of the source of --source-format. May be repeated.",
    ),
    click.option(
        "--state",
        "--warehouse",
        "state",
        metavar="DIR",
        required=True,
        type=click.Path(file_okay=False, path_type=Path),
        help="Where to keep queries, documents, matches and offsets.",
    ),
    click.option(
        "--queries",
        "queries_path",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Queries to start with, in XSCL. They replace those of the same names. To change them later, use "
        "subscribe and unsubscribe.",
    ),
    fetch_source_options,
    click.option(
        "--checkpoint", metavar="DIR", type=click.Path(file_okay=False, path_type=Path),
        help="Where Spark keeps the state of its streaming query. Default: in the directory of --state.",
    ),
    feeds_option,
    versions_option,
    most_versions_option,
    time_xpath_option,
    click.option(
        "--trigger",
        metavar="DURATION",
        default="1s",
        show_default=True,
        callback=trigger,
        help="Longest time between two looks for new documents, and on Spark the time between any two; "
        f"{AVAILABLE_NOW}: read what is there and stop.",
    ),
    click.option(
        "--output",
        metavar="FILE",
        type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
        help="Where to append the output lines. Default, or with -: standard output.",
    ),
    lateness_option(LATENESS),
    settle_option(SETTLE),
    patterns_option(DRIVER, EXECUTORS),
    click.option(
        "--idle-after", callback=duration, metavar="DURATION", default="1h", show_default=True,
        help="How long a stream must be silent before it advances with the clock. INF: never.",
    ),
    click.option(
        "--max-ahead", callback=duration, metavar="DURATION", default="1d", show_default=True,
        help="How far ahead of the clock a document may be. INF: no limit.",
    ),
    click.option(
        "--keep", callback=duration, metavar="DURATION", default="INF", show_default=True,
        help="How long to keep documents, matches, outputs and dead letters that no join needs.",
    ),
    click.option(
        "--keep-ids", callback=duration, metavar="DURATION", default="30d", show_default=True,
        help="How long to recognize a document by its id.",
    ),
    click.option(
        "--metrics-port",
        metavar="PORT",
        type=click.IntRange(0, 65535),
        help="Where to serve Prometheus metrics. 0: any free port.",
    ),
    click.option(
        "--metrics-address", metavar="ADDRESS", default=LOOPBACK, show_default=True, help="The address of that port."
    ),
    click.option(
        "--batch-size", metavar="N", type=AtLeast(1), default=BATCH_DOCUMENTS, show_default=True,
        help="Most documents to process and commit together.",
    ),
    click.option(
        "--batch-bytes", metavar="N", type=AtLeast(1), default=BATCH_BYTES, show_default=True,
        help="Bytes of XML after which a batch ends early.",
    ),
    click.option(
        "--max-document", metavar="N", type=AtLeast(1),
        help="Largest document, in bytes.  [default: 16 MiB]",
    ),
    click.option(
        "--max-nodes", metavar="N", type=AtLeast(1), default=1_000_000, show_default=True,
        help="Most elements and attributes of a document.",
    ),
    bounds_options,
    click.option(
        "--log", "log_form", type=click.Choice(["text", "json"]), default="text", show_default=True,
        help="The format of the events on standard error.",
    ),
    click.option(
        "--question-timeout", callback=seconds, metavar="DURATION", default="5min", show_default=True,
        help="Longest time for a mmqjp query, whatever it asks for. INF: no limit.",
    ),
    shared_option,
    plan_option,
    click.option("--master", metavar="URL", help="The Spark master. Default: Spark runs on this machine."),
    engine_option,
)  # fmt: skip


def stream_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a service. The command receives them as `given`, a StreamOptions."""
    names = [field.name for field in fields(StreamOptions)]

    @functools.wraps(command)
    def gathered(**values: Any) -> Any:
        given = StreamOptions(**{name: values.pop(name) for name in names})
        if given.lists and not settle_is_given():
            given = replace(given, settle=max(LEAST_SETTLE, 2 * given.options.interval))
        return command(**values, given=given)

    for option in reversed(_OPTIONS):
        gathered = option(gathered)
    return gathered
