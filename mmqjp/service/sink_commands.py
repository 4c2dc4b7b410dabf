"""Commands about sinks from other processes: what they ask for, and what they get."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from mmqjp.service.spool import Command, CommandResult
from mmqjp.session import Session
from mmqjp.sinks.control import SinkControl, SinkOfFile, SinkState
from mmqjp.sinks.definition import SinkDefinition, read_sink, read_start, refuse_same_path
from mmqjp.sinks.keys import BadSink
from mmqjp.sinks.kinds import shown_target
from mmqjp.sinks.options import named_secrets
from mmqjp.sinks.secrets import Secrets
from mmqjp.sinks.tables import SinkTables

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

Look = Callable[[Mapping[str, Any]], object]
Change = Callable[[Mapping[str, Any], AnswersOf], object]


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
        self._looks: Mapping[str, Look] = {
            SINKS: self._list,
            "sinks-secrets": self._list_secrets,
            "sinks-test": self._test,
            "sinks-tested": self._tested,
            "sinks-failed": self._failed,
        }
        self._changes: Mapping[str, Change] = {
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
        definition = self._sinks.definition(_text(arguments, "name"))
        (state,) = [state for state in self._sinks.list() if state.name == definition.name]
        return self._shown(state) | {"file": definition.file or None, "definition": dict(definition.table)}

    def _shown(self, state: SinkState) -> dict[str, Any]:
        definition = self._sinks.definition(state.name)
        queries = list(definition.queries) or ["*"]
        return state.to_dict() | {"queries": queries, "to": shown_target(definition, self._secrets)}

    def _list_secrets(self, arguments: Mapping[str, Any]) -> object:
        return self._secrets.names()

    def _add(self, arguments: Mapping[str, Any], answers: AnswersOf) -> object:
        definition = self._read(_text(arguments, "name"), _table(arguments))
        self._sinks.add(definition, answers(definition.name))
        return definition.name

    def _set(self, arguments: Mapping[str, Any], answers: AnswersOf) -> object:
        """Changes some keys. Those that are null get their defaults."""
        name = _text(arguments, "name")
        known = self._sinks.definition(name)
        if not known.is_live:
            raise SinkOfFile(told_where(known))
        self._sinks.set(self._read(name, changed(known.table, _table(arguments))), answers(name))
        return name

    def _read(self, name: str, table: Mapping[str, Any]) -> SinkDefinition:
        definition = read_live(self._state, name, table)
        refuse_same_path(definition, (self._sinks.definition(state.name) for state in self._sinks.list()))
        self._secrets.check(named_secrets(definition.options))
        return definition

    def _pause(self, arguments: Mapping[str, Any], answers: AnswersOf) -> object:
        self._sinks.pause(name := _text(arguments, "name"), answers(name))
        return name

    def _resume(self, arguments: Mapping[str, Any], answers: AnswersOf) -> object:
        self._sinks.resume(name := _text(arguments, "name"), answers(name))
        return name

    def _test(self, arguments: Mapping[str, Any]) -> object:
        self._sinks.test(name := _text(arguments, "name"))
        return name

    def _tested(self, arguments: Mapping[str, Any]) -> object:
        return self._sinks.tested(_text(arguments, "name"))

    def _failed(self, arguments: Mapping[str, Any]) -> object:
        """What a sink did not get: outputs that its receiver refused, and those that were given up."""
        name = self._sinks.definition(_text(arguments, "name")).name  # which has no quotes
        end = f"WHERE sink = '{name}' ORDER BY noted_at DESC, {{}} DESC LIMIT {MOST_FAILED}"
        undelivered = f"SELECT seq, id, tries, reason, noted_at FROM undelivered {end.format('seq')}"
        gaps = f"SELECT first, last, count, reason, noted_at FROM gaps {end.format('first')}"
        return {
            "undelivered": self._engine.sql(undelivered, trusted=True).to_pylist(),
            "gaps": self._engine.sql(gaps, trusted=True).to_pylist(),
        }

    def _replay(self, arguments: Mapping[str, Any], answers: AnswersOf) -> object:
        self._sinks.replay(name := _text(arguments, "name"), read_start(_text(arguments, "from")), answers(name))
        return name

    def _remove(self, arguments: Mapping[str, Any], answers: AnswersOf) -> object:
        self._sinks.remove(name := _text(arguments, "name"), answers(name))
        return name

    def _reload(self, arguments: Mapping[str, Any], answers: AnswersOf) -> object:
        tables = self._read_tables()
        self._sinks.reload(tables.sinks.values(), answers(names := sorted(tables.sinks)))
        self._secrets.renew(tables.secrets)
        return names


def read_live(state: Path, name: str, table: Mapping[str, Any]) -> SinkDefinition:
    """Returns the definition of a live sink of a store. Raises BadSink."""
    return read_sink(name, table, state.absolute() / LIVE)


def changed(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a table with changes. Keys that become None are left out."""
    return {key: value for key, value in {**table, **changes}.items() if value is not None}


def told_where(definition: SinkDefinition) -> str:
    """Returns the sentence that says where a sink of the configuration file is changed."""
    return f"the sink {definition.name} is defined in {definition.file}: change it there, and run mmqjp sinks reload"


def _text(arguments: Mapping[str, Any], name: str) -> str:
    if not isinstance(found := arguments.get(name), str):
        raise BadSink(f"the command lacks its {name}")
    return found


def _table(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(found := arguments.get("table"), Mapping):
        raise BadSink("the command lacks its table")
    return found
