"""Runs commands from other processes on an engine: each once, in its own batch, which also stores the result."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from common.errors import InputError
from feeds.times import Now, now_us
from mmqjp.explain.sharing import sharing
from mmqjp.queries.changes import MetadataFor, UnknownQuery
from mmqjp.queries.model import Subscription
from mmqjp.service.explained import explained
from mmqjp.service.log import Log
from mmqjp.service.match_pages import MATCHES, page_of_matches
from mmqjp.service.question_runner import RUN_BESIDE, question_of
from mmqjp.service.sink_commands import PREFIX as SINK_PREFIX
from mmqjp.service.sink_commands import SINKS
from mmqjp.service.spool import Command, CommandResult, Spool
from mmqjp.service.sql_question import answered
from mmqjp.service.status import status
from mmqjp.session import Session
from mmqjp.syndication.links import setting_of
from mmqjp.tables.commit_metadata import CommitMetadata

RESULT_RETENTION = 24 * 3600 * 1_000_000
"""Microseconds that a result waits to be fetched."""

STATUS = "status"
"""The command that asks for the status."""

Change = Callable[[Session, Mapping[str, Any], MetadataFor], None]
Lookup = Callable[[Session, Mapping[str, Any]], object]
RunSinks = Callable[[Session, Command], object]
"""Runs a command about sinks, and returns its result."""


class BadCommand(InputError, ValueError):
    """A command from another process is unknown, or lacks an argument."""


def no_sinks(engine: Session, command: Command) -> object:
    """Runs no commands about sinks. Raises BadCommand."""
    raise BadCommand(f"unknown command {command.do!r}")


class CommandQueue:
    """The commands of a spool, for the engine that holds the store. Commands of the kinds `skip` are left to others.
    `run_sinks` runs those about sinks."""

    def __init__(
        self, spool: Spool, now: Now = now_us, *, skip: Container[str] = (), run_sinks: RunSinks = no_sinks
    ) -> None:
        self._spool, self._skip, self.run_sinks = spool, skip, run_sinks
        spool.sweep(now() - RESULT_RETENTION)

    def apply(self, engine: Session, log: Log) -> int:
        """Runs the waiting commands. Returns how many there were."""
        waiting = [command for command in self._spool.waiting() if command.do not in self._skip]
        for command in waiting:
            result = run_command(engine, command, self.run_sinks)
            self._spool.answer(command, result)
            error = {} if result.error is None else {"error": result.error}
            log.event("command", do=command.do, **_logged(command.arguments), **error)
        return len(waiting)


def run_command(engine: Session, command: Command, run_sinks: RunSinks = no_sinks) -> CommandResult:
    """Runs a command, unless it was already run before the process was killed, and returns its result."""
    try:
        if command.do == SINKS or command.do.startswith(SINK_PREFIX):
            return CommandResult(run_sinks(engine, command))
        if command.do in RUN_BESIDE:
            return answered(*question_of(engine, command))
        if (lookup := LOOKUPS.get(command.do)) is not None:
            found = lookup(engine, command.arguments)
            return CommandResult(_with_sinks(engine, found, run_sinks) if command.do == STATUS else found)
        if (change := CHANGES.get(command.do)) is None:
            raise BadCommand(f"unknown command {command.do!r}")
        if (known := engine.answer_to(command.id)) is not None:
            return CommandResult.from_json(known)
        names: list[str] = []
        change(engine, command.arguments, partial(_result_notes, command, names))
        return CommandResult(names)
    except Exception as error:
        # A change that fails through a bug or the store ends the service: nobody knows what state it left.
        if not isinstance(error, InputError) and command.do not in {*LOOKUPS, *RUN_BESIDE}:
            raise
        text = str(error)
        return CommandResult(error=text.strip() or type(error).__name__)


def _with_sinks(engine: Session, found: object, run_sinks: RunSinks) -> object:
    """Adds the states of sinks to a status."""
    if run_sinks is no_sinks or not isinstance(found, dict):
        return found
    return found | {"sinks": run_sinks(engine, Command("", SINKS, {}))}


def _result_notes(command: Command, changed: list[str], names: list[str]) -> CommitMetadata:
    """The result of a change, which is committed together with it."""
    changed[:] = names
    return CommitMetadata(answers={command.id: CommandResult(names).to_json()})


def _logged(arguments: Mapping[str, Any]) -> dict[str, object]:
    return {key: value for key, value in arguments.items() if key in ("name", "sql", "add", "backfill")}


# ------------------------------------------------------------ changes


def _subscribe(engine: Session, arguments: Mapping[str, Any], metadata_for: MetadataFor) -> None:
    text, add, backfill = _text(arguments, "text"), bool(arguments.get("add")), bool(arguments.get("backfill"))
    engine.subscribe(text, add=add, backfill=backfill, metadata_for=metadata_for)


def _unsubscribe(engine: Session, arguments: Mapping[str, Any], metadata_for: MetadataFor) -> None:
    engine.unsubscribe(_text(arguments, "name"), metadata_for=metadata_for)


def _pause(engine: Session, arguments: Mapping[str, Any], metadata_for: MetadataFor) -> None:
    engine.pause(_text(arguments, "name"), metadata_for=metadata_for)


def _resume(engine: Session, arguments: Mapping[str, Any], metadata_for: MetadataFor) -> None:
    engine.resume(_text(arguments, "name"), metadata_for=metadata_for)


def _text(arguments: Mapping[str, Any], name: str) -> str:
    """An argument that is text. Raises BadCommand if it is missing or something else."""
    if not isinstance(found := arguments.get(name), str):
        raise BadCommand(f"the command lacks its {name}")
    return found


def _revoke_feed_link(engine: Session, arguments: Mapping[str, Any], metadata_for: MetadataFor) -> None:
    name = _text(arguments, "name")
    revoked = {setting_of(name): str(_revoked(engine, name) + 1)}
    engine.commit_metadata(replace(metadata_for([name]), settings=revoked))


CHANGES: Mapping[str, Change] = {
    "subscribe": _subscribe,
    "unsubscribe": _unsubscribe,
    "pause": _pause,
    "resume": _resume,
    "revoke-feed-link": _revoke_feed_link,
}
"""Commands that change the store. The result of each is the list of names of the queries that it concerns."""


# ------------------------------------------------------------ lookups


def _list(engine: Session, arguments: Mapping[str, Any]) -> object:
    names = dict.fromkeys(s.name for s in engine.registry.subscriptions.values())
    return [_summary(name, engine.registry.named(name)) for name in names]


def _summary(name: str, queries: list[Subscription]) -> dict[str, object]:
    paused = sorted({query.paused for query in queries if query.paused is not None})
    return {"name": name, "queries": len(queries), "paused": "; ".join(paused) or None, "text": queries[0].text}


def _show(engine: Session, arguments: Mapping[str, Any]) -> object:
    name = _text(arguments, "name")
    queries = engine.registry.named(name)
    if not queries:
        raise UnknownQuery(name)
    return [
        {
            "name": name,
            "paused": query.paused,
            "added_at": engine.added_at(query.qid),
            "sees_documents_after": query.since,
            "templates": sorted({target.template for target in query.targets}),
            "text": query.text,
        }
        for query in queries
    ]


def _status(engine: Session, arguments: Mapping[str, Any]) -> object:
    return status(engine).to_dict()


def _feed_link(engine: Session, arguments: Mapping[str, Any]) -> object:
    return _revoked(engine, _text(arguments, "name"))


def _revoked(engine: Session, name: str) -> int:
    """How often the link of the feed of a query, which may be removed by now, was revoked. Raises UnknownQuery."""
    if not engine.registry.named(name) and not engine.removed_queries(name):
        raise UnknownQuery(name)
    return int(engine.setting(setting_of(name)) or 0)


def _counters(engine: Session, arguments: Mapping[str, Any]) -> object:
    costs = engine.costs()
    counted = {"stage1": engine.stage1_counters(), "stage2": engine.stage2_counters()}
    return counted | {"plan": None if costs is None else costs[0]}


def _sharing(engine: Session, arguments: Mapping[str, Any]) -> object:
    """Returns what `mmqjp.explain.sharing.Sharing.from_dict` reads."""
    return sharing(engine).to_dict()


def _explain(engine: Session, arguments: Mapping[str, Any]) -> object:
    """How the queries of a `name` are run, which `mmqjp.service.explained.Explained.from_dict` reads."""
    return explained(engine, _text(arguments, "name")).to_dict()


SHARING, EXPLAIN = "sharing", "explain"
"""The commands that ask what queries share, and how the queries of a name are run."""

LOOKUPS: Mapping[str, Lookup] = {
    "list": _list,
    "show": _show,
    STATUS: _status,
    "feed-link": _feed_link,
    "counters": _counters,
    MATCHES: page_of_matches,
    SHARING: _sharing,
    EXPLAIN: _explain,
}
"""Commands that only read, apart from those that run beside the batches. They run between two batches."""
