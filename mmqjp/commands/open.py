"""Opens what commands run on: the Spark session and the engine that options describe, with the queries of a file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from common.private import is_shared, umask_of
from mmqjp.answers.quota import DEFAULT_QUOTA, Quota
from mmqjp.commands.console import counted
from mmqjp.commands.failure import Failure
from mmqjp.documents.watermarks import Timing
from mmqjp.queries.changes import PublishCycle, SubscribeMode
from mmqjp.session import Session
from mmqjp.state.open_store import open_session
from xscl import Script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNLIMITED = Timing()

NAMED = 5
"""How many queries that end are named."""


def start_session(master: str | None, *, shared: bool = False) -> SparkSession:
    """The session of Spark that the options describe."""
    with umask_of(shared=shared):
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
    read_only: bool = False,
    shared: bool = False,
) -> Session:
    """The engine that the options describe; whoever has it tells of dead letters."""
    with umask_of(shared=shared or (state is not None and is_shared(state))):
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
            quiet=True,
            read_only=read_only,
            shared=shared,
        )


def subscribe(engine: Session, script: Script, path: Path, mode: SubscribeMode) -> list[str]:
    """Registers the queries of a file that are not registered yet, and says which others of the state end for that."""
    before = dict(engine.registry.subscriptions)
    try:
        names = set(engine.ensure(script, mode))
    except PublishCycle as error:
        raise Failure(f"{path}: {error}; PUBLISH under another name, or use another --state") from error
    gone = [before[qid].name for qid in before.keys() - engine.registry.subscriptions.keys()]
    ended, changed = (sorted(name for name in gone if (name in names) is again) for again in (False, True))
    said = []
    if ended:
        said.append(f"{counted(len(ended), 'query', 'queries')} of the state not in {path} ended: {_listed(ended)}")
    if changed:
        said.append(f"{counted(len(changed), 'query', 'queries')} replaced as in {path}: {_listed(changed)}")
    return said


def _listed(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more:,} more" if more > 0 else "")
