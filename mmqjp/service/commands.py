"""Commands from other processes. A client submits them to the process that holds the store, or opens the store itself
if none does; each runs once, in its own batch, which also stores the result. Covers changes to queries, lookups, pages
of matches, and sinks: definitions are checked before they are submitted, so that a misplaced secret is never written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from common.errors import InputError
from feeds.documents import Now, now_us
from join_stage.store.protocol import Outdated, StoreError
from mmqjp.answers.output import Output
from mmqjp.engine import Session
from mmqjp.explain.plan import summarise_sharing
from mmqjp.present.item import PAGE, MatchFilter, ShownMatch
from mmqjp.present.newest import shown_outputs
from mmqjp.present.query_lookup import exported, query_versions
from mmqjp.queries.changes import MetadataFor, unknown_query
from mmqjp.service.log import Log, NullLog
from mmqjp.service.spool import BadCommand, Command, CommandResult, SendCommand, Spool, argument, text_argument
from mmqjp.service.sql_question import RUN_BESIDE, answer_question, question_of
from mmqjp.service.status import store_status
from mmqjp.sinks.definition import SinkDefinition, SinkTables, named_secrets, read_sink, read_start, refuse_same_path
from mmqjp.sinks.deliverer import Deliverer
from mmqjp.sinks.files import open_destination, shown_target
from mmqjp.sinks.manager import SinkManager
from mmqjp.sinks.positions import SinkState
from mmqjp.sinks.secrets import BadSink, Secrets
from mmqjp.state.engine_choice import InUse, holder_of, is_held
from mmqjp.syndication.atom import setting_of
from mmqjp.tables.schema import CommitMetadata

MATCHES, SHARING, STATUS, TEXTS, EXPORT = "matches", "sharing", "status", "texts", "export"
"""The commands that fetch a page of matches, what queries share, the status, the texts of a name, and of all."""

MOST_EXPORTED = 1_000_000  # maximum number of queries in a script

LOOKED_THROUGH = 20_000  # maximum number of outputs scanned per page, as arriving documents wait meanwhile


def page_of_matches(engine: Session, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the first selected matches numbered above `after`, and the `after` of the next page, or None."""
    name, since, last = arguments.get("name"), arguments.get("since"), arguments.get("after")
    if not isinstance(name, str | None) or not isinstance(since, int | None) or not isinstance(last, int):
        raise BadCommand("a page of matches is asked for by a name, a time since, and the number after which it begins")
    wanted, found, is_more = MatchFilter(name, since), list[Output](), False
    for read, output in enumerate(islice(engine.outputs(last), LOOKED_THROUGH), 1):
        last, is_more = output.seq, read == LOOKED_THROUGH
        if wanted.has(output):
            found.append(output)
            if is_more := len(found) == PAGE or is_more:
                break
    matches = [match.to_dict() for match in shown_outputs(engine, found)]
    return {"matches": matches, "after": last if is_more and last < engine.last_seq else None}


def paged_matches(ask: SendCommand, wanted: MatchFilter, after: int) -> Iterator[ShownMatch]:
    """Yields the selected matches numbered above `after`."""
    place: int | None = after
    while place is not None:
        page = ask(MATCHES, {"name": wanted.name, "since": wanted.since, "after": place})
        yield from map(ShownMatch.from_dict, page["matches"])
        place = page["after"]


SINKS, PREFIX = "sinks", "sinks-"  # the command that lists sinks, and the prefix of all other sink commands
SAVE_SINKS = "sinks-save"  # the command that stores all positions now

SINK_LOOKUPS = frozenset({SINKS, "sinks-secrets", "sinks-tested", "sinks-failed"})
"""The read-only sink commands."""

LIVE = "sinks"  # the directory below the state where live sinks write
MOST_FAILED = 1_000  # maximum number of failed deliveries listed, the newest ones


class SinkCommands:
    """Runs sink commands. Only for the thread that holds the store."""

    def __init__(
        self, engine: Session, sinks: SinkManager, secrets: Secrets, state: Path, read_tables: Callable[[], SinkTables]
    ) -> None:
        """`read_tables` reloads the configuration files."""
        self._engine, self._sinks, self._secrets, self._state = engine, sinks, secrets, state
        self._read_tables = read_tables
        self._looks: Mapping[str, _SinkCommand] = {
            SINKS: self._list,
            "sinks-secrets": lambda _: secrets.names(),
            "sinks-test": _of_sink(sinks.test),
            "sinks-tested": lambda given: sinks.tested(text_argument(given, "name")),
            "sinks-failed": self._failed,
        }
        self._changes: Mapping[str, _SinkCommand] = {
            "sinks-add": self._add,
            "sinks-set": self._set,
            "sinks-pause": _of_sink(sinks.pause),
            "sinks-resume": _of_sink(sinks.resume),
            "sinks-replay": self._replay,
            "sinks-remove": _of_sink(sinks.remove),
            "sinks-reload": self._reload,
            SAVE_SINKS: lambda _: None,
        }

    def run(self, command: Command) -> object:
        """Runs a command and returns its result as JSON; a change is committed with it, once. Raises InputError."""
        if (look := self._looks.get(command.do)) is not None:
            return look(command.arguments)
        if (change := self._changes.get(command.do)) is None:
            raise BadCommand(f"unknown command {command.do!r}")
        if (known := self._engine.ledger.answer_to(command.id)) is not None:
            return CommandResult.from_json(known).result
        result = change(command.arguments)
        self._sinks.save({command.id: CommandResult(result).to_json()})
        return result

    def _list(self, arguments: Mapping[str, Any]) -> object:
        name = arguments.get("name")
        if name is None:
            return [self._shown(state) for state in self._sinks.list()]
        definition = self._sinks.definition(text_argument(arguments, "name"))
        (state,) = [state for state in self._sinks.list() if state.name == definition.name]
        return self._shown(state) | {"file": definition.file or None, "definition": dict(definition.table)}

    def _shown(self, state: SinkState) -> dict[str, Any]:
        definition = self._sinks.definition(state.name)
        queries = list(definition.queries) or ["*"]
        return state.to_dict() | {"queries": queries, "to": shown_target(definition, self._secrets)}

    def _add(self, arguments: Mapping[str, Any]) -> object:
        definition = self._read(text_argument(arguments, "name"), argument(arguments, "table", Mapping))
        self._sinks.add(definition)
        return definition.name

    def _set(self, arguments: Mapping[str, Any]) -> object:
        """Changes some keys; null resets one to its default."""
        name = text_argument(arguments, "name")
        known = self._sinks.live_course(name).definition
        self._sinks.set(self._read(name, merge_changes(known.table, argument(arguments, "table", Mapping))))
        return name

    def _read(self, name: str, table: Mapping[str, Any]) -> SinkDefinition:
        definition = read_live(self._state, name, table)
        refuse_same_path(definition, (self._sinks.definition(state.name) for state in self._sinks.list()))
        self._secrets.check(named_secrets(definition.options))
        return definition

    def _failed(self, arguments: Mapping[str, Any]) -> object:
        name = self._sinks.definition(text_argument(arguments, "name")).name  # which has no quotes
        end = f"WHERE sink = '{name}' ORDER BY noted_at DESC, {{}} DESC LIMIT {MOST_FAILED}"
        undelivered = f"SELECT seq, id, tries, reason, noted_at FROM undelivered {end.format('seq')}"
        gaps = f"SELECT first, last, count, reason, noted_at FROM gaps {end.format('first')}"
        questions = {"undelivered": undelivered, "gaps": gaps}
        return {name: self._engine.sql(sql, trusted=True).to_pylist() for name, sql in questions.items()}

    def _replay(self, arguments: Mapping[str, Any]) -> object:
        return self._sinks.replay(text_argument(arguments, "name"), read_start(text_argument(arguments, "from")))

    def _reload(self, arguments: Mapping[str, Any]) -> object:
        tables = self._read_tables()
        self._sinks.reload(tables.sinks.values())
        self._secrets.renew(tables.secrets)
        return sorted(tables.sinks)


@contextmanager
def opened_sinks(
    engine: Session, state: Path, read_tables: Callable[[], SinkTables], log: Log, *, read_only: bool = False
) -> Iterator[tuple[SinkManager, SinkCommands]]:
    """Opens the sinks of a store, and what changes them. At the end, deliveries that have begun are abandoned."""
    tables, deliverer = read_tables(), Deliverer()
    secrets, defined = Secrets(tables.secrets, state), tables.sinks.values()
    read = partial(read_live, state)
    sinks = SinkManager(engine, defined, partial(open_destination, secrets), deliverer, log, read, read_only=read_only)
    try:
        yield sinks, SinkCommands(engine, sinks, secrets, state, read_tables)
    finally:
        deliverer.close(0.0)


_SinkCommand = Callable[[Mapping[str, Any]], object]


def _of_sink(do: Callable[[str], None]) -> _SinkCommand:
    """Returns a command about a sink given by its name, which it returns."""

    def run(arguments: Mapping[str, Any]) -> object:
        do(name := text_argument(arguments, "name"))
        return name

    return run


def read_live(state: Path, name: str, table: Mapping[str, Any]) -> SinkDefinition:
    """Raises BadSink."""
    return read_sink(name, table, state.absolute() / LIVE)


def merge_changes(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a table with changes; None deletes a key."""
    return {key: value for key, value in {**table, **changes}.items() if value is not None}


RESULT_RETENTION = 24 * 3600 * 1_000_000  # microseconds that an unfetched result is kept
LOGGED = ("name", "sql", "add", "backfill")  # the arguments of commands that are logged

_Change = Callable[[Session, Mapping[str, Any], MetadataFor], None]
Lookup = Callable[[Session, Mapping[str, Any]], Any]
RunSinks = Callable[[Session, Command], object]  # runs a sink command and returns its result


class CommandQueue:
    """The commands of a spool. Skips the kinds `skip`, which others run. `run_sinks` runs sink commands."""

    def __init__(
        self, spool: Spool, now: Now = now_us, *, skip: Container[str] = (), run_sinks: RunSinks | None = None
    ) -> None:
        self._spool, self._skip, self._run_sinks = spool, skip, run_sinks
        spool.sweep(now() - RESULT_RETENTION)

    def apply(self, engine: Session, log: Log) -> int:
        """Runs the waiting commands. Returns their number."""
        waiting = [command for command in self._spool.waiting() if command.do not in self._skip]
        for command in waiting:
            result = run_command(engine, command, self._run_sinks)
            self._spool.answer(command, result)
            shown = {key: value for key, value in command.arguments.items() if key in LOGGED}
            error = {} if result.error is None else {"error": result.error}
            log.event("command", do=command.do, **shown, **error)
        return len(waiting)


def run_command(engine: Session, command: Command, run_sinks: RunSinks | None = None) -> CommandResult:
    """Runs a command, unless it ran before the process was killed, and returns its result."""
    try:
        if run_sinks is not None and (command.do == SINKS or command.do.startswith(PREFIX)):
            return CommandResult(run_sinks(engine, command))
        if command.do in RUN_BESIDE:
            return answer_question(*question_of(engine, command))
        if (lookup := LOOKUPS.get(command.do)) is not None:
            found = lookup(engine, command.arguments)
            if command.do == STATUS and run_sinks is not None:
                found |= {"sinks": run_sinks(engine, Command("", SINKS, {}))}
            return CommandResult(found)
        if (change := CHANGES.get(command.do)) is None:
            raise BadCommand(f"unknown command {command.do!r}")
        if (known := engine.ledger.answer_to(command.id)) is not None:
            return CommandResult.from_json(known)
        names: list[str] = []

        def metadata_for(changed: list[str]) -> CommitMetadata:
            names[:] = changed
            return CommitMetadata(answers={command.id: CommandResult(changed).to_json()})

        change(engine, command.arguments, metadata_for)
        return CommandResult(names)
    except Exception as error:
        # A change that fails through a bug or the store ends the service: nobody knows what state it left.
        if not isinstance(error, InputError) and command.do not in {*LOOKUPS, *RUN_BESIDE}:
            raise
        return CommandResult(error=str(error).strip() or type(error).__name__)


# ------------------------------------------------------------ changes


def _subscribe(engine: Session, arguments: Mapping[str, Any], metadata_for: MetadataFor) -> None:
    add, backfill = bool(arguments.get("add")), bool(arguments.get("backfill"))
    with engine.committing(metadata_for):
        engine.subscribe(text_argument(arguments, "text"), add=add, backfill=backfill)


def _of_name(method: str) -> _Change:
    """Returns a command that changes the queries of a name by a method of the engine."""

    def run(engine: Session, arguments: Mapping[str, Any], metadata_for: MetadataFor) -> None:
        with engine.committing(metadata_for):
            getattr(engine, method)(text_argument(arguments, "name"))

    return run


def _revoke_feed_link(engine: Session, arguments: Mapping[str, Any], metadata_for: MetadataFor) -> None:
    name = text_argument(arguments, "name")
    revoked = {setting_of(name): str(_revoked(engine, name) + 1)}
    engine.commit_metadata(replace(metadata_for([name]), settings=revoked))


CHANGES: Mapping[str, _Change] = {
    "subscribe": _subscribe,
    **{do: _of_name(do) for do in ("unsubscribe", "pause", "resume")},
    "revoke-feed-link": _revoke_feed_link,
}
"""Commands that change the store. Each returns the names of the queries concerned."""


# ------------------------------------------------------------ lookups


def _list(engine: Session, arguments: Mapping[str, Any]) -> object:
    names = dict.fromkeys(s.name for s in engine.registry.subscriptions.values())
    of_name = {name: engine.registry.named(name) for name in names}
    sources = engine.sources([queries[0] for queries in of_name.values()])
    found = []
    for name, queries in of_name.items():
        paused = "; ".join(sorted({query.paused for query in queries if query.paused is not None})) or None
        texts = {"text": queries[0].text, "source": sources[queries[0].qid]}
        found.append({"name": name, "queries": len(queries), "paused": paused, **texts})
    return found


def _show(engine: Session, arguments: Mapping[str, Any]) -> object:
    name = text_argument(arguments, "name")
    queries = engine.registry.named(name)
    if not queries:
        raise unknown_query(name, engine.registry)
    pending = engine.waiting_absences(name).get(name)
    belated, sources = engine.belated(name).by_query.get(name, 0), engine.sources(queries)
    return [
        {
            "name": name,
            "paused": query.paused,
            "belated": belated,
            "pending": None if pending is None else pending.to_dict(),
            "added_at": engine.added_at(query.qid),
            "sees_documents_after": query.since,
            "templates": sorted({target.template for target in query.targets}),
            "text": query.text,
            "source": sources[query.qid],
        }
        for query in queries
    ]


def _texts(engine: Session, arguments: Mapping[str, Any]) -> object:
    name = text_argument(arguments, "name")
    if not engine.registry.named(name):
        raise unknown_query(name, engine.registry)
    return [asdict(one) for one in query_versions(partial(engine.sql, trusted=True), name)]


def _revoked(engine: Session, name: str) -> int:
    """Returns how often a query's feed link was revoked, even if the query is removed. Raises UnknownQuery."""
    if not engine.registry.named(name) and not engine.removed_queries(name):
        raise unknown_query(name, engine.registry)
    return int(engine.ledger.setting(setting_of(name)) or 0)


def _counters(engine: Session, arguments: Mapping[str, Any]) -> object:
    costs = engine.costs()
    return {"stage1": engine.stage1_counters(), "stage2": engine.stage2_counters(), "plan": costs and costs[0]}


LOOKUPS: Mapping[str, Lookup] = {
    "list": _list,
    "show": _show,
    STATUS: lambda engine, _: store_status(engine).to_dict(),
    "feed-link": lambda engine, arguments: _revoked(engine, text_argument(arguments, "name")),
    "counters": _counters,
    MATCHES: page_of_matches,
    TEXTS: _texts,
    EXPORT: lambda engine, _: exported(partial(engine.sql, trusted=True), MOST_EXPORTED),
    SHARING: lambda engine, _: summarise_sharing(engine).to_dict(),
}
"""Read-only commands that run between two batches."""


ANSWER_POLL = 0.05  # seconds between two polls for the answer

IDLE = frozenset((*LOOKUPS, *RUN_BESIDE, *SINK_LOOKUPS))
"""The commands that change nothing, which a read-only store can answer, whose results nobody needs after the wait."""


class CommandError(InputError, ValueError):
    """A command was refused. The message says why."""


class NoAnswer(StoreError):
    """The process that holds the store has not answered in time."""


@dataclass(frozen=True, slots=True)
class Client:
    """Submits commands for the store of a state directory, and waits up to `wait` seconds for each answer. `open_store`
    opens the store when no process holds it, `open_read_only` for commands that change nothing; without it, these are
    submitted too. `reads_beside`: the store may be read while another process holds it. `clock` returns seconds.
    `run_sinks` runs sink commands when no process holds the store."""

    state: Path
    open_store: Callable[[], Session]
    wait: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    open_read_only: Callable[[], Session] | None = None
    reads_beside: bool = False
    run_sinks: RunSinks | None = None

    def ask(self, do: str, arguments: Mapping[str, Any]) -> Any:
        """Returns the result of a command. Raises CommandError if it was refused; NoAnswer, StoreError, OSError."""
        answer = self._looked_up(do, arguments) or self._submitted(do, arguments)
        if answer.error is not None:
            raise CommandError(answer.error)
        return answer.result

    def _looked_up(self, do: str, arguments: Mapping[str, Any]) -> CommandResult | None:
        """Runs a read-only command in this process; None if it cannot. Only the serving process knows sinks' states."""
        if do not in IDLE or (do in SINK_LOOKUPS and is_held(self.state)):
            return None
        with self.reading(beside=do in RUN_BESIDE) as engine:
            return None if engine is None else run_command(engine, Command("", do, arguments), self.run_sinks)

    def reading(self, *, beside: bool = True) -> AbstractContextManager[Session | None]:
        """Opens the store read-only. None if another process holds it and it cannot be read beside that, or if waiting
        commands must run first. A process that may not write does not wait for these; nor does a reader `beside`
        another process, which may answer another dialect of SQL."""
        if self.open_read_only is None:
            return nullcontext()
        writes = os.access(self.state, os.W_OK)
        waits = not self.reads_beside and is_held(self.state)
        if writes and (waits or not ((self.reads_beside and beside) or Spool(self.state).is_empty())):
            return nullcontext()
        try:
            return self.open_read_only()
        except (InUse, Outdated) as error:
            if not writes:
                raise
            if not self.reads_beside or isinstance(error, InUse):
                return nullcontext()
        self.open_store().close()  # which brings it up to date
        return self.open_read_only()

    def _submitted(self, do: str, arguments: Mapping[str, Any]) -> CommandResult:
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
                    holder = holder_of(self.state) or f"the store in {self.state} is free now"
                    later = "ask again later" if do in IDLE else "the command is kept and will run as soon as possible"
                    raise NoAnswer(f"no answer within {self.wait:g} s: {holder}; {later}")
                self.sleep(ANSWER_POLL)
        except BaseException as error:
            # A change that nobody has run yet stays in the spool when the wait is over: it will be made.
            if do in IDLE or not isinstance(error, NoAnswer):
                spool.withdraw(command)
            raise
        return answer

    def _run_here(self, spool: Spool) -> bool:
        """Runs all waiting commands. Returns False if another process now holds the store."""
        try:
            engine = self.open_store()
        except InUse:
            return False
        with engine:
            CommandQueue(spool, run_sinks=self.run_sinks).apply(engine, NullLog())
        return True


def run_offline(state: Path, read_tables: Callable[[], SinkTables], engine: Session, command: Command) -> object:
    """Runs a sink command on a store held by this process. `read_tables` reads the configuration. Raises InputError."""
    with opened_sinks(engine, state, read_tables, NullLog(), read_only=command.do in SINK_LOOKUPS) as (_, commands):
        return commands.run(command)  # nobody would wait for a test that it has begun


SINK_TEST_POLL = 0.1  # seconds between two polls for a test's result


def add_sink(ask: SendCommand, state: Path, name: str, table: Mapping[str, Any]) -> None:
    """Adds a live sink. Raises InputError."""
    _check(ask, read_live(state, name, table))
    ask("sinks-add", {"name": name, "table": table})


def set_sink(ask: SendCommand, state: Path, name: str, table: Mapping[str, Any]) -> None:
    """Changes keys of a live sink; None resets one to its default. Raises InputError."""
    known = ask(SINKS, {"name": name})
    if is_live := known["file"] is None:
        _check(ask, read_live(state, name, merge_changes(known["definition"], table)))
    ask("sinks-set", {"name": name, "table": table if is_live else {}})  # the latter is refused


def try_sink(ask: SendCommand, name: str, seconds: float) -> str | None:
    """Sends a test message. Returns "" if it is acknowledged within `seconds`, else the reason; None if unknown yet."""
    ask("sinks-test", {"name": name})
    until = time.monotonic() + seconds
    while (found := ask("sinks-tested", {"name": name})) is None and time.monotonic() < until:
        time.sleep(SINK_TEST_POLL)  # a command is answered at once, so the receiver's reply has to be polled for
    return None if found is None else str(found)


def _check(ask: SendCommand, definition: SinkDefinition) -> None:
    """Raises BadSink if a definition names unknown secrets."""
    if names := named_secrets(definition.options):
        known = ask("sinks-secrets", {})
        if any(secret.name not in known for secret in names):
            listed = ", ".join(known) or "none"
            raise BadSink(f"a secret is named that is not known (known: {listed}); mmqjp sinks secret makes one")
