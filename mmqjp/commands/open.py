"""Opens the Spark session and the engine that options describe, and registers the queries of a file."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import click

from common.private import is_shared, umask_of
from feeds.size import input_bytes
from mmqjp.answers.patterns.places import DRIVER
from mmqjp.answers.quota import DEFAULT_QUOTA, Quota
from mmqjp.commands.console import counted
from mmqjp.commands.failure import Failure
from mmqjp.commands.progress import live_line, progress_shown
from mmqjp.documents.watermarks import Timing
from mmqjp.queries.changes import NameTaken, PublishCycle, SubscribeMode
from mmqjp.session import Session
from mmqjp.state.choice import AUTO, MOST_FOR_DUCKDB, SPARK, Choice, choose
from mmqjp.state.open_store import open_session
from mmqjp.text import printable_line
from xscl import Script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNLIMITED = Timing()

NOTHING: Mapping[str, object] = MappingProxyType({})

LISTED_QUERIES = 5
"""How many ended or replaced queries a message lists."""


def chosen_engine(
    engine: str,
    state: Path | None = None,
    master: str | None = None,
    paths: Sequence[Path] = (),
    only_spark: Mapping[str, object] = NOTHING,
    *,
    feeds: bool = False,
) -> Choice:
    """The engine for the option --engine. On a terminal, says which "auto" stands for.

    `paths` are the documents, with or without `feeds`, whose size may decide. `only_spark` has the values of options
    that only Spark takes, by name. Raises UsageError if one of them, or `master`, is given and the engine is another.
    """
    given = [name for name, value in (("--master", master), *only_spark.items()) if value is not None]
    documents = input_bytes(paths, MOST_FOR_DUCKDB, feeds=feeds) if engine == AUTO and paths and not given else None
    choice = choose(engine, state, given[0] if given else None, documents)
    if given and choice.engine != SPARK:
        why = f" ({choice.why})" if choice.why else ""
        raise click.UsageError(f"{given[0]} is for the engine spark, and the engine is {choice.engine}{why}")
    if choice.why and sys.stderr.isatty():
        click.echo(f"mmqjp: on {choice.engine}: {printable_line(choice.why)}", err=True)
    return choice


def start_session(master: str | None, *, shared: bool = False) -> SparkSession:
    """The Spark session that the options describe."""
    with live_line() as show, umask_of(shared=shared):
        show("starting Spark ...")
        return open_session("spark", master)


def open_engine(
    engine: str | SparkSession,
    master: str | None,
    plan: str,
    state: Path | None = None,
    timing: Timing = UNLIMITED,
    *,
    quota: Quota = DEFAULT_QUOTA,
    max_document: int | None = None,
    max_nodes: int | None = None,
    patterns: str = DRIVER,
    read_only: bool = False,
    shared: bool = False,
) -> Session:
    """The engine that the options describe. It logs no dead letters: the caller reports them. A terminal is told
    meanwhile that Spark is being started, and how many stored queries are opened."""
    with live_line() as show, progress_shown(), umask_of(shared=shared or (state is not None and is_shared(state))):
        if engine == SPARK:
            show("starting Spark ...")
        return Session(
            engine,
            state=state,
            plan=plan,
            master=master,
            **asdict(timing),
            max_document=max_document,
            max_nodes=max_nodes,
            max_matches=quota.matches,
            max_outputs=quota.outputs,
            max_work=quota.work,
            max_partial=quota.partial,
            patterns=patterns,
            quiet=True,
            read_only=read_only,
            shared=shared,
        )


def subscribe(engine: Session, script: Script, path: Path, mode: SubscribeMode) -> list[str]:
    """Registers the queries of a file that are not registered yet. Returns messages on those that end or change."""
    before = dict(engine.registry.subscriptions)
    try:
        with progress_shown():
            names = set(engine.ensure(script, mode))
    except PublishCycle as error:
        raise Failure(f"{path}: {error}; PUBLISH under another name, or use another --state") from error
    except NameTaken as error:
        raise Failure(f"{path}: {error}") from error
    gone = [before[qid].name for qid in before.keys() - engine.registry.subscriptions.keys()]
    ended, changed = (sorted(name for name in gone if (name in names) is again) for again in (False, True))
    messages = []
    if ended:
        messages.append(
            f"{counted(len(ended), 'query', 'queries')} of the state ended (not in {path}): {_listed(ended)}"
        )
    if changed:
        messages.append(f"{counted(len(changed), 'query', 'queries')} replaced by those in {path}: {_listed(changed)}")
    return messages


def _listed(names: list[str]) -> str:
    more = len(names) - LISTED_QUERIES
    return ", ".join(names[:LISTED_QUERIES]) + (f" and {more:,} more" if more > 0 else "")
