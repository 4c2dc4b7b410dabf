"""What commands from other processes do to an engine: each once, in a batch of its own, its answer kept with it."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from functools import partial
from typing import Any

from common.errors import InputError
from feeds.document import Clock, now_us
from mmqjp.queries.changes import MetadataFor, UnknownQuery
from mmqjp.queries.model import Subscription
from mmqjp.service.asking import Asking, answered
from mmqjp.service.log import Log
from mmqjp.service.questions import QUERY
from mmqjp.service.spool import Answer, Command, Spool
from mmqjp.service.status import status
from mmqjp.session import Session
from mmqjp.tables.commit_metadata import CommitMetadata

SHELF_LIFE = 24 * 3600 * 1_000_000
"""How long, microseconds, an answer waits for whoever asked."""

Change = Callable[[Session, Mapping[str, Any], MetadataFor], None]
Question = Callable[[Session, Mapping[str, Any]], object]


class BadCommand(InputError, ValueError):
    """A command from another process is none, or lacks an argument."""


class CommandQueue:
    """The commands of a spool, done by the engine that holds the store; `beside` are those that others do."""

    def __init__(self, spool: Spool, now: Clock = now_us, *, beside: Container[str] = ()) -> None:
        self._spool, self._beside = spool, beside
        spool.sweep(now() - SHELF_LIFE)

    def apply(self, engine: Session, log: Log) -> int:
        """Does what is waiting; how many commands that were."""
        waiting = [command for command in self._spool.waiting() if command.do not in self._beside]
        for command in waiting:
            answer = done(engine, command)
            self._spool.answer(command, answer)
            error = {} if answer.error is None else {"error": answer.error}
            log.event("command", do=command.do, **_told(command.arguments), **error)
        return len(waiting)


def done(engine: Session, command: Command) -> Answer:
    """Does a command, if that was not done before a kill, and says what came of it."""
    try:
        if command.do == QUERY:
            return answered(engine, Asking.of(command.arguments))
        if (question := QUESTIONS.get(command.do)) is not None:
            return Answer(question(engine, command.arguments))
        if (change := CHANGES.get(command.do)) is None:
            raise BadCommand(f"no command is called {command.do!r}")
        if (known := engine.answer_to(command.id)) is not None:
            return Answer.from_json(known)
        names: list[str] = []
        change(engine, command.arguments, partial(_noted, command, names))
        return Answer(names)
    except Exception as error:
        # A change that fails for a fault of ours, or of the store's, ends the service: what it left is not known.
        if not isinstance(error, InputError) and command.do not in {*QUESTIONS, QUERY}:
            raise
        text = str(error)
        return Answer(error=text.strip() or type(error).__name__)


def _noted(command: Command, told: list[str], names: list[str]) -> CommitMetadata:
    """The answer to a change, to be committed along with it."""
    told[:] = names
    return CommitMetadata(answers={command.id: Answer(names).to_json()})


def _told(arguments: Mapping[str, Any]) -> dict[str, object]:
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
    """An argument that is a text. Raises BadCommand for one that is missing, or is none."""
    if not isinstance(found := arguments.get(name), str):
        raise BadCommand(f"the command lacks its {name}")
    return found


CHANGES: Mapping[str, Change] = {
    "subscribe": _subscribe,
    "unsubscribe": _unsubscribe,
    "pause": _pause,
    "resume": _resume,
}
"""Commands that change what is kept. Each is answered with the names of the queries that it is about."""


# ------------------------------------------------------------ questions


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


QUESTIONS: Mapping[str, Question] = {"list": _list, "show": _show, "status": _status}
"""Commands that only ask, beside QUERY. They are answered between batches."""
