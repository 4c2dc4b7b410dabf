"""Runs commands from other processes on an engine: each once, in its own batch, which also stores the result.

Sends commands to the process that holds a store. If no process does, it opens the store and runs them itself.

Matches for other processes: the service that holds a store hands them over in pages, between two batches.

Commands about sinks for a store that no service holds: they change what is stored, and nothing is delivered.

Asks for sinks to be added, changed and tested. What is added or changed is checked first, so that a secret in the
wrong place is written nowhere.

Commands about sinks from other processes: what they ask for, and what they get.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from common.errors import InputError
from feeds.documents import Now, now_us
from join_stage.store.protocol import Outdated, StoreError
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from mmqjp.explain.plan import summarise_sharing
from mmqjp.present.item import PAGE, MatchFilter, OutputPresenter, ShownMatch
from mmqjp.queries.changes import MetadataFor, UnknownQuery
from mmqjp.queries.model import Subscription
from mmqjp.service.log import Log, NullLog
from mmqjp.service.spool import Command, CommandResult, Spool, explain_queries
from mmqjp.service.sql_question import RUN_BESIDE, answer_question, question_of
from mmqjp.service.status import store_status
from mmqjp.sinks.definition import SinkDefinition, SinkTables, named_secrets, read_sink, read_start, refuse_same_path
from mmqjp.sinks.kinds import Kinds, shown_target
from mmqjp.sinks.manager import SinkManager
from mmqjp.sinks.positions import SinkControl, SinkOfFile, SinkState
from mmqjp.sinks.secrets import BadSink, Secrets
from mmqjp.sinks.sink import JobEvent, Message, ReadOutputs, Receiver, Sink
from mmqjp.state.choice import InUse, ReadLock, is_held
from mmqjp.syndication.atom import setting_of
from mmqjp.tables.schema import CommitMetadata

MATCHES = "matches"
"""The command that asks for a page."""

LOOKED_THROUGH = 20_000
"""So many outputs are looked through for one page: the documents that arrive meanwhile wait."""


class BadRequest(InputError, ValueError):
    """A page of matches was asked for in a wrong way."""


def page_of_matches(engine: Session, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the first wanted matches with numbers greater than `after`, and the `after` of the next page, which is
    None if there is none. Raises BadRequest."""
    name, since, last = arguments.get("name"), arguments.get("since"), arguments.get("after")
    if not isinstance(name, str | None) or not isinstance(since, int | None) or not isinstance(last, int):
        raise BadRequest("a page of matches is asked for by a name, a time since, and the number after which it begins")
    wanted, found = MatchFilter(name, since), list[Output]()
    for output in islice(engine.outputs(last), LOOKED_THROUGH):
        last = output.seq
        if wanted.has(output):
            found.append(output)
            if len(found) == PAGE:
                break
    matches = [match.to_dict() for match in OutputPresenter(engine).matches(found)]
    return {"matches": matches, "after": last if last < engine.last_seq else None}


def paged_matches(
    ask: Callable[[str, Mapping[str, Any]], Any], wanted: MatchFilter, after: int
) -> Iterator[ShownMatch]:
    """Yields the wanted matches with numbers greater than `after`. `ask` puts a command to the service."""
    place: int | None = after
    while place is not None:
        page = ask(MATCHES, {"name": wanted.name, "since": wanted.since, "after": place})
        yield from map(ShownMatch.from_dict, page["matches"])
        place = page["after"]


SINKS, PREFIX = "sinks", "sinks-"
"""The command that lists sinks, and what the names of all others begin with."""

SINK_LOOKUPS = frozenset({SINKS, "sinks-secrets", "sinks-tested", "sinks-failed"})
"""Those that change nothing."""

LIVE = "sinks"
"""The directory, in that of the state, where live sinks write their files."""

MOST_FAILED = 1_000
"""So many rows of what a sink did not get are told, the newest ones."""


AnswersOf = Callable[[object], Mapping[str, str]]
"""Returns the answer to the command at hand, by its id, to be committed with what it changes. Given is its result."""

_Lookup = Callable[[Mapping[str, Any]], object]
_SinkChange = Callable[[Mapping[str, Any], AnswersOf], object]


class Sinks(SinkControl, Protocol):
    """The sinks of a service, with their definitions."""

    def definition(self, name: str) -> SinkDefinition:
        """Returns the definition of a sink. Raises UnknownSink."""


class SinkCommands:
    """Runs commands about the sinks of a store. Only the thread that holds the store may call this."""

    def __init__(
        self, engine: Session, sinks: Sinks, secrets: Secrets, state: Path, read_tables: Callable[[], SinkTables]
    ) -> None:
        """`read_tables` reads the configuration files anew."""
        self._engine, self._sinks, self._secrets, self._state = engine, sinks, secrets, state
        self._read_tables = read_tables
        self._looks: Mapping[str, _Lookup] = {
            SINKS: self._list,
            "sinks-secrets": self._list_secrets,
            "sinks-test": self._test,
            "sinks-tested": self._tested,
            "sinks-failed": self._failed,
        }
        self._changes: Mapping[str, _SinkChange] = {
            "sinks-add": self._add,
            "sinks-set": self._set,
            "sinks-pause": self._pause,
            "sinks-resume": self._resume,
            "sinks-replay": self._replay,
            "sinks-remove": self._remove,
            "sinks-reload": self._reload,
        }

    def run(self, command: Command) -> object:
        """Runs a command and returns its result, which JSON can hold. A change is committed together with that, and not
        made again if it was made before a kill. Raises InputError."""
        if (look := self._looks.get(command.do)) is not None:
            return look(command.arguments)
        if (change := self._changes.get(command.do)) is None:
            raise BadSink(f"unknown command {command.do!r}")
        if (known := self._engine.answer_to(command.id)) is not None:
            return CommandResult.from_json(known).result
        return change(command.arguments, lambda result: {command.id: CommandResult(result).to_json()})

    def _list(self, arguments: Mapping[str, Any]) -> object:
        """All sinks; with a name, that one with its definition."""
        name = arguments.get("name")
        if name is None:
            return [self._shown(state) for state in self._sinks.list()]
        definition = self._sinks.definition(_sink_argument(arguments, "name"))
        (state,) = [state for state in self._sinks.list() if state.name == definition.name]
        return self._shown(state) | {"file": definition.file or None, "definition": dict(definition.table)}

    def _shown(self, state: SinkState) -> dict[str, Any]:
        definition = self._sinks.definition(state.name)
        queries = list(definition.queries) or ["*"]
        return state.to_dict() | {"queries": queries, "to": shown_target(definition, self._secrets)}

    def _list_secrets(self, arguments: Mapping[str, Any]) -> object:
        return self._secrets.names()

    def _add(self, arguments: Mapping[str, Any], answers: AnswersOf) -> object:
        definition = self._read(_sink_argument(arguments, "name"), _table(arguments))
        self._sinks.add(definition, answers(definition.name))
        return definition.name

    def _set(self, arguments: Mapping[str, Any], answers: AnswersOf) -> object:
        """Changes some keys. Those that are null get their defaults."""
        name = _sink_argument(arguments, "name")
        known = self._sinks.definition(name)
        if not known.is_live:
            raise SinkOfFile(told_where(known))
        self._sinks.set(self._read(name, merge_changes(known.table, _table(arguments))), answers(name))
        return name

    def _read(self, name: str, table: Mapping[str, Any]) -> SinkDefinition:
        definition = read_live(self._state, name, table)
        refuse_same_path(definition, (self._sinks.definition(state.name) for state in self._sinks.list()))
        self._secrets.check(named_secrets(definition.options))
        return definition

    def _pause(self, arguments: Mapping[str, Any], answers: AnswersOf) -> object:
        self._sinks.pause(name := _sink_argument(arguments, "name"), answers(name))
        return name

    def _resume(self, arguments: Mapping[str, Any], answers: AnswersOf) -> object:
        self._sinks.resume(name := _sink_argument(arguments, "name"), answers(name))
        return name

    def _test(self, arguments: Mapping[str, Any]) -> object:
        self._sinks.test(name := _sink_argument(arguments, "name"))
        return name

    def _tested(self, arguments: Mapping[str, Any]) -> object:
        return self._sinks.tested(_sink_argument(arguments, "name"))

    def _failed(self, arguments: Mapping[str, Any]) -> object:
        """What a sink did not get: outputs that its receiver refused, and those that were given up."""
        name = self._sinks.definition(_sink_argument(arguments, "name")).name  # which has no quotes
        end = f"WHERE sink = '{name}' ORDER BY noted_at DESC, {{}} DESC LIMIT {MOST_FAILED}"
        undelivered = f"SELECT seq, id, tries, reason, noted_at FROM undelivered {end.format('seq')}"
        gaps = f"SELECT first, last, count, reason, noted_at FROM gaps {end.format('first')}"
        return {
            "undelivered": self._engine.sql(undelivered, trusted=True).to_pylist(),
            "gaps": self._engine.sql(gaps, trusted=True).to_pylist(),
        }

    def _replay(self, arguments: Mapping[str, Any], answers: AnswersOf) -> object:
        self._sinks.replay(
            name := _sink_argument(arguments, "name"), read_start(_sink_argument(arguments, "from")), answers(name)
        )
        return name

    def _remove(self, arguments: Mapping[str, Any], answers: AnswersOf) -> object:
        self._sinks.remove(name := _sink_argument(arguments, "name"), answers(name))
        return name

    def _reload(self, arguments: Mapping[str, Any], answers: AnswersOf) -> object:
        tables = self._read_tables()
        self._sinks.reload(tables.sinks.values(), answers(names := sorted(tables.sinks)))
        self._secrets.renew(tables.secrets)
        return names


def read_live(state: Path, name: str, table: Mapping[str, Any]) -> SinkDefinition:
    """Returns the definition of a live sink of a store. Raises BadSink."""
    return read_sink(name, table, state.absolute() / LIVE)


def merge_changes(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a table with changes. Keys that become None are left out."""
    return {key: value for key, value in {**table, **changes}.items() if value is not None}


def told_where(definition: SinkDefinition) -> str:
    """Returns the sentence that says where a sink of the configuration file is changed."""
    return f"the sink {definition.name} is defined in {definition.file}: change it there, and run mmqjp sinks reload"


def _sink_argument(arguments: Mapping[str, Any], name: str) -> str:
    if not isinstance(found := arguments.get(name), str):
        raise BadSink(f"the command lacks its {name}")
    return found


def _table(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(found := arguments.get("table"), Mapping):
        raise BadSink("the command lacks its table")
    return found


RESULT_RETENTION = 24 * 3600 * 1_000_000
"""Microseconds that a result waits to be fetched."""

STATUS = "status"
"""The command that asks for the status."""

_Change = Callable[[Session, Mapping[str, Any], MetadataFor], None]
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
        if command.do == SINKS or command.do.startswith(PREFIX):
            return CommandResult(run_sinks(engine, command))
        if command.do in RUN_BESIDE:
            return answer_question(*question_of(engine, command))
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
    text, add, backfill = (
        _command_argument(arguments, "text"),
        bool(arguments.get("add")),
        bool(arguments.get("backfill")),
    )
    engine.subscribe(text, add=add, backfill=backfill, metadata_for=metadata_for)


def _unsubscribe(engine: Session, arguments: Mapping[str, Any], metadata_for: MetadataFor) -> None:
    engine.unsubscribe(_command_argument(arguments, "name"), metadata_for=metadata_for)


def _pause(engine: Session, arguments: Mapping[str, Any], metadata_for: MetadataFor) -> None:
    engine.pause(_command_argument(arguments, "name"), metadata_for=metadata_for)


def _resume(engine: Session, arguments: Mapping[str, Any], metadata_for: MetadataFor) -> None:
    engine.resume(_command_argument(arguments, "name"), metadata_for=metadata_for)


def _command_argument(arguments: Mapping[str, Any], name: str) -> str:
    """An argument that is text. Raises BadCommand if it is missing or something else."""
    if not isinstance(found := arguments.get(name), str):
        raise BadCommand(f"the command lacks its {name}")
    return found


def _revoke_feed_link(engine: Session, arguments: Mapping[str, Any], metadata_for: MetadataFor) -> None:
    name = _command_argument(arguments, "name")
    revoked = {setting_of(name): str(_revoked(engine, name) + 1)}
    engine.commit_metadata(replace(metadata_for([name]), settings=revoked))


CHANGES: Mapping[str, _Change] = {
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
    name = _command_argument(arguments, "name")
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
    return store_status(engine).to_dict()


def _feed_link(engine: Session, arguments: Mapping[str, Any]) -> object:
    return _revoked(engine, _command_argument(arguments, "name"))


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
    """Returns what `mmqjp.explain.plan.Sharing.from_dict` reads."""
    return summarise_sharing(engine).to_dict()


def _explain(engine: Session, arguments: Mapping[str, Any]) -> object:
    """How the queries of a `name` are run, which `mmqjp.service.spool.Explained.from_dict` reads."""
    return explain_queries(engine, _command_argument(arguments, "name")).to_dict()


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


ANSWER_POLL = 0.05
"""Seconds between two looks for the answer."""

IDLE = frozenset((*LOOKUPS, *RUN_BESIDE, *SINK_LOOKUPS))
"""The commands that change nothing, and that a store which is only read can answer. Nobody needs their results once the
wait is over."""


class CommandError(InputError, ValueError):
    """A command was refused. The message says why."""


class NoAnswer(StoreError):
    """The process that holds the store has not answered in time."""


@dataclass(frozen=True, slots=True)
class Client:
    """Submits commands for the store of a state directory, and waits up to `wait` seconds for each answer.

    `open_store` opens the store when no process holds it. `open_read_only` opens it for commands that change nothing;
    without it, these are submitted too. If it `reads_beside`, it may be opened while another process holds it. `clock`
    returns seconds, and `sleep` waits for some. `run_sinks` runs commands about sinks when no process holds the store.
    """

    state: Path
    open_store: Callable[[], Session]
    wait: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    open_read_only: Callable[[], Session] | None = None
    reads_beside: bool = False
    run_sinks: RunSinks = no_sinks

    def ask(self, do: str, arguments: Mapping[str, Any]) -> Any:
        """The result of a command. Raises CommandError if it was refused; NoAnswer, StoreError, OSError."""
        answer = self._looked_up(do, arguments) or self._submitted(do, arguments)
        if answer.error is not None:
            raise CommandError(answer.error)
        return answer.result

    def _looked_up(self, do: str, arguments: Mapping[str, Any]) -> CommandResult | None:
        """The result of a read-only command that this process can run itself; None if it cannot. How sinks are is known
        to the process that serves them."""
        if do not in IDLE or (do in SINK_LOOKUPS and is_held(self.state)):
            return None
        with self.reading(beside=do in RUN_BESIDE) as engine:
            return None if engine is None else run_command(engine, Command("", do, arguments), self.run_sinks)

    @contextmanager
    def reading(self, *, beside: bool = True) -> Iterator[Session | None]:
        """The store, only to be read.

        None if another process holds the store and nobody may read beside it, or if commands wait that must be run
        first. Only a process that may write to the store can run those, so one that may not does not wait for them. Who
        may read `beside` another process does not wait for them either: that process may answer another dialect of SQL.
        """
        engine = self._opened_read_only(beside=beside)
        if engine is None:
            yield None
        else:
            with engine:
                yield engine

    def _opened_read_only(self, *, beside: bool) -> Session | None:
        if self.open_read_only is None:
            return None
        writes = os.access(self.state, os.W_OK)
        waits = not self.reads_beside and is_held(self.state)
        if writes and (waits or not ((self.reads_beside and beside) or Spool(self.state).is_empty())):
            return None
        try:
            return self.open_read_only()
        except (InUse, Outdated) as error:
            if not writes:
                raise
            if not self.reads_beside or isinstance(error, InUse):
                return None
        self.open_store().close()  # which brings it up to date
        return self.open_read_only()

    def _submitted(self, do: str, arguments: Mapping[str, Any]) -> CommandResult:
        """The result of a command in the spool. The process that holds the store runs it, or this one if none does."""
        spool = Spool(self.state)
        command = spool.submit(do, arguments)
        deadline = self.clock() + self.wait
        try:
            while (answer := spool.take_result(command)) is None:
                if not is_held(self.state) and self._run_here(spool):
                    if (answer := spool.take_result(command)) is not None:
                        break
                    raise StoreError(f"the command was removed from {self.state} by another process; give it again")
                if self.clock() >= deadline:
                    raise self._no_answer(do)
                self.sleep(ANSWER_POLL)
        except BaseException as error:
            # A change that nobody has run yet stays in the spool when the wait is over: it will be made.
            if do in IDLE or not isinstance(error, NoAnswer):
                spool.withdraw(command)
            raise
        return answer

    def _run_here(self, spool: Spool) -> bool:
        """Runs all waiting commands. Returns False if another process holds the store by now."""
        try:
            engine = self.open_store()
        except InUse:
            return False
        with engine:
            CommandQueue(spool, run_sinks=self.run_sinks).apply(engine, NullLog())
        return True

    def _no_answer(self, do: str) -> NoAnswer:
        try:
            ReadLock(self.state).release()
            holder = f"the store in {self.state} is free now"
        except InUse as error:
            holder = str(error)
        later = "ask again later" if do in IDLE else "the command is kept and will run as soon as possible"
        return NoAnswer(f"no answer within {self.wait:g} s: {holder}; {later}")


class NoJobs:
    """Does nothing for any sink."""

    def send(self, job: int, receiver: Receiver, messages: Sequence[Message]) -> None:
        """Sends nothing."""

    def write(self, job: int, sink: Sink, matches: Sequence[ShownMatch]) -> None:
        """Writes nothing."""

    def cancel(self, job: int) -> None:
        """Does nothing: there are no jobs."""

    def events(self, read: ReadOutputs) -> list[JobEvent]:
        """Returns nothing."""
        return []

    def close_receiver(self, receiver: Receiver | Sink) -> None:
        """Does nothing: none was opened."""

    def wait(self, seconds: float) -> None:
        """Returns at once."""

    def close(self, seconds: float, receivers: Sequence[Receiver | Sink] = ()) -> None:
        """Does nothing."""


def run_offline(state: Path, read_tables: Callable[[], SinkTables], engine: Session, command: Command) -> object:
    """Runs a command about the sinks of a store that this process holds, or only reads if that changes nothing.
    `read_tables` reads the configuration. Raises InputError."""
    tables = read_tables()
    secrets = Secrets(tables.secrets, state)
    read = partial(read_live, state)
    manager = SinkManager(
        engine, tables.sinks.values(), Kinds(secrets), NoJobs(), NullLog(), read,
        read_only=command.do in SINK_LOOKUPS,
    )  # fmt: skip
    return SinkCommands(engine, manager, secrets, state, read_tables).run(command)


SINK_TEST_POLL = 0.1
"""Seconds between two looks for the result of a test."""

_Ask = Callable[[str, Mapping[str, Any]], Any]
"""Puts a command to the process that holds the store, and returns its result."""


def add_sink(ask: _Ask, state: Path, name: str, table: Mapping[str, Any]) -> None:
    """Adds a live sink. Raises InputError."""
    _check(ask, read_live(state, name, table))
    ask("sinks-add", {"name": name, "table": table})


def set_sink(ask: _Ask, state: Path, name: str, table: Mapping[str, Any]) -> None:
    """Changes keys of a live sink; those that are None get their defaults. Raises InputError."""
    known = ask(SINKS, {"name": name})
    if known["file"] is None:
        _check(ask, read_live(state, name, merge_changes(known["definition"], table)))
        ask("sinks-set", {"name": name, "table": table})
    else:
        ask("sinks-set", {"name": name, "table": {}})  # which is refused


def try_sink(
    ask: _Ask,
    name: str,
    seconds: float,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> str | None:
    """Has a service send a test message, and waits so long for its result. Returns "" if it was acknowledged, else the
    reason; None if that is not known yet. Raises InputError."""
    ask("sinks-test", {"name": name})
    until = clock() + seconds
    while (found := ask("sinks-tested", {"name": name})) is None and clock() < until:
        sleep(SINK_TEST_POLL)
    return None if found is None else str(found)


def _check(ask: _Ask, definition: SinkDefinition) -> None:
    """Raises BadSink if a definition names secrets that are not known."""
    if names := named_secrets(definition.options):
        known = ask("sinks-secrets", {})
        if any(secret.name not in known for secret in names):
            told = ", ".join(known) or "none"
            raise BadSink(f"a secret is named that is not known (known: {told}); mmqjp sinks secret makes one")
